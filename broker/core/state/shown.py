"""Records for showing: the history and the event stream pass on what this version does not know.

Replicas of two versions serve one database during an upgrade, and the newer one stores records that
the older one cannot replay (`records.from_json` refuses them). But showing changes nothing. So a
reader of the history gets what this version understands of a record, and a reader of the events the
record as it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker.core.state.records import FIELDS, ITEMS, KINDS, Record, from_json, to_json


@dataclass(frozen=True, slots=True)
class Unknown:
    """A record of a newer version.

    `values` are as they are stored, `known` is what this version understands of it, if anything.
    """

    values: Mapping[str, Any]
    known: Record | None


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """What `records.Entry` has, as far as it is shown."""

    revision: int
    at: float
    records: tuple[Record | Unknown, ...]
    rebalance_id: int | None = None


def shown_from_json(values: Mapping[str, Any]) -> Record | Unknown:
    """As `from_json`, but what this version does not know is passed on."""
    try:
        return from_json(values)
    except KeyError:
        return Unknown(values, _as_known(values))


def _as_known(values: Mapping[str, Any]) -> Record | None:
    """The record without what a newer version has added to it."""
    kind = KINDS.get(values["kind"])
    if kind is None:
        return None
    known = {name: value for name, value in values.items() if name in FIELDS[kind]}
    for name, item in ITEMS.items():
        if name in known:
            known[name] = [value[: len(item._fields)] for value in known[name]]
    try:
        return from_json({"kind": values["kind"], **known})
    except KeyError:
        return None


def understood(record: Record | Unknown) -> Record | None:
    """What this version understands of a record."""
    return record.known if isinstance(record, Unknown) else record


def shown_values(record: Record | Unknown) -> dict[str, Any]:
    """The record's stored values; items have the names of their fields.

    What a newer version has added to an item has no name here, and is its `more`.
    """
    values = dict(record.values) if isinstance(record, Unknown) else to_json(record)
    for name, item in ITEMS.items():
        if name in values:
            values[name] = [_named(item, list(one)) for one in values[name]]
    return values


def _named(item: type[Any], values: list[Any]) -> dict[str, Any]:
    count = len(item._fields)
    named = dict(zip(item._fields, values, strict=False))
    return named if len(values) <= count else {**named, "more": values[count:]}
