-- The title of a session, and the bytes of its log and its first state: a list and a quota read no log.
ALTER TABLE umbel_sessions ADD COLUMN title text;
ALTER TABLE umbel_sessions ADD COLUMN bytes bigint NOT NULL DEFAULT 0;
UPDATE umbel_sessions s SET bytes = octet_length(s.first_state)
    + (SELECT coalesce(sum(octet_length(l.body)), 0) FROM umbel_log l WHERE l.session = s.id);
