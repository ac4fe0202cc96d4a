"""Where a partition must stop for an ordered resize (the contract, *Ordered resize*).

A consumer learns from the log how far it may read: the ends, and at the same instant the number of
the log's last resize and its cuts. Its view says of which resize the queue knows the cuts
(`resize`), and for each partition whether it waits, and where. So it stops

- at the view's `cut`, while the view says that the partition waits for others;
- at the log's cut, if the log was resized after the resize that the view knows. Whether the
  partition has to wait there, the queue has not said yet.

Both may be so at once; then the earlier cut counts, which is the view's. Only the built-in log has
cuts, and its positions are decimal numbers.

When everything before the cut is done, the next commit says so, even if it has nothing else to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from counterpoise.flow.view import Owned
from counterpoise.logs.port import Bounds


def stop_of(owned: Owned, resize: int, cuts: Mapping[int, str]) -> str | None:
    """The position that must not be passed now; None: there is none.

    `resize` and `cuts` are the log's, of the instant of the ends that are to be read up to.
    """
    if owned.resize is None:
        return None
    if owned.waits_for and owned.cut is not None:
        return owned.cut
    return cuts.get(owned.partition) if resize > owned.resize else None


def within(
    bounds: Bounds, view: Mapping[int, Owned], positions: Mapping[int, str | None]
) -> Bounds:
    """The bounds as far as the partitions of the view may be read from these positions.

    An end is never before the position: a partition that was past its cut when its barrier came
    back has nothing to read.
    """
    stops = {
        number: stop
        for number, owned in view.items()
        # Most queues have no ordered resizes, and then the log is not looked at.
        if owned.resize is not None
        and number in bounds.ends
        and (stop := stop_of(owned, bounds.resize, bounds.cuts)) is not None
        and not is_at(stop, bounds.ends[number])
    }
    return (
        replace(bounds, ends={**bounds.ends, **_held(stops, bounds, positions)})
        if stops
        else bounds
    )


def _held(
    stops: Mapping[int, str], bounds: Bounds, positions: Mapping[int, str | None]
) -> Mapping[int, str]:
    """The ends of partitions that must stop before the end of the log."""
    ends = {}
    for number, stop in stops.items():
        position, end = positions.get(number), bounds.ends[number]
        if not is_at(position, stop):
            ends[number] = stop
        elif position is not None and is_at(end, position):
            ends[number] = position
        # Else the log does not reach the position, which its reader will find.
    return ends


def is_at(position: str | None, cut: str) -> bool:
    """Whether the position is at the cut or past it."""
    return position is not None and position.isdecimal() and int(position) >= int(cut)
