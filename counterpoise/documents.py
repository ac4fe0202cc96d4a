"""What messages of the HTTP API have in common: fields that are not shown in logs and the like."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct, field

Json = Mapping[str, Any]


class Message(Struct, frozen=True, omit_defaults=True):
    """What an answer of the service is made of: a field that has its default is left out."""


_FIELD = re.compile(r"^\* `(\w+)`: (.*?)(?=^\* |\Z)", re.M | re.S)


def described(shape: type) -> tuple[str, dict[str, str]]:
    """What the docstring of a class says of it, and in the list of its fields of each of them."""
    text = inspect.getdoc(shape) or ""
    fields = {name: " ".join(said.split()) for name, said in _FIELD.findall(text)}
    for base in (*shape.__mro__[1:], *getattr(shape, "like", ())):
        found = _FIELD.findall(inspect.cleandoc(base.__doc__ or ""))
        fields = {name: " ".join(said.split()) for name, said in found} | fields
    return text.partition("\n* `")[0].strip(), fields


class PartlyShown(Message, frozen=True):
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
        shown = (value for _, value in self.__rich_repr__())
        return hash((type(self), *(one for one in shown if not isinstance(one, Mapping))))
