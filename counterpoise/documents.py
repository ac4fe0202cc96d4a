"""What messages of the HTTP API have in common: fields that are not shown in logs and the like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct, field

Json = Mapping[str, Any]


class PartlyShown(Struct, frozen=True):
    """A message with fields that are not shown; `hidden`: their names."""

    hidden: ClassVar[frozenset[str]]

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = (name for name in self.__struct_fields__ if name not in self.hidden)
        return [(name, getattr(self, name)) for name in shown]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"


class Document(PartlyShown, frozen=True, kw_only=True):
    """A message with the whole answer in `raw`, which does not count when two are compared."""

    hidden = frozenset({"raw"})

    raw: Json = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.__rich_repr__() == other.__rich_repr__()

    def __hash__(self) -> int:
        return hash((type(self), *(value for _, value in self.__rich_repr__())))
