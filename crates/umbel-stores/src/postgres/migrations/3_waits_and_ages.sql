-- What a session waits for: its open questions, and the ids of calls whose answer comes later, each as JSON. NULL where
-- there is none. An index over the log, written with every append.
ALTER TABLE umbel_sessions ADD COLUMN questions text[];
ALTER TABLE umbel_sessions ADD COLUMN awaited_calls text[];
CREATE INDEX umbel_sessions_with_questions ON umbel_sessions (app, user_id) WHERE questions IS NOT NULL;

-- When it was saved, seconds since 1970. What was there before counts from today on.
ALTER TABLE umbel_artifacts ADD COLUMN saved_at double precision NOT NULL DEFAULT extract(epoch FROM now());
CREATE INDEX umbel_artifacts_by_age ON umbel_artifacts (app, saved_at);
ALTER TABLE umbel_credentials ADD COLUMN saved_at double precision NOT NULL DEFAULT extract(epoch FROM now());
CREATE INDEX umbel_memories_by_age ON umbel_memories (app, time);
