"""A bug that is planted in the product while a run lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from broker.testing.database import MemoryDatabase
from tests.simulation.stand_ins import replaced

Changes = list[tuple[Any, str, Any]]


@dataclass(frozen=True)
class Mutant:
    """A bug: its name, the attributes that it replaces, and the transitions that it needs in the
    tables.
    """

    name: str
    changes: Callable[[], Changes]
    allows: tuple[tuple[dict[Any, Any], Any, Any], ...] = ()

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Within the block the product has the bug."""
        for table, pair, state in self.allows:
            table[pair] = state
        try:
            with replaced(*self.changes()):
                yield
        finally:
            for table, pair, _ in self.allows:
                del table[pair]


def unchecked(self: MemoryDatabase, commit: Any, stored: Any) -> None:
    """Replaces the database's constraints."""
