//! Values found by their type.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;

/// A value of any type.
type AnyValue = Arc<dyn Any + Send + Sync>;

/// A small map from types to shared values. Clones share the values.
#[derive(Clone, Default)]
pub struct Extensions(Vec<(TypeId, AnyValue)>);

impl Extensions {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a value in, in the place of an older one of its type.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.insert_arc(Arc::new(value));
    }

    /// Puts a shared value in, in the place of an older one of its type.
    pub fn insert_arc<T: Send + Sync + 'static>(&mut self, value: Arc<T>) {
        self.replace(TypeId::of::<T>(), value);
    }

    /// Puts all values of another map in, in the place of older ones of their types.
    pub fn extend(&mut self, other: &Self) {
        self.replace_all(other);
    }

    /// Puts a value in and gives back the one whose place it takes. Whoever holds a lock drops it afterwards.
    pub(crate) fn replace(&mut self, id: TypeId, value: AnyValue) -> Option<AnyValue> {
        let place = self.0.iter().position(|(present, _)| *present == id);
        let old = place.map(|place| self.0.remove(place).1);
        self.0.push((id, value));
        old
    }

    /// The same for all values of another map.
    pub(crate) fn replace_all(&mut self, other: &Self) -> Vec<AnyValue> {
        other.0.iter().filter_map(|(id, value)| self.replace(*id, value.clone())).collect()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of that type.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let id = TypeId::of::<T>();
        let value = self.0.iter().find(|(present, _)| *present == id).map(|(_, value)| value.clone())?;
        value.downcast().ok()
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extensions({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_type_and_replaced_by_a_later_one() {
        let mut map = Extensions::new();
        map.insert(1u8);
        map.insert("text".to_owned());
        map.insert(2u8);
        assert_eq!(map.get::<u8>().as_deref(), Some(&2));
        assert_eq!(map.get::<String>().as_deref().map(String::as_str), Some("text"));
        assert!(map.get::<u16>().is_none());
    }
}
