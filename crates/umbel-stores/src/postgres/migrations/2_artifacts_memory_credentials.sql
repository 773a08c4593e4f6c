-- session is '' for what belongs to the user. The bytes of inline data are stored as they are, the rest as JSON.
CREATE TABLE umbel_artifacts (
    app text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    session text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    part text NOT NULL,
    data bytea,
    PRIMARY KEY (app, user_id, session, name, version)
);

CREATE TABLE umbel_memories (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    app text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    session text COLLATE "C" NOT NULL,
    author text NOT NULL,
    time double precision NOT NULL,
    content text NOT NULL,
    words tsvector NOT NULL
);
CREATE INDEX umbel_memories_by_session ON umbel_memories (app, user_id, session);
CREATE INDEX umbel_memories_by_word ON umbel_memories USING gin (words);

-- sealed is a nonce and what was encrypted with the key of that name.
CREATE TABLE umbel_credentials (
    app text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    key_id text NOT NULL,
    sealed bytea NOT NULL,
    PRIMARY KEY (app, user_id, name)
);
