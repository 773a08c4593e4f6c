//! JSON Patch (RFC 6902): how changes of state are told.

use std::borrow::Cow;
use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use umbel_core::Object;
use umbel_core::json::kind_of;

/// One step of a patch. Paths are JSON Pointers (RFC 6901).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum PatchOp {
    /// Puts a value at a key, or into an array in front of what is there; `-` is its end.
    Add {
        /// Where.
        path: String,
        /// What.
        value: Value,
    },
    /// Takes away what is there.
    Remove {
        /// Where.
        path: String,
    },
    /// Puts a value in place of what is there.
    Replace {
        /// Where.
        path: String,
        /// What.
        value: Value,
    },
    /// Takes what is in one place to another.
    Move {
        /// Where it was.
        from: String,
        /// Where it goes.
        path: String,
    },
    /// Puts what is in one place into another, too.
    Copy {
        /// Where it is.
        from: String,
        /// Where it goes.
        path: String,
    },
    /// Fails the patch unless a value is there.
    Test {
        /// Where.
        path: String,
        /// What.
        value: Value,
    },
}

/// Why a patch cannot be applied. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchError {
    /// Which step failed, counted from 0.
    pub step: usize,
    /// What is wrong with it.
    pub message: String,
}

impl fmt::Display for PatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} of the patch: {}", self.step, self.message)
    }
}

impl std::error::Error for PatchError {}

/// The steps that make `target` of `base`, which stands at `path` of a document.
///
/// They go as deep as pays: never are they longer than one step that replaces the whole value. The order of keys is not
/// a difference. Keys that clients in JavaScript refuse to touch are changed by replacing the object they are in.
pub fn diff(base: &Value, target: &Value, path: &str) -> Vec<PatchOp> {
    let mut differ = Differ { path: path.to_owned(), steps: Vec::new(), bytes: 0, most: usize::MAX };
    if base != target {
        differ.value(base, target);
    }
    differ.steps
}

/// A key as it stands in a JSON Pointer.
pub fn escape(key: &str) -> Cow<'_, str> {
    if key.contains(['~', '/']) { key.replace('~', "~0").replace('/', "~1").into() } else { key.into() }
}

/// A difference in the making.
struct Differ {
    /// Where in the document it is at.
    path: String,
    steps: Vec<PatchOp>,
    /// How long the steps are as JSON.
    bytes: usize,
    /// No more bytes pay: a value around this one is told as a whole then.
    most: usize,
}

impl Differ {
    /// Adds the shorter of two: steps within a value that differs, or one that replaces it. As soon as they are the longer ones
    /// the steps are given up, so that they never take more memory than the value: paths repeat long keys.
    fn value(&mut self, base: &Value, target: &Value) {
        let (steps, bytes, most) = (self.steps.len(), self.bytes, self.most);
        let whole = r#"{"op":"replace","path":,"value":},"#.len() + length(&self.path) + length(target);
        self.most = most.min(bytes.saturating_add(whole));
        let is_told = match (base, target) {
            (Value::Object(base), Value::Object(target)) => self.object(base, target),
            (Value::Array(base), Value::Array(target)) => self.array(base, target),
            _ => false,
        };
        self.most = most;
        if !is_told {
            self.steps.truncate(steps);
            self.steps.push(PatchOp::Replace { path: self.path.clone(), value: target.clone() });
            self.bytes = bytes.saturating_add(whole);
        }
    }

    /// Whether the difference could be told key by key, and that is worth it.
    fn object(&mut self, base: &Object, target: &Object) -> bool {
        let gone = base.iter().filter(|(key, _)| !target.contains_key(*key)).map(|(key, _)| (key, None));
        let there = target.iter().map(|(key, value)| (key, Some(value)));
        let is_changed = |(key, value): &(&String, Option<&Value>)| base.get(*key) != *value;
        let changed: Vec<_> = gone.chain(there.filter(is_changed)).collect();
        // The library by which the official client applies patches refuses these, for fear of prototypes.
        let is_in_constructor = self.path.ends_with("/constructor");
        let is_refused = |key: &str| key == "__proto__" || (key == "prototype" && is_in_constructor);
        if changed.iter().any(|(key, _)| is_refused(key)) {
            return false;
        }
        changed.into_iter().all(|(key, value)| {
            self.below(&escape(key), |differ| match (base.get(key), value) {
                (Some(base), Some(value)) => differ.value(base, value),
                (None, Some(value)) => differ.add(value),
                (_, None) => differ.remove(),
            })
        })
    }

