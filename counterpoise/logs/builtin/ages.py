"""The ages of the next messages of the built-in log.

The service and the clients ask with statements of their own drivers; what is asked is said once.
"""

from __future__ import annotations


def ages_statement(*, partitions: str, positions: str, name: str) -> str:
    """A statement with a row for each message: the partition, and the age in seconds.

    The arguments are the parameters as the driver writes them: two arrays and the log's name. The
    present is the database's. Each message is found by the primary key: of a plain join of many
    partitions the planner thinks that it costs less to read all messages of the log (LIMIT).
    """
    return f"""SELECT asked.partition, greatest(0, CAST(
            extract(epoch FROM statement_timestamp() - message.published_at) AS double precision))
        FROM unnest({partitions}, {positions}) AS asked (partition, position)
        CROSS JOIN LATERAL (
            SELECT published_at FROM counterpoise_log.messages
            WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = {name})
                AND partition = asked.partition AND position = asked.position
                AND isfinite(published_at)
            LIMIT 1
        ) AS message"""
