CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    app TEXT NOT NULL,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    parent INTEGER,
    first_state TEXT NOT NULL,
    version INTEGER NOT NULL,
    updated_at REAL NOT NULL,
    epoch INTEGER NOT NULL,
    owner TEXT,
    lease_until INTEGER,
    lease_ttl INTEGER,
    UNIQUE (app, user, name)
);
CREATE INDEX sessions_by_parent ON sessions (parent) WHERE parent IS NOT NULL;
CREATE INDEX sessions_by_lease ON sessions (lease_until) WHERE lease_until IS NOT NULL;

CREATE TABLE log (
    place INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    version INTEGER NOT NULL,
    time REAL,
    body TEXT NOT NULL
);
CREATE UNIQUE INDEX log_by_session ON log (session, version);

CREATE TABLE session_state (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    UNIQUE (session, key)
);

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

-- What was in a database of that version.
INSERT INTO sessions (id, app, user, name, parent, first_state, version, updated_at, epoch, owner, lease_until, lease_ttl)
VALUES
    (1, 'app', 'ann', 's1', NULL, '{"k":0}', 3, 2.5, 16777218, NULL, NULL, NULL),
    (2, 'app', 'ann', 'child', 1, '{}', 0, 1.5, 33554433, 'someone', 1000, 500);
INSERT INTO log (session, version, time, body) VALUES
    (1, 1, 1.5, '{"invocationId":"e-1","author":"agent","timestamp":1.5,"content":{"role":"model","parts":[{"text":"one"}]}}'),
    (1, 2, 2.5, '{"invocationId":"e-1","author":"agent","timestamp":2.5,"content":{"role":"model","parts":[{"text":"two"}]}}'),
    (1, 3, NULL, '{"step":"ended","outcome":{"kind":"finished"}}');
INSERT INTO session_state (session, key, value) VALUES (1, 'k', '[1]');
INSERT INTO scopes (app, user, version) VALUES ('app', 'ann', 4), ('app', '', 2);
INSERT INTO shared_state (scope, key, value) VALUES (1, 'u', '"x"'), (2, 'a', 'true');
