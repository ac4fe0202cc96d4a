"""The callbacks that a program registers, and how a notice becomes a call of one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from counterpoise.flow.view import (
    Granted,
    Lost,
    Notice,
    Owned,
    Retiring,
    Revoking,
    Warming,
    WarmingEnded,
    WarmingStarted,
)

OnOwned: TypeAlias = Callable[[Owned], Any] | None
OnRevoking: TypeAlias = Callable[[Owned, float], Any] | None
OnWarming: TypeAlias = Callable[[Warming, float | None], Any] | None
OnWarmingEnded: TypeAlias = Callable[[Warming], Any] | None


@dataclass(frozen=True)
class Callbacks:
    """Functions to call, each once for a (partition, epoch).

    on_granted(owned): work on the partition may begin at `owned.position`. on_revoking(owned,
    seconds_left): finish outstanding messages, commit, release in that time. on_retiring(owned):
    drain the partition to its end, then release it with finished=True. on_lost(owned): the
    partition is lost under this epoch, and not by the program's release. on_warming(warming,
    seconds_left): restore its state in that time (None: unknown), then call ready.
    on_warming_ended(warming): the handoff was called off.
    """

    on_granted: OnOwned = None
    on_revoking: OnRevoking = None
    on_retiring: OnOwned = None
    on_lost: OnOwned = None
    on_warming: OnWarming = None
    on_warming_ended: OnWarmingEnded = None

    @property
    def any(self) -> bool:
        """Whether any callback is registered."""
        return any(vars(self).values())

    def call_for(self, notice: Notice, now: float) -> Callable[[], Any] | None:
        """The call for `notice`, at `now` (monotonic seconds); None if no callback wants it."""
        match notice:
            case Granted(owned) if self.on_granted:
                return partial(self.on_granted, owned)
            case Revoking(owned) if self.on_revoking:
                return partial(self.on_revoking, owned, _left(owned.deadline, now) or 0.0)
            case Retiring(owned) if self.on_retiring:
                return partial(self.on_retiring, owned)
            case Lost(owned) if self.on_lost:
                return partial(self.on_lost, owned)
            case WarmingStarted(warming) if self.on_warming:
                return partial(self.on_warming, warming, _left(warming.deadline, now))
            case WarmingEnded(warming) if self.on_warming_ended:
                return partial(self.on_warming_ended, warming)
        return None


def _left(deadline: float | None, now: float) -> float | None:
    return None if deadline is None else max(0.0, deadline - now)
