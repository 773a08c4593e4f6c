-- What a session waits for: its open questions, and the ids of calls whose answer comes later. JSON arrays, NULL where
-- there is none. An index over the log, written with every append.
ALTER TABLE sessions ADD COLUMN questions TEXT;
ALTER TABLE sessions ADD COLUMN awaited_calls TEXT;
CREATE INDEX sessions_with_questions ON sessions (app, user) WHERE questions IS NOT NULL;

-- When it was saved, seconds since 1970. What was there before counts from today on.
ALTER TABLE artifacts ADD COLUMN saved_at REAL NOT NULL DEFAULT 0;
UPDATE artifacts SET saved_at = unixepoch('subsec');
CREATE INDEX artifacts_by_age ON artifacts (app, saved_at);
ALTER TABLE credentials ADD COLUMN saved_at REAL NOT NULL DEFAULT 0;
UPDATE credentials SET saved_at = unixepoch('subsec');
CREATE INDEX memories_by_age ON memories (app, time);
