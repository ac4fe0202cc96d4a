"""What replaces parts of the product while a run lasts."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Counting(dict[Any, Any]):
    """A table of transitions that counts the looked-up pairs."""

    counts: Counter[Any]

    def __getitem__(self, key: Any) -> Any:
        self.counts[key] += 1
        return super().__getitem__(key)


class Id(str):
    @property
    def hex(self) -> str:
        return self


class Quiet:
    """Replaces a logger."""

    def __init__(self, failed: Callable[[BaseException | None], None]) -> None:
        self._failed = failed

    def warning(self, *args: Any, **values: Any) -> None:
        """Warnings are expected, because faults are."""

    def error(self, *args: Any, **values: Any) -> None:
        """The database is often unreachable here."""

    def exception(self, *args: Any, **values: Any) -> None:
        self._failed(sys.exc_info()[1])


@contextmanager
def replaced(*what: tuple[Any, str, Any]) -> Iterator[None]:
    """Replaces attributes of modules and classes within the block."""
    before = [(owner, name, owner.__dict__[name]) for owner, name, _ in what]
    for owner, name, value in what:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
