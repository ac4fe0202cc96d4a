"""States of one key in memory, with the methods of Spark's (`StatefulProcessorHandle`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Value:
    """A value state of one key, like Spark's."""

    def __init__(self) -> None:
        self.value: tuple[Any, ...] | None = None

    def get(self) -> tuple[Any, ...] | None:
        return self.value

    def update(self, value: tuple[Any, ...]) -> None:
        self.value = value

    def clear(self) -> None:
        self.value = None


class Map:
    """A map state of one key, like Spark's."""

    def __init__(self) -> None:
        self.content: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802
        return self.content.get(key)

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802
        self.content[key] = value

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802
        del self.content[key]

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return iter(self.content.items())

    def values(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.content.values())

    def clear(self) -> None:
        self.content.clear()
