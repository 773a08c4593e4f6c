//! A persistent sequence: clones share, an append costs what it adds.
//!
//! Leaves of 32 items hang in a tree of degree 32; the last leaf is kept aside so that a push touches
//! one small vector. A clone bumps two counters. Nothing is copied but the few nodes on the right edge,
//! and those only while another clone still holds them.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

const WIDTH: usize = 32;
const BITS: u32 = 5;

/// The items of a leaf. The first few need no allocation of their own, since many lists stay short.
type Items<T> = SmallVec<[T; 4]>;

#[derive(Clone)]
enum Node<T> {
    Branch(Arc<Vec<Node<T>>>),
    Leaf(Arc<Items<T>>),
}

/// A sequence whose clones share their items.
#[derive(Clone)]
pub struct List<T> {
    /// Full leaves only, in order.
    root: Option<Node<T>>,
    /// Levels of branches above the leaves of `root`.
    height: u32,
    /// Absent while there is nothing, so that an empty list costs nothing.
    tail: Option<Arc<Items<T>>>,
    len: usize,
}

impl<T: Clone> List<T> {
    /// An empty sequence.
    pub fn new() -> Self {
        Self { root: None, height: 0, tail: None, len: 0 }
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The item at `index`, counted from 0.
    pub fn get(&self, index: usize) -> Option<&T> {
        self.leaf(index)?.get(index % WIDTH)
    }

    /// The last item.
    pub fn last(&self) -> Option<&T> {
        self.get(self.len.checked_sub(1)?)
    }

    /// Adds an item at the end.
    pub fn push(&mut self, item: T) {
        if let Some(full) = self.tail.take_if(|tail| tail.len() == WIDTH) {
            self.push_leaf(full);
        }
        match &mut self.tail {
            Some(tail) => {
                let tail = Arc::make_mut(tail);
                if tail.len() == tail.capacity() {
                    // By and by: many lists stay short, and all of them are kept.
                    tail.reserve_exact(if tail.len() < 8 { 4 } else { 8 });
                }
                tail.push(item);
            }
            None => {
                let mut tail = Items::new();
                tail.push(item);
                self.tail = Some(Arc::new(tail));
            }
        }
        self.len += 1;
    }

    /// Keeps the first `len` items.
    pub fn truncate(&mut self, len: usize) {
        while len < self.tail_start() {
            self.len = self.tail_start();
            self.tail = Some(self.pop_leaf());
        }
        let start = self.tail_start();
        if len < self.len
            && let Some(tail) = &mut self.tail
        {
            Arc::make_mut(tail).truncate(len - start);
            self.len = len;
        }
    }

    /// Puts `items` before the item at `index`; an index past the end appends.
    ///
    /// Costs what stands behind `index`.
    pub fn insert(&mut self, index: usize, items: impl IntoIterator<Item = T>) {
        self.splice(index, 0, items);
    }

    /// Puts `item` in the place of the one at `index`. Returns whether there was one.
    pub fn replace(&mut self, index: usize, item: T) -> bool {
        if index >= self.len {
            return false;
        }
        let start = self.tail_start();
        let leaf = if index >= start {
            self.tail.as_mut()
        } else {
            self.root.as_mut().and_then(|root| leaf_mut(root, self.height, index))
        };
        let slot = leaf.and_then(|leaf| Arc::make_mut(leaf).get_mut(index % WIDTH));
        slot.map(|slot| *slot = item).is_some()
    }

    /// All items from first to last.
    pub fn iter(&self) -> Iter<'_, T> {
        self.iter_from(0)
    }