    /// What both begin and end with stays; what is between is changed in place, then taken away or added to.
    fn array(&mut self, base: &[Value], target: &[Value]) -> bool {
        let start = base.iter().zip(target).take_while(|(base, target)| base == target).count();
        let (base, target) = (base.get(start..).unwrap_or_default(), target.get(start..).unwrap_or_default());
        let from_end = base.iter().rev().zip(target.iter().rev());
        let end = from_end.take_while(|(base, target)| base == target).count();
        let base = base.get(..base.len() - end).unwrap_or_default();
        let target = target.get(..target.len() - end).unwrap_or_default();
        let changed = base.iter().zip(target).enumerate().filter(|(_, (base, target))| base != target);
        let mut is_worth_it = true;
        for (index, (base, target)) in changed {
            is_worth_it =
                is_worth_it && self.below(&(start + index).to_string(), |differ| differ.value(base, target));
        }
        for index in (target.len()..base.len()).rev() {
            is_worth_it = is_worth_it && self.below(&(start + index).to_string(), Self::remove);
        }
        for (index, value) in target.iter().enumerate().skip(base.len()) {
            is_worth_it = is_worth_it && self.below(&(start + index).to_string(), |differ| differ.add(value));
        }
        is_worth_it
    }

    fn add(&mut self, value: &Value) {
        self.push(PatchOp::Add { path: self.path.clone(), value: value.clone() });
    }

    fn remove(&mut self) {
        self.push(PatchOp::Remove { path: self.path.clone() });
    }

    fn push(&mut self, step: PatchOp) {
        self.bytes = self.bytes.saturating_add(length(&step)).saturating_add(",".len());
        self.steps.push(step);
    }

    /// Does something one level deeper. Whether the steps are still worth it.
    fn below(&mut self, token: &str, act: impl FnOnce(&mut Self)) -> bool {
        let length = self.path.len();
        self.path.push('/');
        self.path.push_str(token);
        act(self);
        self.path.truncate(length);
        self.bytes <= self.most
    }
}

/// How long something is as JSON.
fn length(value: &impl Serialize) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // What cannot be written is never the shorter one.
    match serde_json::to_writer(&mut count, value) {
        Ok(()) => count.0,
        Err(_) => usize::MAX / 2,
    }
}

/// Applies a patch: all of it, or nothing if a step fails.
pub fn apply(document: &mut Value, patch: &[PatchOp]) -> Result<(), PatchError> {
    let mut next = document.clone();
    for (step, op) in patch.iter().enumerate() {
        apply_step(&mut next, op).map_err(|message| PatchError { step, message })?;
    }
    *document = next;
    Ok(())
}

fn apply_step(document: &mut Value, op: &PatchOp) -> Result<(), String> {
    match op {
        PatchOp::Add { path, value } => add(document, path, value.clone()),
        PatchOp::Remove { path } => remove(document, path).map(drop),
        PatchOp::Replace { path, value } => {
            *find_mut(document, &tokens(path)?, path)? = value.clone();
            Ok(())
        }
        PatchOp::Move { from, path } => {
            if path.strip_prefix(from.as_str()).is_some_and(|rest| rest.starts_with('/')) {
                return Err(format!("`{from}` cannot be moved into itself, to `{path}`"));
            }
            let value = remove(document, from)?;
            add(document, path, value)
        }
        PatchOp::Copy { from, path } => {
            let value = find_mut(document, &tokens(from)?, from)?.clone();
            add(document, path, value)
        }
        PatchOp::Test { path, value } => {
            let found = find_mut(document, &tokens(path)?, path)?;
            if is_same(found, value) { Ok(()) } else { Err(format!("at `{path}` is another value")) }
        }
    }
}

/// The keys that a pointer goes through.
fn tokens(path: &str) -> Result<Vec<String>, String> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let Some(rest) = path.strip_prefix('/') else {
        return Err(format!("`{path}` is no JSON Pointer: it must be empty or begin with `/`"));
    };
    let unescape = |token: &str| {
        let plain = token.replace("~1", "").replace("~0", "");
        if plain.contains('~') {
            return Err(format!("`{path}` is no JSON Pointer: `~` stands before 0 or 1 only"));
        }
        Ok(token.replace("~1", "/").replace("~0", "~"))
    };
    rest.split('/').map(unescape).collect()
}

/// A place in an array. Leading zeros are not allowed.
fn index_of(token: &str) -> Option<usize> {
    let is_number =
        token == "0" || (!token.starts_with('0') && token.bytes().all(|byte| byte.is_ascii_digit()));
    if is_number { token.parse().ok() } else { None }
}

