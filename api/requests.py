"""The bodies of requests: checked against their schemas, and made documents of `counterpoise.wire`.

A body is checked by what the OpenAPI document says of it, so a field of `counterpoise.wire` is
defined, described and checked there. `_CHECKS` has what no schema can say. Every wrong field is
named, in the words of pydantic, whose core does the checks. Requests are strict (no "8" for 8) and
refuse unknown fields.

Of a wrong list only the first wrong item is named, since each could have several errors, and of an
object only `MOST_UNKNOWN` unknown fields: an answer is never larger than the request.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec import convert
from msgspec.json import Decoder
from pydantic_core import CoreSchema, PydanticKnownError, SchemaValidator, ValidationError
from pydantic_core import core_schema as checks

from api.documents import REFERENCE, schema_name, schemas_of, shapes_of
from api.problems import RequestRefused, in_words, invalid, shown, unknown_name
from broker.core.errors import Invalid
from counterpoise.logs.address import refuse_credentials
from counterpoise.wire import (
    MOST_PARTITIONS,
    UNREACHABLE_NAMES,
    FieldProblem,
    QueueChange,
    QueueCreate,
    RequestBody,
)

Schema = Mapping[str, Any]

MOST_UNKNOWN = 5
# Of the children of one call and of their parents together: they fit into a body, however long.
MOST_NAMES = 2_048

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)


def moment(value: object, otherwise: str = "") -> datetime:
    """A time in a request. Raises ValueError, which names what else might stand there."""
    text = value.upper() if isinstance(value, str) else ""
    if not _RFC3339.fullmatch(text) or text < "1970-01-02":
        raise ValueError(
            f"should be {otherwise}an RFC 3339 time since 1970, like 2026-11-20T10:00:00Z"
        )
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except OverflowError:
        raise ValueError(f"should be {otherwise}a time before the year 10000 in UTC") from None


def _place(value: object) -> str | datetime:
    """An end of the log or a time."""
    if value == "earliest" or value == "latest":
        return str(value)
    return moment(value, "'earliest', 'latest', or ")


def _without_credentials(log: str | None) -> str | None:
    """Refuse credentials in `log`, because it is shown to everybody."""
    if log is not None:
        refuse_credentials(log)
    return log


def _reachable(name: str) -> str:
    if name in UNREACHABLE_NAMES:
        raise ValueError(f"{name!r} is a path segment, not a name: choose another")
    return name


def _few_names(items: object) -> object:
    """Counted before an object is made of each child. Raises `Invalid`."""
    names = 0
    for nth, item in enumerate(_listed(items)):
        for child in _listed(item, "children"):
            names += 1 + len(_listed(child, "parents"))
        if names > MOST_NAMES:
            raise Invalid(
                f"A call names at most {MOST_NAMES} children and parents; report fewer "
                "partitions at once.",
                [(f"partitions.{nth}.children", "is too much for one call")],
            )
    return items


def _listed(value: Any, name: str | None = None) -> list[Any]:
    """The list, or that in this field; none where the value is none, which is said later."""
    if name is not None:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, list) else []


_before = checks.no_info_before_validator_function
_after = checks.no_info_after_validator_function
_instead = checks.no_info_plain_validator_function
# By the names of schema and field.
_CHECKS: dict[tuple[str, str], Callable[[CoreSchema], CoreSchema]] = {
    ("ChildrenRequest", "partitions"): partial(_before, _few_names),
    ("PositionsRequest", "to"): lambda _: _instead(_place),
    ("QueueCreate", "name"): partial(_after, _reachable),
    ("QueueCreate", "log"): partial(_after, _without_credentials),
}
LIMITS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "minLength": "min_length",
    "maxLength": "max_length",
    "pattern": "pattern",
    "minItems": "min_length",
    "maxItems": "max_length",
    "minProperties": "min_length",
    "maxProperties": "max_length",
}


class BodyReader:
    """Makes documents of one shape."""

    def __init__(self, shape: type[RequestBody]) -> None:
        # msgspec examines a class at its first use, which must not be in two threads at once.
        Decoder(shape)
        self._shape = shape
        self._schemas = schemas_of([shape])[1]
        self._objects = {
            name: [
                (field, part["items"]["$ref"].removeprefix(REFERENCE))
                for field, part in schema["properties"].items()
                if "$ref" in part.get("items", ())
            ]
            for name, schema in self._schemas.items()
        }
        self._name = schema_name(shape.__name__)
        self._validator = SchemaValidator(self._object(self._name))

    def read(self, value: Any) -> RequestBody:
        """The document of a decoded body. Raises `RequestRefused`, `Invalid`."""
        try:
            found = self._validator.validate_python(self._few_unknown(value, self._name))
        except ValidationError as wrong:
            raise refused(map(self._problem, wrong.errors(include_url=False))) from None
        return convert(found, self._shape)

    def _object(self, name: str) -> CoreSchema:
        """What checks an object of this schema."""
        required = self._schemas[name].get("required", ())
        fields = {}
        for field, part in self._schemas[name]["properties"].items():
            check = _CHECKS.get((name, field), _schema_alone)
            fields[field] = checks.typed_dict_field(
                check(self._part(part)), required=field in required
            )
        found = checks.typed_dict_schema(fields, extra_behavior="forbid", strict=True)
        shapes = shapes_of(RequestBody)
        shape: Any = next(one for one in shapes if schema_name(one.__name__) == name)
        if shape.check is RequestBody.check:
            return found
        return _after(partial(_together, shape), found)

    def _part(self, schema: Mapping[str, Any]) -> CoreSchema:
        """What checks a value of this schema."""
        limits: Any = {LIMITS[one]: schema[one] for one in schema.keys() & LIMITS.keys()}
        match schema:
            case {"$ref": reference}:
                return self._object(reference.removeprefix(REFERENCE))
            case {"anyOf": [one, {"type": "null"}]}:
                return checks.nullable_schema(self._part(one))
            case {"enum": values}:
                return checks.literal_schema(values)
            case {"format": "date-time"}:
                return _instead(moment)
            case {"type": "string"}:
                return checks.str_schema(strict=True, **limits)
            case {"type": "integer"}:
                return checks.int_schema(strict=True, **limits)
            case {"type": "number"}:
                return checks.float_schema(strict=True, allow_inf_nan=False, **limits)
            case {"type": "boolean"}:
                return checks.bool_schema(strict=True)
            case {"items": items}:
                return checks.list_schema(self._part(items), strict=True, fail_fast=True, **limits)
            case {"additionalProperties": values}:
                keys = self._part({"type": "string", **schema.get("propertyNames", {})})
                found = checks.dict_schema(keys, self._part(values), strict=True, **limits)
                return _before(partial(_not_longer, limits["max_length"]), found)
            case {"anyOf": _}:  # Of a field in `_CHECKS`.
                return checks.any_schema()
        raise AssertionError(f"not checked: {schema}")

    def _few_unknown(self, value: Any, name: str) -> Any:
        """An object without most of its unknown fields, and so the objects in its lists."""
        if not isinstance(value, dict):
            return value
        known = self._schemas[name]["properties"]
        if len(value) > len(known) + MOST_UNKNOWN:
            unknown = itertools.islice((one for one in value if one not in known), MOST_UNKNOWN)
            value = {one: value[one] for one in (*known, *unknown) if one in value}
        for field, item in self._objects[name]:
            if isinstance(items := value.get(field), list):
                # One more than any list may have is as wrong as very many.
                items = items[: MOST_PARTITIONS + 1]
                value[field] = [self._few_unknown(one, item) for one in items]
        return value

    def _problem(self, wrong: Any) -> FieldProblem:
        """One of the errors of pydantic's core in words that help the caller."""
        kind, path = wrong["type"], wrong["loc"]
        if kind == "extra_forbidden":
            if self._shape is QueueChange and path[-1] in QueueCreate.__struct_fields__:
                message = "set when the queue is created, and cannot be changed"
            else:
                message = unknown_name(str(path[-1]), self._fields_at(path[:-1]))
        elif kind == "dict_type":
            message = "should be an object"
        else:
            message = in_words(wrong)
        return FieldProblem(".".join(shown(str(one)) for one in path) or "body", message)

    def _fields_at(self, path: Iterable[str | int]) -> Mapping[str, Any]:
        """The fields that are valid at a path to an object."""
        name = self._name
        for field in path:
            if isinstance(field, str):
                name = dict(self._objects[name])[field]
        fields: Mapping[str, Any] = self._schemas[name]["properties"]
        return fields


def refused(found: Iterable[FieldProblem]) -> RequestRefused:
    """422 that names every wrong field."""
    return RequestRefused(invalid(found))


def _not_longer(most: int, value: Any) -> Any:
    """Refuse an object with more entries before each of them is checked, which would take long."""
    if isinstance(value, dict) and len(value) > most:
        told = {"field_type": "Dictionary", "max_length": most, "actual_length": len(value)}
        raise PydanticKnownError("too_long", told)
    return value


def _schema_alone(schema: CoreSchema) -> CoreSchema:
    return schema


def _together(shape: type[RequestBody], given: Any) -> RequestBody:
    """The document. Raises ValueError for fields that do not go together."""
    document = convert(given, shape)
    document.check()
    return document