    /// The items from `start` on.
    pub fn iter_from(&self, start: usize) -> Iter<'_, T> {
        Iter { list: self, leaf: &[], front: start.min(self.len), back: self.len }
    }

    /// How many items at the front are the same in both. What is shared is not looked at, so lists that came from one
    /// another cost what they differ in.
    pub fn common_prefix(&self, other: &Self) -> usize
    where
        T: PartialEq,
    {
        let (mut mine, mut theirs) = (self.root.as_ref(), other.root.as_ref());
        // The smaller tree is the first child of the larger one, as far as both go.
        for _ in other.height..self.height {
            mine = mine.and_then(first_child);
        }
        for _ in self.height..other.height {
            theirs = theirs.and_then(first_child);
        }
        let same = match (mine, theirs) {
            (Some(mine), Some(theirs)) => same_leaves(mine, theirs) * WIDTH,
            _ => 0,
        };
        let differ = |(mine, theirs): (&T, &T)| mine != theirs;
        let rest = self.iter_from(same).zip(other.iter_from(same));
        let limit = self.len.min(other.len) - same;
        same + rest.into_iter().position(differ).unwrap_or(limit)
    }

    /// Puts `items` in the place of those from `at` on, so many of them. Costs what stands behind `at`.
    pub fn splice(&mut self, at: usize, remove: usize, items: impl IntoIterator<Item = T>) {
        if at == 0 && remove >= self.len {
            *self = items.into_iter().collect();
            return;
        }
        let behind: Vec<T> = self.iter_from(at.saturating_add(remove)).cloned().collect();
        self.truncate(at);
        self.extend(items);
        self.extend(behind);
    }

    fn tail_start(&self) -> usize {
        self.len - self.tail.as_ref().map_or(0, |tail| tail.len())
    }

    /// The leaf that holds `index`, whole.
    fn leaf(&self, index: usize) -> Option<&[T]> {
        if index >= self.tail_start() {
            return self.tail.as_deref().map(Items::as_slice).filter(|_| index < self.len);
        }
        let mut node = self.root.as_ref()?;
        let mut level = self.height;
        loop {
            match node {
                Node::Leaf(items) => return Some(items),
                Node::Branch(children) => {
                    node = children.get((index >> (level * BITS)) % WIDTH)?;
                    level = level.checked_sub(1)?;
                }
            }
        }
    }

    fn push_leaf(&mut self, leaf: Arc<Items<T>>) {
        // `len` still counts the leaf.
        let leaves = (self.len - leaf.len()) / WIDTH;
        let Some(root) = &mut self.root else {
            self.root = Some(Node::Leaf(leaf));
            return;
        };
        // The tree is full when the next leaf does not fit below the present root.
        if leaves == 1 << (self.height * BITS) {
            let old = std::mem::replace(root, Node::Leaf(leaf.clone()));
            self.root = Some(Node::Branch(Arc::new(vec![old, chain(leaf, self.height)])));
            self.height += 1;
            return;
        }
        hang(root, self.height, leaves, leaf);
    }

    fn pop_leaf(&mut self) -> Arc<Items<T>> {
        let Some(root) = &mut self.root else { return Arc::new(Items::new()) };
        let leaf = unhang(root);
        // Take away what became empty, and branches with one child.
        loop {
            match &self.root {
                Some(Node::Branch(children)) if children.len() == 1 => {
                    self.root = children.first().cloned();
                    self.height -= 1;
                }
                Some(Node::Branch(children)) if children.is_empty() => self.root = None,
                _ => break,
            }
        }
        match leaf {
            Some(leaf) => leaf,
            None => match self.root.take() {
                Some(Node::Leaf(items)) => items,
                _ => Arc::new(Items::new()),
            },
        }
    }
}

fn first_child<T>(node: &Node<T>) -> Option<&Node<T>> {
    match node {
        Node::Branch(children) => children.first(),
        Node::Leaf(_) => None,
    }
}

/// How many leaves at the front two trees of one height share.
fn same_leaves<T>(mine: &Node<T>, theirs: &Node<T>) -> usize {
    match (mine, theirs) {
        (Node::Leaf(a), Node::Leaf(b)) => usize::from(Arc::ptr_eq(a, b)),
        (Node::Branch(a), Node::Branch(b)) if Arc::ptr_eq(a, b) => leaves(mine),
        (Node::Branch(a), Node::Branch(b)) => {
            let mut count = 0;
            for (mine, theirs) in a.iter().zip(b.iter()) {
                let same = same_leaves(mine, theirs);
                count += same;
                if same < leaves(mine) {
                    break;
                }
            }
            count
        }
        _ => 0,
    }
}

/// How many leaves a tree has: all children but the last are full.
fn leaves<T>(node: &Node<T>) -> usize {
    let mut node = node;
    let mut path = [0usize; 13];
    let mut height = 0;
    while let Node::Branch(children) = node
        && let Some(last) = children.last()
        && let Some(slot) = path.get_mut(height)
    {
        *slot = children.len() - 1;
        height += 1;
        node = last;
    }
    // The number of the last leaf, digit by digit.
    path.iter().take(height).fold(0, |number, digit| (number << BITS) + digit) + 1
}

/// A leaf below `height` branches.
fn chain<T>(leaf: Arc<Items<T>>, height: u32) -> Node<T> {
    (0..height).fold(Node::Leaf(leaf), |node, _| Node::Branch(Arc::new(vec![node])))
}

/// Hangs `leaf` as number `leaves` below a branch of that height.
fn hang<T: Clone>(node: &mut Node<T>, height: u32, leaves: usize, leaf: Arc<Items<T>>) {
    let Node::Branch(children) = node else { return };
    let children = Arc::make_mut(children);
    let slot = (leaves >> ((height - 1) * BITS)) % WIDTH;
    match children.get_mut(slot) {
        Some(child) => hang(child, height - 1, leaves, leaf),
        None => children.push(chain(leaf, height - 1)),
    }
}

