"""Requests of administrators that are not answered yet.

Only a request under way excuses a change by a transaction; not before it was sent, and not after it
was answered.
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
        """`rebalance`; `change` with the settings; `positions` with those (None: the earliest);
        `pause` and `resume` with the `name` of the pause; `pin` and `unpin` with the `name` of the
        partition."""
        self._last += 1
        self._under_way[self._last] = kind, detail, discard
        return self._last

    def end(self, request: int) -> None:
        """The request was answered, or its replica is dead."""
        self._under_way.pop(request, None)

    def rebalance(self) -> bool:
        """Whether a rebalance was requested: directly, or by a change that causes one."""
        changes = self._changes()
        return any("partition_count" in c or "access_type" in c for c, _ in changes) or any(
            kind == "rebalance" for kind, _, _ in self._under_way.values()
        )

    def pause(self, kind: str, name: str) -> bool:
        """Whether this pause or pin was asked for, or its end."""
        return any(
            asked == kind and detail is not None and detail["name"] == name
            for asked, detail, _ in self._under_way.values()
        )

    def pins(self) -> bool:
        """Whether a pin was asked for, or its end."""
        return any(kind in ("pin", "unpin") for kind, _, _ in self._under_way.values())

    def resize(self) -> bool:
        return any("partition_count" in changes for changes, _ in self._changes())

    def discard(self, number: int) -> bool:
        """Whether this partition may be discarded."""
        return any(
            discard and changes.get("partition_count", number + 1) <= number
            for changes, discard in self._changes()
        )

    def values(self, name: str) -> set[Any]:
        """The requested values of a setting."""
        return {changes[name] for changes, _ in self._changes() if name in changes}

    def position(self, number: int, position: int) -> bool:
        """Whether a partition's position may be set to this one."""
        return any(
            kind == "positions" and (detail is None or detail.get(number) == position)
            for kind, detail, _ in self._under_way.values()
        )

    def _changes(self) -> Iterator[tuple[Mapping[Any, Any], bool]]:
        for kind, detail, discard in self._under_way.values():
            if kind == "change" and detail is not None:
                yield detail, discard
