"""The schemas of answers and requests in the OpenAPI document, made from the documents themselves.

`counterpoise.wire` defines them. Here are only the names of schemas that are not those of classes,
and the examples of whole documents (`examples.json`).
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Iterable, Iterator
from typing import Any

import orjson
from msgspec import Struct, structs
from msgspec.json import schema_components

from counterpoise.documents import Message, described
from counterpoise.wire import RequestBody

REFERENCE = "#/components/schemas/"
_BASES = (Message, RequestBody)
_NAMES = {
    "Child": "NewChild",
    "Condition": "ReportedCondition",
    "HeldBack": "HeldFlows",
    "HeldCondition": "Condition",
    "LogAccess": "LogCredentials",
    "LogView": "LogAccess",
    "Page_AuditItem_": "AuditPage",
    "Page_FlowSummary_": "FlowPage",
    "Update": "FlowChangeUpdate",
    "UpdatePartition": "PartitionOfFlow",
}
_PAGE = re.compile(r"Page_(\w+)_")
# What the checks of a document (`RequestBody.check`) leave of it, for programs.
_TOGETHER: dict[str, dict[str, Any]] = {
    "PauseRequest": {"not": {"required": ["until", "seconds"]}},
    "PositionsRequest": {"minProperties": 1, "maxProperties": 1},
}


def schema_name(name: str) -> str:
    """What the schema of a class is called; that of `Page[X]` is `Page_X_` here."""
    if name in _NAMES:
        return _NAMES[name]
    page = _PAGE.fullmatch(name)
    return name if page is None else f"{schema_name(page[1])}Page"


def schemas_of(documents: Iterable[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """References to the schemas of these documents, and all schemas by name."""
    references, found = schema_components(documents, ref_template=f"{REFERENCE}{{name}}")
    examples = _examples()
    shapes = {shape.__name__: shape for base in _BASES for shape in shapes_of(base)}
    schemas = {}
    for name, schema in sorted(found.items()):
        _complete(schema, shapes[name if name in shapes else name.partition("_")[0]])
        known = schema_name(name)
        if known in examples:
            schema["examples"] = examples[known]
        schemas[known] = schema
    _rename([*references, *schemas.values()])
    return list(references), schemas


def _examples() -> dict[str, Any]:
    examples: dict[str, Any] = orjson.loads(
        (importlib.resources.files("api") / "examples.json").read_bytes()
    )
    for name in ("Bound", "Results"):
        examples[name]["update"] = examples["FlowChangeUpdate"]
    return {name: given if isinstance(given, list) else [given] for name, given in examples.items()}


def shapes_of(base: type[Struct]) -> Iterator[type[Struct]]:
    """All kinds of it."""
    for shape in base.__subclasses__():
        yield shape
        yield from shapes_of(shape)


def _complete(schema: dict[str, Any], shape: type[Struct]) -> None:
    """What msgspec does not know of a document: what its docstring says of fields, which of them
    are only the client's, and that a field that has its default is left out of an answer.
    """
    del schema["title"]
    schema["description"], said = described(shape)
    fields = schema["properties"]
    fields.pop("raw", None)
    for known in structs.fields(shape):
        if known.name in said:
            fields[known.encode_name]["description"] = said[known.name]
    for name, field in fields.items():
        is_always = field.pop("x-always", False)
        if is_always or field.get("default") in (None, ()) or issubclass(shape, Message):
            field.pop("default", None)
        elif isinstance(field["default"], tuple):
            field["default"] = [*field["default"]]
        if is_always:
            schema["required"].append(name)
        if field.pop("x-not-null", False) and "anyOf" in field:
            [kind] = [one for one in field.pop("anyOf") if one != {"type": "null"}]
            field.update({**kind, **field})
        if "pattern" in field:
            # JSON Schema has no other anchors, and these mean the same there.
            field["pattern"] = re.sub(r"^\\A(.*)\\Z$", r"^\1$", field["pattern"])
        # Of a document in which the field may be null.
        if "description" in field and {"type": "null"} not in field.get("anyOf", ()):
            field["description"] = field["description"].partition(" Null")[0]
    if not schema["required"]:
        del schema["required"]
    schema.update(_TOGETHER.get(shape.__name__, {}))


def _rename(part: Any) -> None:
    """The references in it, to the names of schemas."""
    if isinstance(part, dict):
        if isinstance(named := part.get("$ref"), str):
            part["$ref"] = REFERENCE + schema_name(named.removeprefix(REFERENCE))
        for inner in part.values():
            _rename(inner)
    elif isinstance(part, list):
        for inner in part:
            _rename(inner)
