"""The positions below which a log may be trimmed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def trim_floor(
    committed: Iterable[Mapping[int, int | None]], keep_messages: int = 0
) -> dict[int, int]:
    """The position below which each partition may be trimmed, from the commits of all readers.

    One mapping {partition: position} for each queue that reads the log. A partition without a
    commit of one of them (absent or None) is not trimmed; without a reader no partition is (the
    contract, *Logs*). The last `keep_messages` that all have processed stay.
    """
    floor: dict[int, int] | None = None
    for positions in committed:
        known = {partition: at for partition, at in positions.items() if at is not None}
        if floor is None:
            floor = known
        else:
            floor = {
                partition: min(position, known[partition])
                for partition, position in floor.items()
                if partition in known
            }
    return {
        partition: position - keep_messages
        for partition, position in (floor or {}).items()
        if position >= keep_messages
    }
