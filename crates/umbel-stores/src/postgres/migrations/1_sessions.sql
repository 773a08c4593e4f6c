-- A session. Its id is also its incarnation: a sequence never gives one out twice.
CREATE TABLE umbel_sessions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    app text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    parent bigint,
    -- The state it was created with; that with all deltas applied is in umbel_session_state.
    first_state text NOT NULL,
    version bigint NOT NULL,
    updated_at double precision NOT NULL,
    epoch bigint NOT NULL,
    -- The lease; all three are NULL while nobody holds it. Milliseconds, by the clock of this server.
    owner text,
    lease_until bigint,
    lease_ttl bigint,
    UNIQUE (app, user_id, name)
);
CREATE INDEX umbel_sessions_by_parent ON umbel_sessions (parent) WHERE parent IS NOT NULL;
CREATE INDEX umbel_sessions_by_lease ON umbel_sessions (lease_until) WHERE lease_until IS NOT NULL;

-- Events and run records. A record has no time. Text, since JSON with a NUL is more than jsonb takes.
CREATE TABLE umbel_log (
    session bigint NOT NULL,
    version bigint NOT NULL,
    time double precision,
    body text NOT NULL,
    PRIMARY KEY (session, version)
);

-- One row per key, so that a delta costs what it changes. Ids keep the order in which keys were first set.
CREATE TABLE umbel_session_state (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    value text NOT NULL,
    UNIQUE (session, key)
);

-- Users and apps as far as they have a state; user_id is '' for the app itself.
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
