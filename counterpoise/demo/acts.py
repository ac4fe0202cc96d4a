"""What the scenarios have in common: conditions to wait for, and the last act."""

import time
from typing import Generic, TypeVar

from counterpoise.demo.proof.evidence import Event, EventKind, Grant, Sealing
from counterpoise.demo.stage import Stage
from counterpoise.demo.watching import Seen

S = TypeVar("S", bound=Stage)


class Acts(Generic[S]):
    """The acts of a scenario. They record `events`, `sealings` and `grants` for the verdict."""

    def __init__(self, stage: S) -> None:
        self.events: list[Event] = []
        self.sealings: list[Sealing] = []
        self.grants: list[Grant] = []
        self._stage = stage
        self._news = stage.display.news

    def play(self) -> None:
        """All acts, in order."""
        raise NotImplementedError

    def _the_rest_is_processed(self) -> None:
        stage = self._stage
        self._news("no limit on the rate any more: the rest as fast as possible")
        stage.lift_the_rate()
        stage.wait("all flights to be processed", stage.all_committed, seconds=300.0)
        self.grants = stage.grants()
        self._news("everything is processed and committed; the applications stop")
        stage.close_applications()

    def _until_shared(self, *names: str) -> None:
        """Wait until the queue is balanced among these, and each processes its partitions."""
        before = {name: self._stage.seen.processed.get(name, 0) for name in names}

        def shared(seen: Seen) -> bool:
            return (
                seen.status == "Ready"
                and set(seen.owners.values()) == set(names)
                and all(seen.processed.get(name, 0) > before[name] for name in names)
            )

        self._stage.wait(f"{', '.join(names)} to share the queue", shared)

    def _happens(self, kind: EventKind, name: str) -> None:
        self.events.append(Event(kind, name, time.time()))
