-- What a run differs in from the configuration; NULL: in nothing.
ALTER TABLE prompts ADD COLUMN options BLOB;

-- What all runs of a session used, added up as they use it, so that no status has to read them all.
ALTER TABLE sessions ADD COLUMN usage BLOB;
UPDATE sessions SET usage = (
    SELECT CAST(json_object(
        'input_tokens', sum(json_extract(CAST(usage AS TEXT), '$.input_tokens')),
        'output_tokens', sum(json_extract(CAST(usage AS TEXT), '$.output_tokens')),
        'cache_read_tokens', sum(json_extract(CAST(usage AS TEXT), '$.cache_read_tokens')),
        'cache_write_tokens', sum(json_extract(CAST(usage AS TEXT), '$.cache_write_tokens')),
        'cost', sum(json_extract(CAST(usage AS TEXT), '$.cost')),
        'estimated', json(CASE WHEN max(json_extract(CAST(usage AS TEXT), '$.estimated')) THEN 'true' ELSE 'false' END)
    ) AS BLOB) FROM runs WHERE runs.session_id = sessions.id AND runs.usage IS NOT NULL HAVING count(*) > 0
);

-- A history begins at the session's last summary.
CREATE INDEX messages_summaries ON messages (session_id, seq) WHERE summary = 1;
