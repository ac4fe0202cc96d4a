"""Selects messages of the built-in log up to a number of bytes, fairly between partitions.

Messages are admitted in the order of the bytes that lie before them in their own partition, until
`max_bytes` of values are admitted. This is like filling all partitions with water to one level:
from a partition with a small backlog all messages are admitted, the other partitions get equally
many bytes each, and the total exceeds `max_bytes` by less than one message. At the same level the
partition with the longest backlog comes first. So if not even one message of each partition fits,
no partition is passed over for ever.

If as many messages as are considered fit even if all were as large as the largest of their
partition, the server looks at none. Otherwise it adds up the sizes, so it has to look at every
considered message. If the number of messages is limited too, these are only the planned messages,
else a few more than the bytes hold. If the sizes seen before suggest that all of them fit, it only
adds them up: sorting and running sums would take most of the time. So no more than `MOST_SORTED`
are sorted, and if all of these are admitted, that is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from counterpoise.logs.builtin.connection import LogConnection
from counterpoise.logs.numbered import fair_shares

# How many messages to look at while their sizes are unknown; the factor by which this number grows
# if it is too small; and the margin on top of the number that the last known sizes suggest.
FIRST_MESSAGES = 8192
GROWTH = 4
RESERVE = 1.5
# Millions take longer than a call may, and the next call would ask the same.
MOST_SORTED = 500_000

# How many partitions know the size of their largest message, and what messages of these sizes have
# (migrations/log/sql/tables.sql).
_MOST = """SELECT count(*), coalesce(sum(p.largest_bytes * (w.last - w.first)), 0)::bigint
    FROM unnest(%b::integer[], %b::bigint[], %b::bigint[]) AS w (partition, first, last)
    CROSS JOIN LATERAL (
        SELECT * FROM counterpoise_log.ends AS e
        WHERE e.partition = w.partition
            AND e.log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = %b)
        ORDER BY e.next_position DESC LIMIT 1
    ) AS p
    WHERE p.sized_from <= w.first AND w.last <= p.sized_to"""

_SUM = """SELECT w.partition, m.found, m.size
    FROM unnest(%b::integer[], %b::bigint[], %b::bigint[]) AS w (partition, first, last)
    CROSS JOIN LATERAL (
        SELECT count(*) AS found, coalesce(sum(octet_length(value)), 0)::bigint AS size
        FROM counterpoise_log.messages
        WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = %b)
            AND partition = w.partition AND position >= w.first AND position < w.last
    ) AS m"""

# The inner ORDER BY ... OFFSET 0 keeps the values out of sorting and materialising.
_ADMIT = """SELECT partition, count(*) FILTER (WHERE so_far < %b), count(*), sum(size)::bigint
    FROM (
        SELECT w.partition, m.size,
            sum(m.size) OVER (ORDER BY m.before, w.place, m.position ROWS UNBOUNDED PRECEDING)
                - m.size AS so_far
        FROM unnest(%b::integer[], %b::bigint[], %b::bigint[]) WITH ORDINALITY
            AS w (partition, first, last, place)
        CROSS JOIN LATERAL (
            SELECT position, size,
                sum(size) OVER (ORDER BY position ROWS UNBOUNDED PRECEDING) - size AS before
            FROM (
                SELECT position, octet_length(value) AS size FROM counterpoise_log.messages
                WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = %b)
                    AND partition = w.partition AND position >= w.first AND position < w.last
                ORDER BY position OFFSET 0
            ) AS sized
        ) AS m
    ) AS considered GROUP BY partition"""


class ByteAdmission:
    """Admits messages of the log `name` by their bytes."""

    def __init__(self, connection: LogConnection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._bytes_per_message = 0.0

    def admit(
        self,
        begins: Mapping[int, int],
        backlogs: Mapping[int, int],
        max_messages: int,
        max_bytes: int,
    ) -> dict[int, int]:
        """How many messages of each partition, from its begin on: at least one if there is any.

        `backlogs` are numbers of messages. Raises LogUnavailable.
        """
        waiting = sum(backlogs.values())
        considered = min(max_messages, waiting, self._enough_for(max_bytes))
        while True:
            shares = fair_shares(backlogs, considered)
            counts, total_bytes = self._weigh(begins, backlogs, shares, max(1, max_bytes))
            all_considered = considered >= min(max_messages, waiting)
            if total_bytes >= max_bytes or all_considered or sum(counts.values()) < considered:
                return counts
            considered = min(max_messages, waiting, considered * GROWTH)

    def _enough_for(self, max_bytes: int) -> int:
        if not self._bytes_per_message:
            return FIRST_MESSAGES
        return max(FIRST_MESSAGES, int(RESERVE * max_bytes / self._bytes_per_message))

    def _weigh(
        self,
        begins: Mapping[int, int],
        backlogs: Mapping[int, int],
        shares: Mapping[int, int],
        max_bytes: int,
    ) -> tuple[dict[int, int], int]:
        """How many messages of `shares` are admitted, and the bytes of all of them."""
        named = sorted(
            (partition for partition, share in shares.items() if share),
            key=lambda partition: (-backlogs[partition], partition),
        )
        counts = dict(shares)
        if not named:
            return counts, 0
        firsts = [begins[partition] for partition in named]
        lasts = [begins[partition] + shares[partition] for partition in named]
        where = [named, firsts, lasts, self._name]
        ((sized, most_bytes),) = self._connection.query(_MOST, where, retry=True)
        if sized == len(named) and most_bytes < max_bytes:
            if not self._bytes_per_message:
                self._learn([(sum(shares.values()), most_bytes)])
            return counts, most_bytes
        if 0 < self._bytes_per_message * sum(shares.values()) < max_bytes:
            rows = self._connection.query(_SUM, where, retry=True)
            total_bytes = self._learn((found, size) for _, found, size in rows)
            if total_bytes < max_bytes:
                return counts, total_bytes
        if sum(shares.values()) > MOST_SORTED:
            return self._weigh(begins, backlogs, fair_shares(backlogs, MOST_SORTED), max_bytes)
        rows = self._connection.query(_ADMIT, [max_bytes, *where], retry=True)
        for partition, admitted, found, _ in rows:
            # Fewer messages than expected: they were trimmed meanwhile, and reading will report it.
            counts[partition] = admitted if admitted < found else shares[partition]
        return counts, self._learn((found, size) for _, _, found, size in rows)

    def _learn(self, sizes: Iterable[tuple[int, int]]) -> int:
        """The sum of the bytes of so many messages each."""
        seen = total_bytes = 0
        for found, size in sizes:
            seen, total_bytes = seen + found, total_bytes + size
        self._bytes_per_message = total_bytes / seen if seen else 0.0
        return total_bytes
