"""Conditions: what a consumer says is wrong with its work (the contract, *Conditions*).

The calls about them; see `counterpoise.calls`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from counterpoise.calls import Call, Listing, flow_path, listing, queue_path
from counterpoise.errors import described
from counterpoise.plain import plain_line
from counterpoise.wire import (
    MOST_CONDITIONS,
    MOST_TEXT_CHARACTERS,
    Condition,
    ConditionsReport,
    HeldCondition,
)

# A log that answers again by then is no news: its connection was cut, or it was restarted.
AWAY_SECONDS = 2.0


def text_of(error: BaseException) -> str:
    """An error in one line, fit for a condition."""
    return f"{type(error).__name__}: {described(error, str)}"


def log_away(away_for: Callable[[float], BaseException | None]) -> Iterator[Condition]:
    """That the log does not answer, if that lasts; `away_for`: the first error of so many seconds
    in which it gave none but errors.
    """
    error = away_for(AWAY_SECONDS)
    if error is not None:
        yield Condition("log_away", text_of(error))


def rows_dropped(count: int) -> Iterator[Condition]:
    """That Spark's watermark has dropped rows after a handoff; `count` is the least number."""
    if count:
        yield Condition(
            "rows_dropped",
            f"Spark's watermark has dropped {count} or more rows as late, after partitions came "
            "from others (Spark counts rows that it has grouped before as one)",
        )


def state_lost(begun: Mapping[int, str | None]) -> Iterator[Condition]:
    """That a query keeps state and lacks that of messages before these positions, by partition."""
    if begun:
        places = ", ".join(f"{number} from {position}" for number, position in begun.items())
        yield Condition(
            "state_lost", f"without the state of the messages before: partition {places}"
        )


def invalid_position(partition: int, epoch: int, position: str | None) -> Condition:
    """That a committed position is none of the log."""
    text = f"the position {position!s:.50} is none of this log"
    return Condition("invalid_position", text, partition, epoch)


def quarantined(
    partition: int, epoch: int, position: str, attempts: int, error: BaseException
) -> Condition:
    """That the message at this position has failed so often, and the last time with this error."""
    tried = f"{attempts} attempt{'' if attempts == 1 else 's'}"
    text = f"at {position}, after {tried}: {text_of(error)}"
    return Condition("quarantined", text, partition, epoch)


class Quarantine(NamedTuple):
    """What the text of a condition `quarantined` says."""

    position: str
    attempts: int
    error: str


_QUARANTINED = re.compile(r"at (\d{1,19}), after (\d{1,9}) attempts?: (.*)", re.ASCII | re.DOTALL)


def quarantine_of(text: str) -> Quarantine | None:
    """What `quarantined` has put into this text; None for another text."""
    found = _QUARANTINED.fullmatch(text)
    return found and Quarantine(found[1], int(found[2]), found[3])


def end_refused(refused: Mapping[tuple[int, int], str]) -> Iterator[Condition]:
    """That the service does not take reports of ends; `refused`: why, by partition and epoch."""
    for (partition, epoch), why in refused.items():
        yield Condition("end_refused", why, partition, epoch)


def report(
    queue: str, flow_id: str, flow_token: str, conditions: Iterable[Condition], seq: int
) -> Call[None]:
    """Replace what the flow reports; of more than 1,000, the first; longer texts are cut."""
    items = tuple(
        replace(one, text=plain_line(one.text)[:MOST_TEXT_CHARACTERS] or one.kind)
        for one in islice(conditions, MOST_CONDITIONS)
    )
    return Call(
        "POST",
        flow_path(queue, flow_id, "/conditions"),
        lambda _: None,
        body=ConditionsReport(seq, items),
        token=flow_token,
    )


def conditions(name: str, max_items: int | None = None) -> Listing[HeldCondition]:
    """The conditions that hold: of whole consumers first, then by partition; at most 1,000."""
    return listing(queue_path(name, "/conditions"), HeldCondition, max_items, {})
