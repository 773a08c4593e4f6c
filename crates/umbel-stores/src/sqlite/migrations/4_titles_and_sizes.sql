-- The title of a session, and the bytes of its log and its first state: a list and a quota read no log.
ALTER TABLE sessions ADD COLUMN title TEXT;
ALTER TABLE sessions ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
UPDATE sessions SET bytes = octet_length(first_state)
    + (SELECT coalesce(sum(octet_length(body)), 0) FROM log WHERE session = sessions.id);
