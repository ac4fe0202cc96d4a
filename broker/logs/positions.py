"""What a position of each kind of log is.

The service never compares positions of consumers, but it keeps them for others: the next owner
reads from there, and the upkeep trims up to there. A text that is no position would end every later
consumer of its partition, so none is stored. For a log of a kind that the service does not know
only the length of the text is limited (by the API).

Positions that an older version stored may be anything. Whatever uses them leaves out those that are
none, until an administrator sets others.

A position is stored as the log gives it, without leading zeros: consumers find out whether a
partition is at its end by comparing two texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from broker.core.errors import Invalid
from counterpoise.logs.address import kind_of
from counterpoise.logs.numbered import TOO_LARGE, position_number

# Whatever the kind, these are positions.
_SURELY = re.compile("0|[1-9][0-9]{0,14}")


def number_of(log: str, position: str) -> int | None:
    """A position of a log of a known kind as a number; None: it is none."""
    kind = kind_of(log)
    assert kind is not None, log
    return position_number(position, TOO_LARGE[kind])


def surely_valid(position: str) -> bool:
    """Whether it is a position in a log of any known kind."""
    return _SURELY.fullmatch(position) is not None


def refuse_invalid(log: str, positions: Mapping[str, str]) -> None:
    """Raises Invalid if one of these cannot be a position of the log. Keys: names of fields."""
    kind = kind_of(log)
    if kind is None:
        return
    wrong = [field for field, at in positions.items() if str(number_of(log, at)) != at]
    if wrong:
        shown = positions[wrong[0]]
        shown = shown if len(shown) <= 50 else f"{shown[:50]}…"
        raise Invalid(
            f"{shown!r} is not a position of this queue's log; its positions are decimal numbers "
            f"below {TOO_LARGE[kind]}. Send the position of the next message to read, as the log "
            "gives it.",
            [(field, f"is not a decimal number below {TOO_LARGE[kind]}") for field in wrong],
        )
