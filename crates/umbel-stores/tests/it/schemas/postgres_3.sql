ALTER TABLE umbel_sessions ADD COLUMN questions text[];
ALTER TABLE umbel_sessions ADD COLUMN awaited_calls text[];
CREATE INDEX umbel_sessions_with_questions ON umbel_sessions (app, user_id) WHERE questions IS NOT NULL;
ALTER TABLE umbel_artifacts ADD COLUMN saved_at double precision NOT NULL DEFAULT extract(epoch FROM now());
CREATE INDEX umbel_artifacts_by_age ON umbel_artifacts (app, saved_at);
ALTER TABLE umbel_credentials ADD COLUMN saved_at double precision NOT NULL DEFAULT extract(epoch FROM now());
CREATE INDEX umbel_memories_by_age ON umbel_memories (app, time);

-- What was in a database of that version, besides what is in an older one.
INSERT INTO umbel_sessions (app, user_id, name, parent, first_state, version, updated_at, epoch) VALUES
    ('app', 'bob', 's2', NULL, '{"k":0}', 1, 2.5, 50331649);
INSERT INTO umbel_log (session, version, time, body)
    SELECT id, 1, 1.5, '{"invocationId":"e-1","author":"user","timestamp":1.5,"content":{"role":"user","parts":[{"text":"Où?"}]}}'
    FROM umbel_sessions WHERE user_id = 'bob';