fn find_mut<'d>(document: &'d mut Value, tokens: &[String], path: &str) -> Result<&'d mut Value, String> {
    let mut found = document;
    for token in tokens {
        let below = match found {
            Value::Object(object) => object.get_mut(token),
            Value::Array(array) => index_of(token).and_then(|index| array.get_mut(index)),
            _ => None,
        };
        found = below.ok_or_else(|| format!("there is nothing at `{path}`"))?;
    }
    Ok(found)
}

fn add(document: &mut Value, path: &str, value: Value) -> Result<(), String> {
    let tokens = tokens(path)?;
    let Some((last, above)) = tokens.split_last() else {
        *document = value;
        return Ok(());
    };
    match find_mut(document, above, path)? {
        Value::Object(object) => {
            object.insert(last.clone(), value);
        }
        Value::Array(array) => {
            let index = if last == "-" { Some(array.len()) } else { index_of(last) };
            let index = index.filter(|index| *index <= array.len());
            array.insert(index.ok_or_else(|| format!("`{path}` is no place in the array"))?, value);
        }
        other => return Err(format!("nothing can be put at `{path}`, since it is in {}", kind_of(other))),
    }
    Ok(())
}

fn remove(document: &mut Value, path: &str) -> Result<Value, String> {
    let tokens = tokens(path)?;
    let Some((last, above)) = tokens.split_last() else {
        return Ok(std::mem::take(document));
    };
    let removed = match find_mut(document, above, path)? {
        Value::Object(object) => object.shift_remove(last),
        Value::Array(array) => {
            index_of(last).filter(|index| *index < array.len()).map(|index| array.remove(index))
        }
        _ => None,
    };
    removed.ok_or_else(|| format!("there is nothing at `{path}`"))
}

