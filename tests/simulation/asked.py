"""What administrators have asked for and were not answered yet.

Only what is under way excuses what a transaction does; before it was asked for and after it was
answered nothing does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Asked:
    """Requests under way."""

    def __init__(self) -> None:
        self._last = 0
        self._under_way: dict[int, tuple[str, Mapping[Any, Any] | None, bool]] = {}

    def begin(
        self, kind: str, detail: Mapping[Any, Any] | None = None, discard: bool = False
    ) -> int:
        """`rebalance`; `change` with the settings, `positions` with those (None: the earliest)."""
        self._last += 1
        self._under_way[self._last] = kind, detail, discard
        return self._last

    def end(self, request: int) -> None:
        """It was answered, or whoever worked on it is dead."""
        self._under_way.pop(request, None)

    def rebalance(self) -> bool:
        """Whether a rebalance at once was asked for: plainly, or by a change that takes one."""
        changes = self._changes()
        return any("partition_count" in c or "access_type" in c for c, _ in changes) or any(
            kind == "rebalance" for kind, _, _ in self._under_way.values()
        )

    def resize(self) -> bool:
        return any("partition_count" in changes for changes, _ in self._changes())

    def discard(self, number: int) -> bool:
        """Whether this partition may be thrown away."""
        return any(
            discard and changes.get("partition_count", number + 1) <= number
            for changes, discard in self._changes()
        )

    def values(self, name: str) -> set[Any]:
        """What a setting is to become."""
        return {changes[name] for changes, _ in self._changes() if name in changes}

    def position(self, number: int, position: int) -> bool:
        """Whether a partition's position is to be this one."""
        return any(
            kind == "positions" and (detail is None or detail.get(number) == position)
            for kind, detail, _ in self._under_way.values()
        )

    def _changes(self) -> Iterator[tuple[Mapping[Any, Any], bool]]:
        for kind, detail, discard in self._under_way.values():
            if kind == "change" and detail is not None:
                yield detail, discard
