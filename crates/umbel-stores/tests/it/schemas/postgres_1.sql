CREATE TABLE umbel_sessions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    app text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    parent bigint,
    first_state text NOT NULL,
    version bigint NOT NULL,
    updated_at double precision NOT NULL,
    epoch bigint NOT NULL,
    owner text,
    lease_until bigint,
    lease_ttl bigint,
    UNIQUE (app, user_id, name)
);
CREATE INDEX umbel_sessions_by_parent ON umbel_sessions (parent) WHERE parent IS NOT NULL;
CREATE INDEX umbel_sessions_by_lease ON umbel_sessions (lease_until) WHERE lease_until IS NOT NULL;

CREATE TABLE umbel_log (
    session bigint NOT NULL,
    version bigint NOT NULL,
    time double precision,
    body text NOT NULL,
    PRIMARY KEY (session, version)
);

CREATE TABLE umbel_session_state (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    value text NOT NULL,
    UNIQUE (session, key)
);

CREATE TABLE umbel_scopes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    app text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    UNIQUE (app, user_id)
);
CREATE TABLE umbel_shared_state (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    value text NOT NULL,
    UNIQUE (scope, key)
);

-- What was in a database of that version.
INSERT INTO umbel_sessions (id, app, user_id, name, parent, first_state, version, updated_at, epoch, owner, lease_until, lease_ttl)
OVERRIDING SYSTEM VALUE VALUES
    (1, 'app', 'ann', 's1', NULL, '{"k":0}', 3, 2.5, 16777218, NULL, NULL, NULL),
    (2, 'app', 'ann', 'child', 1, '{}', 0, 1.5, 33554433, 'someone', 1000, 500);
INSERT INTO umbel_log (session, version, time, body) VALUES
    (1, 1, 1.5, '{"invocationId":"e-1","author":"agent","timestamp":1.5,"content":{"role":"model","parts":[{"text":"one"}]}}'),
    (1, 2, 2.5, '{"invocationId":"e-1","author":"agent","timestamp":2.5,"content":{"role":"model","parts":[{"text":"two"}]}}'),
    (1, 3, NULL, '{"step":"ended","outcome":{"kind":"finished"}}');
INSERT INTO umbel_session_state (session, key, value) VALUES (1, 'k', '[1]');
INSERT INTO umbel_scopes (app, user_id, version) VALUES ('app', 'ann', 4), ('app', '', 2);
INSERT INTO umbel_shared_state (scope, key, value) VALUES (1, 'u', '"x"'), (2, 'a', 'true');
SELECT setval(pg_get_serial_sequence('umbel_sessions', 'id'), 2);
