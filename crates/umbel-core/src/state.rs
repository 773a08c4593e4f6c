//! What a session remembers: keys in four scopes.

use std::sync::Arc;

use serde_json::Value;

use crate::json::{Object, empty_object};

/// How far a state key reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateScope {
    /// This session. Keys without a known prefix.
    Session,
    /// All sessions of the user: `user:`.
    User,
    /// All sessions of the app: `app:`.
    App,
    /// This run only, never stored: `temp:`.
    Temp,
}

impl StateScope {
    /// The prefix of its keys.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Session => "",
            Self::User => "user:",
            Self::App => "app:",
            Self::Temp => "temp:",
        }
    }

    /// Splits a key into its scope and the rest. An unknown prefix is part of a session key.
    pub fn split(key: &str) -> (Self, &str) {
        for scope in [Self::User, Self::App, Self::Temp] {
            if let Some(rest) = key.strip_prefix(scope.prefix()) {
                return (scope, rest);
            }
        }
        (Self::Session, key)
    }

    /// Whether a key of the session is Umbel's own: handlers keep what they need there. Nobody outside sees it, or
    /// writes it.
    pub fn is_internal(key: &str) -> bool {
        key.starts_with("_umbel:")
    }
}

/// The state as one session sees it. Clones share.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    session: Arc<Object>,
    user: Arc<Object>,
    app: Arc<Object>,
    temp: Arc<Object>,
}

impl Default for State {
    fn default() -> Self {
        Self::new(empty_object(), empty_object(), empty_object())
    }
}

impl State {
    /// The state of a session with the keys of its user and app, without prefixes.
    pub fn new(session: Arc<Object>, user: Arc<Object>, app: Arc<Object>) -> Self {
        Self { session, user, app, temp: empty_object() }
    }

    /// The value of a key, its prefix included.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let (scope, key) = StateScope::split(key);
        self.scope(scope).get(key)
    }

    /// Sets a key, its prefix included. A value replaces; null is a value.
    pub fn set(&mut self, key: &str, value: Value) {
        let (scope, key) = StateScope::split(key);
        Arc::make_mut(self.scope_mut(scope)).insert(key.to_owned(), value);
    }

    /// Applies the keys that an event sets.
    pub fn apply(&mut self, delta: &Object) {
        for (key, value) in delta {
            self.set(key, value.clone());
        }
    }

    /// The keys of one scope, without prefix.
    pub fn scope(&self, scope: StateScope) -> &Arc<Object> {
        match scope {
            StateScope::Session => &self.session,
            StateScope::User => &self.user,
            StateScope::App => &self.app,
            StateScope::Temp => &self.temp,
        }
    }

    /// Puts another object in the place of a whole scope.
    pub fn replace_scope(&mut self, scope: StateScope, keys: Arc<Object>) {
        *self.scope_mut(scope) = keys;
    }

    /// All keys with their prefixes.
    pub fn to_object(&self) -> Object {
        let mut all = Object::new();
        for scope in [StateScope::Session, StateScope::App, StateScope::User, StateScope::Temp] {
            for (key, value) in self.scope(scope).iter() {
                all.insert(format!("{}{key}", scope.prefix()), value.clone());
            }
        }
        all
    }

    fn scope_mut(&mut self, scope: StateScope) -> &mut Arc<Object> {
        match scope {
            StateScope::Session => &mut self.session,
            StateScope::User => &mut self.user,
            StateScope::App => &mut self.app,
            StateScope::Temp => &mut self.temp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_prefix_belongs_to_the_session() {
        assert_eq!(StateScope::split("sys:x"), (StateScope::Session, "sys:x"));
        assert_eq!(StateScope::split("user:"), (StateScope::User, ""));
        assert_eq!(StateScope::split("app:a:b"), (StateScope::App, "a:b"));
    }

    #[test]
    fn a_snapshot_does_not_see_later_writes() {
        let mut state = State::default();
        state.set("k", 1.into());
        let before = state.clone();
        state.set("k", Value::Null);
        assert_eq!(before.get("k"), Some(&1.into()));
        assert_eq!(state.get("k"), Some(&Value::Null));
    }
}
