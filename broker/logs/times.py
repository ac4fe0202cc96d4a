"""Where a built-in log goes on at a time.

Publishers may give times, in any order, so every message may count. There are two ways to find
those of one log since a time: by the key, which reads all messages of this log, and by the index on
the time, which reads messages of that time in all logs. Which one is shorter, Postgres cannot know,
because the log's columns have no statistics (migrations/log/sql/access.sql). So it is estimated
here from some pages of the table.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import CursorResult, text
from sqlalchemy.ext.asyncio import AsyncConnection

_PAGES = 300
_SINCE = "to_timestamp(CAST(:time AS double precision))"
# The settings are of the transaction: the joins are those of many messages with few partitions.
_FEWER_BY_TIME = text(f"""
SELECT sampled.messages / part.share < (
    SELECT coalesce(sum(next_position - first_position), 0) FROM counterpoise_log.partitions
    WHERE log_id = :log_id
), set_config('enable_nestloop', 'off', true), set_config('enable_seqscan', 'off', true)
FROM (
    SELECT least(1, {_PAGES} * CAST(current_setting('block_size') AS double precision)
        / greatest(1, pg_relation_size('counterpoise_log.messages'))) AS share
) AS part
CROSS JOIN LATERAL (
    SELECT count(*) AS messages
    FROM counterpoise_log.messages TABLESAMPLE SYSTEM (100 * part.share)
    WHERE published_at >= {_SINCE}
) AS sampled
""")


def _positions(of_log: str) -> str:
    # The expression is that of the index on the time.
    return f"""
SELECT p.partition, coalesce(since.position, p.next_position)
FROM counterpoise_log.partitions AS p LEFT JOIN (
    SELECT m.partition, min(m.position) AS position
    FROM counterpoise_log.messages AS m
    JOIN counterpoise_log.partitions AS mine ON mine.log_id = :log_id
        AND mine.partition = m.partition AND m.position >= mine.first_position
    WHERE {of_log} AND (m.published_at AT TIME ZONE INTERVAL '0')
        >= ({_SINCE} AT TIME ZONE INTERVAL '0')
    GROUP BY m.partition
) AS since USING (partition)
WHERE p.log_id = :log_id ORDER BY p.partition
"""


_BY_KEY = text(_positions("m.log_id = :log_id"))
# No index has this expression.
_BY_TIME = text(_positions("m.log_id + 0 = :log_id"))


async def positions_at(connection: AsyncConnection, log_id: int, time: float) -> CursorResult[Any]:
    """For each partition the first position published at `time` or later, else its end."""
    given = {"log_id": log_id, "time": time}
    by_time = await connection.scalar(_FEWER_BY_TIME, given)
    return await connection.execute(_BY_TIME if by_time else _BY_KEY, given)
