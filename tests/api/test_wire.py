"""What the client reads and writes is what the service writes and reads.

Both are defined once, in `counterpoise.wire`. Answers are read from documents that the service's
OpenAPI document allows.
"""

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any

import pytest
from fastapi import Request
from msgspec import Struct, field, json, to_builtins
from msgspec.structs import fields
from rich.pretty import pretty_repr

from api.documents import schema_name, shapes_of
from api.openapi import all_routes, document
from api.problems import RequestRefused
from api.requests import LIMITS, BodyReader
from api.routing import Route
from api.security import Also, allow
from counterpoise import wire
from counterpoise.calls import Call
from counterpoise.client import Settings
from counterpoise.documents import Document
from counterpoise.errors import BadAnswer
from counterpoise.reading import page_reader, reader
from counterpoise.wire import RequestBody

# Of any list, of any event stream, and of no model: the answer of any service.
OF_ANYTHING = (wire.Page, wire.Event, wire.Probe)
SHAPES: list[type[Any]] = [
    one
    for one in vars(wire).values()
    if isinstance(one, type) and issubclass(one, Struct) and one not in OF_ANYTHING
    if one.__module__ == wire.__name__ and not issubclass(one, RequestBody)
]
REQUESTS: list[type[Any]] = [*shapes_of(RequestBody)]
# They come in the examples of others.
ITEMS = (
    *(wire.Root, wire.CommitItem, wire.ReleaseItem, wire.Child, wire.ChildrenItem),
    *(wire.ReadyItem, wire.Condition),
)
SECRETS = [
    *((wire.LogAccess, "url"), (wire.Bound, "flow_token")),
    *((wire.MadeKey, "key"), (wire.LogIn, "key")),
]
TIME = "2026-11-20T10:00:00.250000Z"


@cache
def _schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = document(all_routes())["components"]["schemas"]
    return schemas


