"""When handoffs are to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from broker.core.state.model import Handoff
from broker.core.structures.heap import Heap


class Deadlines:
    """When handoffs are to end, the earliest first."""

    __slots__ = ("_handoffs", "_heap")

    def __init__(self, handoffs: Mapping[int, Handoff]) -> None:
        """`handoffs`, by partition, are those that there are at any time."""
        self._handoffs = handoffs
        self._heap: Heap[tuple[float, int]] = Heap()

    def push(self, handoff: Handoff) -> None:
        """The handoff has another deadline, or is one again."""
        self._heap.push((handoff.deadline, handoff.number))
        self._heap.trim(len(self._handoffs), self._all)

    def first(self) -> float | None:
        """The earliest deadline; None without handoffs."""
        entry = self._heap.first(self._holds)
        return None if entry is None else entry[0]

    def due(self, now: float, most: int, wanted: Callable[[Handoff], bool]) -> list[Handoff]:
        """The wanted handoffs whose deadline has come, so many at the most, the earliest first,
        then by partition.
        """
        found: dict[int, Handoff] = {}
        unwanted: dict[int, Handoff] = {}

        def is_new(entry: tuple[float, int]) -> bool:
            return self._holds(entry) and entry[1] not in found and entry[1] not in unwanted

        while len(found) < most:
            entry = self._heap.first(is_new)
            if entry is None or entry[0] > now:
                break
            handoff = self._handoffs[entry[1]]
            (found if wanted(handoff) else unwanted)[entry[1]] = handoff
        for handoff in (*found.values(), *unwanted.values()):
            self.push(handoff)
        return list(found.values())

    def _holds(self, entry: tuple[float, int]) -> bool:
        deadline, number = entry
        handoff = self._handoffs.get(number)
        return handoff is not None and handoff.deadline == deadline

    def _all(self) -> Iterable[tuple[float, int]]:
        return [(handoff.deadline, handoff.number) for handoff in self._handoffs.values()]
