CREATE TABLE artifacts (
    id INTEGER PRIMARY KEY,
    app TEXT NOT NULL,
    user TEXT NOT NULL,
    session TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    part TEXT NOT NULL,
    data BLOB,
    UNIQUE (app, user, session, name, version)
);

CREATE TABLE memories (
    id INTEGER PRIMARY KEY,
    app TEXT NOT NULL,
    user TEXT NOT NULL,
    session TEXT NOT NULL,
    author TEXT NOT NULL,
    time REAL NOT NULL,
    content TEXT NOT NULL
);
CREATE INDEX memories_by_session ON memories (app, user, session);
CREATE VIRTUAL TABLE memory_words USING fts5 (
    owner, words, content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 0'
);

CREATE TABLE credentials (
    app TEXT NOT NULL,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    key_id TEXT NOT NULL,
    sealed BLOB NOT NULL,
    PRIMARY KEY (app, user, name)
);

-- What was in a database of that version, besides what is in an older one.
INSERT INTO artifacts (app, user, session, name, version, part, data) VALUES
    ('app', 'ann', 's1', 'file', 0, '{"text":"hello"}', NULL);
INSERT INTO memories (id, app, user, session, author, time, content) VALUES
    (1, 'app', 'ann', 's1', 'agent', 1.5, '{"role":"model","parts":[{"text":"one"}]}');
INSERT INTO memory_words (rowid, owner, words) VALUES (1, 'o1', 'one');
INSERT INTO credentials (app, user, name, key_id, sealed) VALUES
    ('app', 'ann', 'mail', 'k1', x'97E4B9440B5C25A1B2422E6F5B8939073702956E58BBE2ADBF7180A4970CA32B210BD39F94799DE0A1BAB5A0D4E4295D');
