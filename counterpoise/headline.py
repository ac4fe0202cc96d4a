"""The headline of a queue: what is said of it before its status, the worst first.

A queue whose assignment is settled is Ready, and may still be in trouble: nobody consumes it, its
consumers report messages in quarantine, its lag grows. So `counterpoise status`, `queues list`, the
dashboard and the demo say that first. Its words and their order are here alone; the service gives
them to the dashboard as a module (`api/routes/service.py`).

The order is that of the alerts (`deploy/prometheus/alerts.yml`); what has no alert stands beside
what is like it. From QUIET on nothing is wrong, and a word says why nothing happens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

# A kind of condition that a later consumer reports.
OTHER = "other"
ORDER = (
    "service_away",
    "nobody_consumes",
    "unowned",
    # Conditions (the contract, *Conditions*).
    "quarantined",
    "invalid_position",
    "rows_dropped",
    "state_lost",
    "end_refused",
    "log_away",
    "mirror_failed",
    "resize_paused",
    "over_capacity",
    "pin_unmet",
    OTHER,
    "lag_grows",
    "no_consumer",
    "paused",
)
QUIET = ORDER.index("no_consumer")
# Kinds whose number is one of partitions, and what is said of these. Others are their own words.
OF_PARTITIONS = {"unowned": "without an owner", "paused": "paused"}

# The lag grows: so many messages wait, and more than this long ago, as the alert says.
GROWS_FROM = 1000
GROWS_SECONDS = 900
# What was measured a shorter while ago says nothing yet.
GROWS_LEAST_SECONDS = 540
# In a busy queue thousands of messages wait for a moment, now more of them, now fewer.
GROWS_AGE_SECONDS = 300
# What the dashboard's module has of the above.
TABLE = (
    "ORDER",
    "QUIET",
    "OTHER",
    "OF_PARTITIONS",
    "GROWS_FROM",
    "GROWS_SECONDS",
    "GROWS_LEAST_SECONDS",
    "GROWS_AGE_SECONDS",
)


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at a queue's partitions has found.

    `lag`: how many messages wait, None if the log does not say it; `held`: how many of them in
    paused partitions. `unowned`: how many partitions have no owner and could have one. `grows`:
    whether more wait than some minutes ago (`lag_grows`).
    """

    lag: int | None
    held: int
    unowned: int
    grows: bool = False

    @property
    def waiting(self) -> int:
        """How many messages wait for a consumer, as far as it is known."""
        return (self.lag or 0) - self.held


@dataclass(frozen=True, slots=True)
class Headline:
    """`text` is empty if nothing is amiss. `alarming`: whether a person should look."""

    text: str
    alarming: bool

    def with_status(self, status: str) -> str:
        """`nobody consumes (Ready)`."""
        return f"{self.text} ({status})" if self.text else status


def lag_grows(
    waiting: int, age: float | None, measured: Sequence[tuple[datetime, int | None]]
) -> bool:
    """Whether many messages wait, and more than when the service measured a while ago.

    What is paused is no part of `waiting`. `age`: that of the oldest, in seconds. `measured`: when,
    the oldest first, and the lag. None: not known. The newest one says what time it is there.
    """
    if not measured or (age is not None and age < GROWS_AGE_SECONDS):
        return False
    now = measured[-1][0]
    since = now - timedelta(seconds=GROWS_SECONDS)
    at, lag = next((at, lag) for at, lag in measured if at >= since)
    old_enough = now - at >= timedelta(seconds=GROWS_LEAST_SECONDS)
    return lag is not None and old_enough and waiting > max(GROWS_FROM, lag)


def headline(
    status: str,
    consumers: int,
    look: Look | None,
    *,
    conditions: Mapping[str, int] | None = None,
    paused: int = 0,
    away: bool = False,
) -> Headline:
    """What is said of a queue with this status and so many active consumers.

    `look`: None before the first one. `paused`: how many partitions are; True for the queue.
    `away`: the service does not answer, so all else is old.
    """
    # Paused partitions are nobody's work. Without a consumer no partition has an owner: that is
    # said once.
    waits = look is not None and (look.lag is None or look.lag > look.held)
    found = {
        **(conditions or {}),
        "service_away": away,
        "nobody_consumes": not consumers and waits,
        "no_consumer": not consumers and not waits,
        "unowned": look.unowned if look and consumers and status == "Ready" else 0,
        "lag_grows": bool(look and consumers and look.grows),
        "paused": paused,
    }
    told = sorted((_place(kind), kind) for kind, number in found.items() if number)
    return Headline(
        ", ".join(_words(kind, found[kind]) for _, kind in told),
        any(place < QUIET for place, _ in told),
    )


def _place(kind: str) -> int:
    return ORDER.index(kind if kind in ORDER else OTHER)


def _words(kind: str, number: int) -> str:
    words = kind.replace("_", " ")
    if number is True:
        return words
    if kind in OF_PARTITIONS:
        return f"{number:,} partition{'' if number == 1 else 's'} {OF_PARTITIONS[kind]}"
    return f"{number:,} {words}"
