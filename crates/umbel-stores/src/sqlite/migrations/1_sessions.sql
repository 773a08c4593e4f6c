-- A session. Its id is also its incarnation: AUTOINCREMENT never gives one out twice.
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    app TEXT NOT NULL,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    parent INTEGER,
    -- The state it was created with; that with all deltas applied is in session_state.
    first_state TEXT NOT NULL,
    version INTEGER NOT NULL,
    updated_at REAL NOT NULL,
    epoch INTEGER NOT NULL,
    -- The lease; all three are NULL while nobody holds it. Milliseconds.
    owner TEXT,
    lease_until INTEGER,
    lease_ttl INTEGER,
    UNIQUE (app, user, name)
);
CREATE INDEX sessions_by_parent ON sessions (parent) WHERE parent IS NOT NULL;
CREATE INDEX sessions_by_lease ON sessions (lease_until) WHERE lease_until IS NOT NULL;

-- Events and run records. A record has no time. Rows are added at the end of the table, whatever session they
-- belong to, so that a group of writes touches few pages.
CREATE TABLE log (
    place INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    version INTEGER NOT NULL,
    time REAL,
    body TEXT NOT NULL
);
CREATE UNIQUE INDEX log_by_session ON log (session, version);

-- One row per key, so that a delta costs what it changes. Ids keep the order in which keys were first set.
CREATE TABLE session_state (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    UNIQUE (session, key)
);

-- Users and apps as far as they have a state; user is '' for the app itself.
CREATE TABLE scopes (
    id INTEGER PRIMARY KEY,
    app TEXT NOT NULL,
    user TEXT NOT NULL,
    version INTEGER NOT NULL,
    UNIQUE (app, user)
);
CREATE TABLE shared_state (
    id INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    UNIQUE (scope, key)
);
