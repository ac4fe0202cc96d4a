"""An append may name a sequence for each message, with holes between them.

A publisher of the release before numbers its messages itself, one after the other, so the first
sequence of an append says all. A program whose messages come from another queue has numbers
already: the positions there. They have holes where a message led to nothing, and several messages
have the same number where one led to several.

    the log has the messages of a publisher up to `last_sequence`

* Sequences of an append never fall. So what the log has of a repeated append is its beginning.
* Messages with the same sequence are in the same append. So the log has all of them or none, and
  their order among themselves need not be the same when they are appended again.
* The row of the publisher is one for the whole log, and an append is one transaction over all of
  its partitions. So a repetition is found wherever it is routed, also after a resize or a split,
  and no partition can lag behind another one.

Both functions are those of log_0008 but for the sequences. Those stay for publishers that number
their messages themselves, in the same rows of `publishers`.
"""

from __future__ import annotations

from alembic import op

from migrations.log.versions import v0004_ranges, v0008_sizes

revision = "log_0009"
down_revision = "log_0008"
branch_labels = None
depends_on = None
serves_from = "log_0001"

_CHANGES = (
    (
        "CREATE OR REPLACE FUNCTION counterpoise_log.append",
        "CREATE FUNCTION counterpoise_log.append_numbered",
    ),
    ("p_first_sequence bigint,", "p_sequences bigint[],"),
    (
        "(p_first_sequence >= 0) IS NOT TRUE",
        """cardinality(p_sequences) IS DISTINCT FROM v_messages
        OR (p_sequences[1] >= 0) IS NOT TRUE
        OR EXISTS (
            SELECT FROM unnest(p_sequences) WITH ORDINALITY AS s (sequence, nth)
            WHERE (sequence >= p_sequences[greatest(nth - 1, 1)::integer]) IS NOT TRUE
        )""",
    ),
    (
        "IF array_ndims(p_values) <> 1 OR array_lower(p_values, 1) <> 1",
        """IF array_ndims(p_sequences) <> 1 OR array_lower(p_sequences, 1) <> 1
        OR array_ndims(p_values) <> 1 OR array_lower(p_values, 1) <> 1""",
    ),
    (
        "v_skip := least(greatest(v_last + 1 - p_first_sequence, 0), v_messages);",
        "SELECT count(*) INTO v_skip FROM unnest(p_sequences) AS s WHERE s <= v_last;",
    ),
    (
        "SET last_sequence = p_first_sequence + v_messages - 1,",
        "SET last_sequence = p_sequences[v_messages::integer],",
    ),
)


def _numbered(function: str) -> str:
    for before, after in _CHANGES:
        assert function.count(before) == 1, before
        function = function.replace(before, after)
    return function


APPEND_NUMBERED = (
    _numbered(v0008_sizes.APPEND)
    + """
REVOKE ALL ON FUNCTION counterpoise_log.append_numbered FROM PUBLIC;
"""
)
APPEND_NUMBERED_BY_RANGE = (
    _numbered(v0008_sizes.APPEND_BY_RANGE)
    + """
REVOKE ALL ON FUNCTION counterpoise_log.append_numbered_by_range FROM PUBLIC;
"""
)

_FUNCTIONS = "counterpoise_log.append_numbered, counterpoise_log.append_numbered_by_range"

# Under both kinds of roles: clients keep the credentials that they got before the migration.
GRANTS = f"""
DO $$
DECLARE
    v_role text;
BEGIN
    FOREACH v_role IN ARRAY ARRAY['counterpoise_log_client', 'counterpoise_log_publisher'] LOOP
        IF to_regrole(v_role) IS NOT NULL THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION {_FUNCTIONS} TO %I', v_role);
        END IF;
    END LOOP;
END $$;
"""
_FORMER = "counterpoise_log.append, counterpoise_log.next_sequence,"
_ASKED = "'counterpoise_log.ranges(text)', 'EXECUTE')"
assert v0004_ranges.GRANT_CLIENTS.count(_FORMER) == 1
assert v0004_ranges.GRANT_CLIENTS.count(_ASKED) == 1
GRANT_CLIENTS = v0004_ranges.GRANT_CLIENTS.replace(
    _FORMER, f"{_FORMER}\n            {_FUNCTIONS},"
).replace(
    _ASKED,
    """'counterpoise_log.append_numbered(text, integer, text, bigint[], integer[],
                                  bytea[], text[], text[], timestamptz[])', 'EXECUTE')""",
)


def upgrade() -> None:
    for script in (APPEND_NUMBERED, APPEND_NUMBERED_BY_RANGE, GRANTS, GRANT_CLIENTS):
        op.execute(script)


def downgrade() -> None:
    op.execute(v0004_ranges.GRANT_CLIENTS)
    op.execute(f"DROP FUNCTION {_FUNCTIONS}")
