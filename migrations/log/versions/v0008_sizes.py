"""Each partition knows how large its messages are at most, so readers need not add sizes up.

A reader asks for as many messages as fit into its limit of bytes. To find out how many these are,
the server had to look at the size of each, which means to fetch it: a third of the time of reading
it. An append knows the sizes of its messages. So it keeps the largest one of each partition:

    no message in the positions `sized_from` .. `sized_to` (exclusive) is larger than
    `largest_bytes`, value, key and headers together.

If so many messages of this size are below the limit, no size is looked at. Otherwise each one is,
as before.

* An append continues the range only if it ends where its messages begin; otherwise a new range
  begins with them. So a function of an earlier release, which knows nothing of sizes, never makes
  the range wrong: it leaves it behind.
* One large message must not count for ever. If the range has `FORGOTTEN_AFTER` messages and the
  largest of a batch is less than a fourth of its largest, a new range begins.
"""

from __future__ import annotations

from alembic import op

from migrations.log.versions import v0006_append

revision = "log_0008"
down_revision = "log_0007"
branch_labels = None
depends_on = None
serves_from = "log_0001"

FORGOTTEN_AFTER = 100_000

COLUMNS = """
ALTER TABLE counterpoise_log.partitions
    ADD COLUMN sized_from bigint NOT NULL DEFAULT 0,
    ADD COLUMN sized_to bigint NOT NULL DEFAULT 0,
    ADD COLUMN largest_bytes integer NOT NULL DEFAULT 0;
"""

_ROUTED = """
            row_number() OVER (PARTITION BY m.partition ORDER BY m.nth) - 1 AS place
"""
# JSON may be longer when it is read than when it was given.
_ROUTED_WITH_SIZES = """
            row_number() OVER (PARTITION BY m.partition ORDER BY m.nth) - 1 AS place,
            octet_length(p_values[m.nth::integer])
                + coalesce(octet_length(p_keys[m.nth::integer]), 0)
                + coalesce(octet_length(p_headers[m.nth::integer]::jsonb::text), 0) AS bytes
"""
_ADVANCED = """
        SET next_position = p.next_position + counted.messages
        FROM (SELECT partition, count(*) AS messages FROM routed GROUP BY partition) AS counted
"""
_ADVANCED_WITH_SIZES = """
        SET next_position = p.next_position + counted.messages,
            sized_to = p.next_position + counted.messages,
            sized_from = CASE WHEN {continues} THEN p.sized_from ELSE p.next_position END,
            largest_bytes = CASE WHEN {continues} THEN greatest(p.largest_bytes, counted.largest)
                ELSE counted.largest END
        FROM (
            SELECT partition, count(*) AS messages, max(bytes) AS largest FROM routed
            GROUP BY partition
        ) AS counted
""".format(
    continues=f"""p.sized_to = p.next_position AND NOT (
                p.largest_bytes / 4 > counted.largest
                AND p.sized_to - p.sized_from >= {FORGOTTEN_AFTER})"""
)


def _with_sizes(function: str) -> str:
    for before, after in ((_ROUTED, _ROUTED_WITH_SIZES), (_ADVANCED, _ADVANCED_WITH_SIZES)):
        assert function.count(before) == 1
        function = function.replace(before, after)
    return function


APPEND = _with_sizes(v0006_append.APPEND)
APPEND_BY_RANGE = _with_sizes(v0006_append.APPEND_BY_RANGE)


def upgrade() -> None:
    op.execute(COLUMNS)
    op.execute(APPEND)
    op.execute(APPEND_BY_RANGE)


def downgrade() -> None:
    op.execute(v0006_append.APPEND)
    op.execute(v0006_append.APPEND_BY_RANGE)
    op.execute(
        "ALTER TABLE counterpoise_log.partitions DROP COLUMN largest_bytes,"
        " DROP COLUMN sized_to, DROP COLUMN sized_from"
    )
