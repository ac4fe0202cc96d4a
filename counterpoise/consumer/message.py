"""What a handler gets: messages, and the grant under which it handles them; and how it failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from counterpoise.flow.view import Owned
from counterpoise.lease_time import lease_time
from counterpoise.logs.rows import Rows, is_tombstone


class Ownership:
    """One grant of a partition to this consumer, with its present state.

    It has the fields of `Owned`, but follows the flow's view, which `look` returns. `state` can
    also be `lost`: then the epoch fences all work for it, and a careful sink refuses it.
    """

    __slots__ = ("_granted", "_look")

    def __init__(self, granted: Owned, look: Callable[[], Mapping[int, Owned]]) -> None:
        """`look` returns the present view of the flow."""
        self._granted = granted
        self._look = look

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._granted.partition

    @property
    def epoch(self) -> int:
        """The epoch of the grant."""
        return self._granted.epoch

    @property
    def handed_over(self) -> str | None:
        """How the partition left its previous owner; see the contract, *FlowChangeUpdate*."""
        return self._granted.handed_over

    @property
    def state(self) -> str:
        """`owned`, `revoking`, `retiring` or `lost`."""
        owned = self._now()
        return "lost" if owned is None else owned.state

    @property
    def lost(self) -> bool:
        """Whether this grant is over, as far as the flow knows."""
        return self._now() is None

    @property
    def position(self) -> str | None:
        """The last committed position; that of the grant once it is lost."""
        return (self._now() or self._granted).position

    @property
    def deadline(self) -> float | None:
        """The deadline of a revoked partition, in seconds of `lease_time`."""
        owned = self._now()
        return None if owned is None else owned.deadline

    def time_left(self) -> float | None:
        """Seconds until the partition is taken by force; None: it is not revoked.

        0.0 when the deadline has passed or the grant is over. Messages not finished by then come
        again at the next owner.
        """
        owned = self._now()
        if owned is None:
            return 0.0
        if owned.state != "revoking" or owned.deadline is None:
            return None
        return max(0.0, owned.deadline - lease_time())

    def _now(self) -> Owned | None:
        owned = self._look().get(self._granted.partition)
        return owned if owned is not None and owned.epoch == self._granted.epoch else None

    def __repr__(self) -> str:
        return f"<partition {self.partition} epoch {self.epoch}, {self.state}>"


class Message(NamedTuple):
    """One message of the log, and the grant under which it is handled."""

    partition: int
    epoch: int
    position: str
    key: str | None
    value: bytes
    headers: Mapping[str, str]
    published_at: datetime
    owned: Ownership

    @property
    def is_tombstone(self) -> bool:
        """Whether it has no value; `value` is empty then (docs, *Messages without a value*)."""
        return is_tombstone(self.value, self.headers)

    def time_left(self) -> float | None:
        """See `Ownership.time_left`."""
        return self.owned.time_left()


@dataclass
class Failure:
    """The message at `position` has failed `attempts` times; `error` is the last error."""

    position: str
    attempts: int
    error: Exception

    @property
    def tried(self) -> str:
        """`1 attempt`, `3 attempts`."""
        return f"{self.attempts} attempt{'' if self.attempts == 1 else 's'}"


def messages_of(rows: Rows, owned: Ownership) -> list[Message]:
    """The rows of a log as messages, in order."""
    partition, epoch = owned.partition, owned.epoch
    return [
        Message(partition, epoch, position, key, value, dict(headers or ()), published_at, owned)
        for position, key, value, headers, published_at in zip(*rows.columns(), strict=True)
    ]