/// Takes off the last leaf below a branch. `None` if the node is a leaf itself.
fn unhang<T: Clone>(node: &mut Node<T>) -> Option<Arc<Items<T>>> {
    let Node::Branch(children) = node else { return None };
    let children = Arc::make_mut(children);
    let leaf = match children.last_mut()? {
        Node::Leaf(items) => Some(items.clone()),
        branch => unhang(branch),
    };
    let empty = match children.last() {
        Some(Node::Branch(inner)) => inner.is_empty(),
        _ => true,
    };
    if empty {
        children.pop();
    }
    leaf
}

fn leaf_mut<T: Clone>(node: &mut Node<T>, level: u32, index: usize) -> Option<&mut Arc<Items<T>>> {
    match node {
        Node::Leaf(items) => Some(items),
        Node::Branch(children) => {
            let child = Arc::make_mut(children).get_mut((index >> (level * BITS)) % WIDTH)?;
            leaf_mut(child, level.checked_sub(1)?, index)
        }
    }
}

impl<T: Clone> Default for List<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Clone> Extend<T> for List<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        for item in items {
            self.push(item);
        }
    }
}

impl<T: Clone> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut list = Self::new();
        list.extend(items);
        list
    }
}

impl<'a, T: Clone> IntoIterator for &'a List<T> {
    type Item = &'a T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

impl<T: Clone + PartialEq> PartialEq for List<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<T: Clone + fmt::Debug> fmt::Debug for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Items of a [`List`], from both ends.
pub struct Iter<'a, T> {
    list: &'a List<T>,
    /// The leaf of `front`, looked up once per leaf.
    leaf: &'a [T],
    front: usize,
    back: usize,
}

impl<'a, T: Clone> Iterator for Iter<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        if self.front >= self.back {
            return None;
        }
        if self.leaf.is_empty() || self.front.is_multiple_of(WIDTH) {
            self.leaf = self.list.leaf(self.front)?;
        }
        let item = self.leaf.get(self.front % WIDTH);
        self.front += 1;
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.back - self.front;
        (left, Some(left))
    }
}

impl<T: Clone> ExactSizeIterator for Iter<'_, T> {}

impl<T: Clone> DoubleEndedIterator for Iter<'_, T> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.front >= self.back {
            return None;
        }
        self.back -= 1;
        self.list.get(self.back)
    }
}

impl<T> fmt::Debug for Iter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Iter({}..{})", self.front, self.back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Push(u16),
        Truncate(prop::sample::Index),
        Insert(prop::sample::Index, Vec<u16>),
        Replace(prop::sample::Index, u16),
        Keep,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            20 => any::<u16>().prop_map(Op::Push),
            1 => any::<prop::sample::Index>().prop_map(Op::Truncate),
            1 => (any::<prop::sample::Index>(), prop::collection::vec(any::<u16>(), 0..70))
                .prop_map(|(i, items)| Op::Insert(i, items)),
            2 => (any::<prop::sample::Index>(), any::<u16>()).prop_map(|(i, x)| Op::Replace(i, x)),
            1 => Just(Op::Keep),
        ]
    }

    proptest! {
        #[test]
        fn behaves_like_a_vector_and_leaves_its_clones_alone(
            start in 0..2300usize,
            ops in prop::collection::vec(op(), 0..120),
        ) {
            let mut model: Vec<u16> = (0..start).map(|i| i as u16).collect();
            let mut list: List<u16> = model.iter().copied().collect();
            let mut kept = Vec::new();
            for op in ops {
                match op {
                    Op::Push(x) => { model.push(x); list.push(x); }
                    Op::Truncate(i) => { let n = i.index(model.len() + 1); model.truncate(n); list.truncate(n); }
                    Op::Insert(i, items) => {
                        let n = i.index(model.len() + 1);
                        list.insert(n, items.clone());
                        model.splice(n..n, items);
                    }
                    Op::Replace(i, x) if !model.is_empty() => {
                        let n = i.index(model.len());
                        model[n] = x;
                        prop_assert!(list.replace(n, x));
                    }
                    Op::Replace(_, x) => prop_assert!(!list.replace(0, x)),
                    Op::Keep => kept.push((model.clone(), list.clone())),
                }
                prop_assert_eq!(list.len(), model.len());
                prop_assert_eq!(list.last(), model.last());
            }
            kept.push((model, list));
            for ((a, list), (b, other)) in kept.iter().zip(kept.iter().skip(1)) {
                let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
                prop_assert_eq!(list.common_prefix(other), same);
                prop_assert_eq!(other.common_prefix(list), same);
            }
            for (model, list) in kept {
                prop_assert!(list.iter().eq(model.iter()));
                prop_assert!(list.iter().rev().eq(model.iter().rev()));
                prop_assert!(list.iter_from(model.len() / 2).eq(model[model.len() / 2..].iter()));
            }
        }
    }
}
