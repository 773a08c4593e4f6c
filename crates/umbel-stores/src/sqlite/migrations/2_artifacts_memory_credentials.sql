-- session is '' for what belongs to the user. The bytes of inline data are stored as they are, the rest as JSON.
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
-- owner is a word that stands for app and user, so that a search never walks through what others said.
CREATE VIRTUAL TABLE memory_words USING fts5 (
    owner, words, content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 0'
);

-- sealed is a nonce and what was encrypted with the key of that name.
CREATE TABLE credentials (
    app TEXT NOT NULL,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    key_id TEXT NOT NULL,
    sealed BLOB NOT NULL,
    PRIMARY KEY (app, user, name)
);