def _schema(shape: type[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = _schemas()[schema_name(shape.__name__)]
    return schema


def sample(schema: dict[str, Any], kind: str) -> Any:
    """A value that the schema allows: `all` has every field, `null` is null wherever it may be, and
    `least` is that without what may be left out."""
    if "$ref" in schema:
        return sample(_schemas()[schema["$ref"].rpartition("/")[2]], kind)
    if "anyOf" in schema:
        found = [one for one in schema["anyOf"] if one.get("type") != "null"]
        return None if found != schema["anyOf"] and kind != "all" else sample(found[0], kind)
    match schema.get("type"):
        case "array":
            return [sample(schema["items"], kind)]
        case "object" if "properties" in schema:
            names = schema["required"] if kind == "least" else schema["properties"]
            return {name: sample(schema["properties"][name], kind) for name in names}
        case "object":
            values = schema.get("additionalProperties")
            return {"some": sample(values if isinstance(values, dict) else {}, kind)}
        case "string":
            return TIME if schema.get("format") == "date-time" else "some"
        case simple:
            return {"integer": 7, "number": 1.5, "boolean": True, None: "anything"}[simple]


def assert_read(read: Any, given: Any) -> None:
    """What was read is what was given, as far as it is known."""
    if isinstance(read, dict):
        for name in read.keys() & given.keys():
            assert_read(read[name], given[name])
    elif isinstance(read, (list, tuple)):
        for one, other in zip(read, given, strict=True):
            assert_read(one, other)
    else:
        assert read == given


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_the_client_has_the_fields_of_the_service(shape: type[Any]) -> None:
    """A shape with `raw` may leave some out: they are in there."""
    served = set(_schema(shape)["properties"])
    known = {one.encode_name for one in fields(shape)}
    if issubclass(shape, Document):
        assert known - {"raw"} <= served
    else:
        assert known == served


@pytest.mark.parametrize("kind", ["all", "null", "least"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_what_the_service_may_send_is_read(shape: type[Any], kind: str) -> None:
    given = sample(_schema(shape), kind)
    newer = {**given, "added_later": [1]}
    read = reader(shape)(newer)
    assert_read(to_builtins(read), given)
    assert pickle.loads(pickle.dumps(read)) == read
    page = page_reader(shape)({"items": [newer], "next_cursor": "next"})
    assert (page.items, page.next_cursor) == ((read,), "next")
    if issubclass(shape, Document):
        assert (read.raw, page.items[0].raw) == (newer, newer)
        assert read == reader(shape)(given)


@pytest.mark.parametrize("shape", [wire.Queue, wire.FlowSummary, wire.HeldCondition])
def test_equal_messages_are_one_in_a_set(shape: type[Any]) -> None:
    given = sample(_schema(shape), "all")
    assert len({reader(shape)(given), reader(shape)({**given, "added_later": 1})}) == 1


# The value of a setting.
ANY_SCALAR = {(wire.PreviewedSetting, name) for name in ("before", "after")}


def wrong(value: Any) -> Iterator[Any]:
    yield 7.25 if isinstance(value, (dict, list, str)) else "7"
    if value == TIME:
        yield TIME.removesuffix("Z")


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_an_answer_of_another_shape_is_refused_with_the_name_of_the_field(shape: type[Any]) -> None:
    given = sample(_schema(shape), "all")
    for one in fields(shape):
        if one.name == "raw":
            continue
        name = one.encode_name
        values = [[7]] if (shape, name) in ANY_SCALAR else wrong(given[name])
        for value in values:
            with pytest.raises(BadAnswer, match=rf"`\$\.{name}`"):
                reader(shape)({**given, name: value})
        if one.required:
            with pytest.raises(BadAnswer, match=f"`{name}`"):
                reader(shape)({other: given[other] for other in given if other != name})
    for nothing in (None, [given], "some"):
        with pytest.raises(BadAnswer, match="object"):
            reader(shape)(nothing)


async def test_a_field_of_an_answer_is_defined_in_one_place() -> None:
    """And found in the OpenAPI document, in the answer and in what the client reads."""

    class Lease(wire.Heartbeat, frozen=True):
        """The lease.

        * `from_where`: who renewed it.
        """

        from_where: str | None = field(name="from")
        later: float | None = None

    @allow(Also.ANYONE)
    async def renew() -> Lease:
        return Lease(datetime(2026, 11, 20, tzinfo=UTC), 7, "there")

    route = Route("/renew", renew, tags=["Service"])
    schemas = document([*all_routes(), route])["components"]["schemas"]
    assert schemas["Lease"]["properties"]["from"]["description"] == "who renewed it."
    assert schemas["Lease"]["required"] == ["lease_expires_at", "revision", "from"]
    written = json.decode((await route.endpoint()).body)
    assert written == {"lease_expires_at": "2026-11-20T00:00:00Z", "revision": 7, "from": "there"}
    assert reader(Lease)(written) == await renew()


def sent(body: RequestBody) -> Any:
    """What the service gets of the client's body."""
    call = Call("POST", "/some", lambda answer: answer, body=body)
    return json.decode(Settings("http://127.0.0.1:1", None, 1.0).request(call)["content"])


async def test_a_field_of_a_request_is_defined_in_one_place() -> None:
    """And found in the OpenAPI document, in what the client sends and in what the service checks,
    reads and says of mistakes."""

    class Rest(wire.DrainRequest, frozen=True):
        """How to rest.

        * `until_key`: Which key ends it.
        """

        until_key: Annotated[str, wire.said(maxLength=3)] | None = field(name="until", default=None)

    @allow(Also.ANYONE)
    async def rest(request: Request, body: Rest) -> wire.Heartbeat:
        raise AssertionError

    route = Route("/rest", rest, methods=["POST"], tags=["Service"])
    schema = document([*all_routes(), route])["components"]["schemas"]["Rest"]
    assert schema["properties"]["until"]["description"] == "Which key ends it."
    assert sent(Rest(until_key="abc")) == {"until": "abc"}
    taken = BodyReader(Rest)
    assert taken.read(sent(Rest(2.0, "abc"))) == Rest(2.0, "abc")
    for wrong, message in (
        ({"until": "long"}, "until: String should have at most 3 characters"),
        ({"untill": "abc"}, "untill: unknown; did you mean 'until'?"),
    ):
        with pytest.raises(RequestRefused) as refused:
            taken.read(wrong)
        assert json.decode(refused.value.response.body)["detail"] == message


# Words of a schema that limit no value, and those of `BodyReader` and of `_CHECKS`.
WORDS = {"description", "examples", "default", "type", "enum", "format", "anyOf", "$ref", "not"}
WITHIN = {"items", "additionalProperties", "propertyNames"}


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for part in (*schema.get("anyOf", ()), *(schema[one] for one in WITHIN & schema.keys())):
        yield from _parts(part)


@pytest.mark.parametrize("shape", REQUESTS, ids=lambda shape: shape.__name__)
def test_each_word_of_a_schema_is_checked(shape: type[RequestBody]) -> None:
    for described in _schema(shape)["properties"].values():
        for part in _parts(described):
            assert part.keys() <= WORDS | WITHIN | LIMITS.keys()


@pytest.mark.parametrize("shape", REQUESTS, ids=lambda shape: shape.__name__)
def test_what_the_client_may_send_is_read(shape: type[RequestBody]) -> None:
    """Each example of the document is read, and is sent as it was read."""
    examples = _schema(shape).get("examples", ())
    assert examples or shape in (wire.LogIn, *ITEMS)
    for example in examples:
        read = BodyReader(shape).read(example)
        assert sent(read) == example
        assert BodyReader(shape).read(sent(read)) == read


@pytest.mark.parametrize(("shape", "name"), SECRETS)
def test_secrets_are_not_shown(shape: type[Any], name: str) -> None:
    message = reader(shape)({**sample(_schema(shape), "all"), name: "s3cr3t"})
    assert getattr(message, name) == "s3cr3t"
    for said in (repr(message), pretty_repr(message)):
        assert "s3cr3t" not in said
        assert shape.__name__ in said
    with pytest.raises(BadAnswer) as refused:
        reader(shape)({**sample(_schema(shape), "all"), name: ["s3cr3t"]})
    assert "s3cr3t" not in str(refused.value)


def test_a_whole_answer_is_not_shown() -> None:
    queue = reader(wire.Queue)({**sample(_schema(wire.Queue), "all"), "added_later": "long"})
    assert "long" not in repr(queue)
    assert "long" not in pretty_repr(queue)
