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

CREATE TABLE umbel_credentials (
    app text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    key_id text NOT NULL,
    sealed bytea NOT NULL,
    PRIMARY KEY (app, user_id, name)
);

-- What was in a database of that version, besides what is in an older one.
INSERT INTO umbel_artifacts (app, user_id, session, name, version, part, data) VALUES
    ('app', 'ann', 's1', 'file', 0, '{"text":"hello"}', NULL);
INSERT INTO umbel_memories (app, user_id, session, author, time, content, words) VALUES
    ('app', 'ann', 's1', 'agent', 1.5, '{"role":"model","parts":[{"text":"one"}]}', array_to_tsvector(ARRAY['one']));
INSERT INTO umbel_credentials (app, user_id, name, key_id, sealed) VALUES
    ('app', 'ann', 'mail', 'k1', '\x97E4B9440B5C25A1B2422E6F5B8939073702956E58BBE2ADBF7180A4970CA32B210BD39F94799DE0A1BAB5A0D4E4295D');
