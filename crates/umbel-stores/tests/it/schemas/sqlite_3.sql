ALTER TABLE sessions ADD COLUMN questions TEXT;
ALTER TABLE sessions ADD COLUMN awaited_calls TEXT;
CREATE INDEX sessions_with_questions ON sessions (app, user) WHERE questions IS NOT NULL;
ALTER TABLE artifacts ADD COLUMN saved_at REAL NOT NULL DEFAULT 0;
UPDATE artifacts SET saved_at = unixepoch('subsec');
CREATE INDEX artifacts_by_age ON artifacts (app, saved_at);
ALTER TABLE credentials ADD COLUMN saved_at REAL NOT NULL DEFAULT 0;
UPDATE credentials SET saved_at = unixepoch('subsec');
CREATE INDEX memories_by_age ON memories (app, time);

-- What was in a database of that version, besides what is in an older one.
INSERT INTO sessions (id, app, user, name, parent, first_state, version, updated_at, epoch) VALUES
    (3, 'app', 'bob', 's2', NULL, '{"k":0}', 1, 2.5, 50331649);
INSERT INTO log (session, version, time, body) VALUES
    (3, 1, 1.5, '{"invocationId":"e-1","author":"user","timestamp":1.5,"content":{"role":"user","parts":[{"text":"Où?"}]}}');