/// Whether two values are the same: numbers by what they are worth.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let is_in_other = |(key, value)| other.get(key).is_some_and(|found| is_same(value, found));
            one.len() == other.len() && one.iter().all(is_in_other)
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn ops(patch: Value) -> Vec<PatchOp> {
        serde_json::from_value(patch).unwrap()
    }

    fn form(base: &Value, target: &Value) -> Value {
        serde_json::to_value(diff(base, target, "")).unwrap()
    }

    #[test]
    fn a_difference_names_what_changed_and_nothing_else() {
        let same = "x".repeat(100);
        let base =
            json!({"same": same, "deep": {"a/b": {"m~n": 1, "k": same}}, "gone": 1, "list": [1, 2, 3, same]});
        let target =
            json!({"new": null, "list": [1, 9, same], "deep": {"a/b": {"k": same, "m~n": 2}}, "same": same});
        assert_eq!(
            form(&base, &target),
            json!([
                {"op": "remove", "path": "/gone"},
                {"op": "add", "path": "/new", "value": null},
                {"op": "replace", "path": "/list/1", "value": 9},
                {"op": "remove", "path": "/list/2"},
                {"op": "replace", "path": "/deep/a~1b/m~0n", "value": 2},
            ])
        );
        assert_eq!(
            form(&json!([1, 4]), &json!([1, 2, 3, 4])),
            json!([
                {"op": "replace", "path": "", "value": [1, 2, 3, 4]},
            ])
        );
        assert_eq!(
            form(&json!({"a": [same, 4]}), &json!({"a": [same, 2, 4]})),
            json!([
                {"op": "add", "path": "/a/1", "value": 2},
            ])
        );
    }

    #[test]
    fn a_difference_begins_at_the_path_it_is_given() {
        let steps =
            diff(&json!({"a": 1, "long": "x".repeat(50)}), &json!({"a": 2, "long": "x".repeat(50)}), "/at");
        assert_eq!(steps, [PatchOp::Replace { path: "/at/a".to_owned(), value: json!(2) }]);
        assert_eq!(diff(&json!({"a": 1, "b": 2}), &json!({"b": 2, "a": 1}), "/at"), []);
    }

    #[test]
    fn a_key_that_clients_refuse_is_changed_with_its_object() {
        let long = "x".repeat(100);
        let base =
            json!({"a": {"__proto__": 1, "k": long}, "constructor": {"prototype": {"x": 1}, "k": long}});
        let target =
            json!({"a": {"__proto__": 2, "k": long}, "constructor": {"prototype": {"x": 2}, "k": long}});
        let steps = diff(&base, &target, "");
        let is_refused =
            |step: &PatchOp| serde_json::to_value(step).unwrap()["path"].as_str().unwrap().contains("proto");
        assert!(!steps.is_empty() && !steps.iter().any(is_refused), "{steps:?}");
    }

    #[test]
    fn each_operation_does_what_the_rfc_says() {
        for (document, patch, expected) in [
            (json!({"a": [1]}), json!([{"op": "add", "path": "/a/-", "value": 2}]), json!({"a": [1, 2]})),
            (json!([1, 2]), json!([{"op": "add", "path": "/1", "value": 9}]), json!([1, 9, 2])),
            (json!({"a": 1}), json!([{"op": "add", "path": "", "value": 9}]), json!(9)),
            (json!({"a": 1, "b": 2}), json!([{"op": "remove", "path": "/a"}]), json!({"b": 2})),
            (json!([1, 2]), json!([{"op": "remove", "path": "/0"}]), json!([2])),
            (json!(1), json!([{"op": "remove", "path": ""}]), Value::Null),
            (json!({"~/": 1}), json!([{"op": "replace", "path": "/~0~1", "value": 2}]), json!({"~/": 2})),
            (json!({"": 1}), json!([{"op": "replace", "path": "/", "value": 2}]), json!({"": 2})),
            (
                json!({"a": {"b": 1}}),
                json!([{"op": "move", "from": "/a/b", "path": "/c"}]),
                json!({"a": {}, "c": 1}),
            ),
            (json!({"a": 1}), json!([{"op": "move", "from": "/a", "path": "/a"}]), json!({"a": 1})),
            (json!({"a": 1}), json!([{"op": "copy", "from": "/a", "path": "/b"}]), json!({"a": 1, "b": 1})),
            (
                json!({"a": [1, {"b": 1.0}]}),
                json!([{"op": "test", "path": "/a", "value": [1.0, {"b": 1}]}]),
                json!({"a": [1, {"b": 1.0}]}),
            ),
        ] {
            let mut changed = document.clone();
            apply(&mut changed, &ops(patch.clone())).unwrap();
            assert_eq!(changed, expected, "{patch}");
        }
    }

    #[test]
    fn a_patch_with_a_step_that_fails_changes_nothing() {
        for wrong in [
            json!({"op": "add", "path": "/x/y", "value": 1}),
            json!({"op": "add", "path": "/list/3", "value": 1}),
            json!({"op": "add", "path": "/list/01", "value": 1}),
            json!({"op": "add", "path": "/list/+1", "value": 1}),
            json!({"op": "add", "path": "/n/x", "value": 1}),
            json!({"op": "add", "path": "n", "value": 1}),
            json!({"op": "add", "path": "/~2", "value": 1}),
            json!({"op": "remove", "path": "/list/-"}),
            json!({"op": "remove", "path": "/list/2"}),
            json!({"op": "remove", "path": "/x"}),
            json!({"op": "replace", "path": "/x", "value": 1}),
            json!({"op": "move", "from": "/x", "path": "/y"}),
            json!({"op": "move", "from": "/deep", "path": "/deep/er"}),
            json!({"op": "copy", "from": "/x", "path": "/y"}),
            json!({"op": "test", "path": "/n", "value": 2}),
        ] {
            let mut document = json!({"list": [1, 2], "n": 1, "deep": {}});
            let patch = ops(json!([{"op": "add", "path": "/first", "value": 1}, wrong]));
            let error = apply(&mut document, &patch).unwrap_err();
            assert_eq!((error.step, document), (1, json!({"list": [1, 2], "n": 1, "deep": {}})), "{wrong}");
        }
    }

    /// Values that are often alike, with keys that need care.
    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..3).prop_map(Value::from),
            "[a-c]{0,12}".prop_map(Value::from),
        ];
        let key = prop::sample::select(vec![
            "",
            "a",
            "b",
            "/",
            "~",
            "a/b",
            "~1",
            "~0",
            "0",
            "-",
            "__proto__",
            "constructor",
            "prototype",
            "é\n\"",
        ]);
        leaf.prop_recursive(5, 60, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((key.clone(), inner), 0..6).prop_map(|entries| {
                    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Object>().into()
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_difference_leads_from_one_to_the_other_and_is_never_longer_than_the_whole(
            base in any_json(), target in any_json(),
        ) {
            let steps = diff(&base, &target, "");
            let mut changed = base.clone();
            apply(&mut changed, &steps).unwrap();
            prop_assert_eq!(&changed, &target);
            let whole = [PatchOp::Replace { path: String::new(), value: target.clone() }];
            prop_assert!(length(&steps) <= length(&whole));
            prop_assert_eq!(steps.is_empty(), base == target);
            // What is read back from the wire is the same patch.
            let read: Vec<PatchOp> = serde_json::from_str(&serde_json::to_string(&steps).unwrap()).unwrap();
            prop_assert_eq!(read, steps);
        }
    }
}
