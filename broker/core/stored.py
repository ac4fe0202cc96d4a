"""Records as they are stored: read strictly to be replayed, leniently to be shown.

Replicas of two versions serve one database during an upgrade, and the newer one stores records that
the older one cannot replay. `from_json` refuses them. But showing changes nothing: the history and
the event stream pass on what this version does not know. So a reader of the history gets what this
version understands of a record, and a reader of the events the record as it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from broker.core.model import Settings
from broker.core.records import Child, Cut, Ended, Grant, Move, Record, Redirect

KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in Record.__args__}
FIELDS = {kind: frozenset(field.name for field in fields(kind)) for kind in KINDS.values()}
SETTINGS = frozenset(field.name for field in fields(Settings))
ITEMS: dict[str, type[Any]] = {
    "grants": Grant,
    "moves": Move,
    "redirects": Redirect,
    "ended": Ended,
    "cuts": Cut,
    "children": Child,
}


def to_json(record: Record) -> dict[str, Any]:
    """The record as JSON values: its fields and its `kind`; tuples are arrays."""
    values: dict[str, Any] = {"kind": type(record).__name__}
    for field in fields(record):
        value = getattr(record, field.name)
        values[field.name] = [tuple(item) for item in value] if field.name in ITEMS else value
    return values


def from_json(values: Mapping[str, Any]) -> Record:
    """The record that `to_json` made the values of.

    Raises KeyError for a kind, a field or a setting that this version does not know: a replica of
    an older version must not guess.
    """
    arguments = dict(values)
    kind = KINDS[arguments.pop("kind")]
    unknown = arguments.keys() - FIELDS[kind] or arguments.get("changes", {}).keys() - SETTINGS
    if unknown:
        raise KeyError(*sorted(unknown))
    try:
        for name, item in ITEMS.items():
            if name in arguments:
                arguments[name] = tuple(map(item._make, arguments[name]))
        if "children" in arguments:
            children = arguments["children"]
            arguments["children"] = tuple(c._replace(parents=tuple(c.parents)) for c in children)
        for name in ("partitions", "flow_ids"):
            if name in arguments:
                arguments[name] = tuple(arguments[name])
        record: Record = kind(**arguments)
    except TypeError as error:  # more or less than this version knows
        raise KeyError(str(error)) from None
    return record


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
    known = {name: at for name, at in values.items() if name in FIELDS[kind]}
    for name, item in ITEMS.items():
        if name in known:
            known[name] = [value[: len(item._fields)] for value in known[name]]
    if "changes" in known:
        changes = known["changes"].items()
        known["changes"] = {name: value for name, value in changes if name in SETTINGS}
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
