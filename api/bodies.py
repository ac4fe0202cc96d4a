"""Bodies of requests: bounded before the call begins, and read so that none holds the event loop.

**Read when the caller is known.** A route finds out who calls, and only then awaits the body
(`arrive`). Who may not make the call has the answer before its body has come, and takes nothing of
the budget. An answer before the end of the body closes the connection, so nothing of the body is
taken for the next request.

**Bounded.** Only calls that name partitions have large bodies; others have at most `SMALL_BYTES`.
The limit of the size holds for bodies with a declared length and for chunked ones. A body is read
completely before the call begins, within a limited time: a slow sender keeps only its connection
busy.

All bodies together have a budget in bytes (`BodyBudget`), because many callers that each keep their
rate could fill the memory with bodies that wait for their turn. A body takes its declared length
before its first byte is read, a chunked one the limit, and gives it back when the answer begins.
One caller has at most a quarter of the budget, and all callers of one address have half of it
together: a flow is a caller, and one key may have many. Renewals of leases have no bodies and need
none.

**Read in pieces.** A call that names partitions may name 100,000 of them. To parse and check them
at once would hold the loop for a quarter of a second, and a hostile body of the same size for ten.
So a body above `SMALL_BYTES` is read in pieces of about `PIECE_BYTES`, and other requests have
their turn between them. What it may hold is known beforehand: plain values, and one or two large
lists or mappings. A piece is cut where an item ends, by a pattern that cannot be misled by quotes,
and parsed and validated by itself. An item may have a large list itself, as the children of a
partition have their parents. One that is larger than a piece is read like the body: its plain
values, and its list in pieces.

Reading ends at the first piece with a wrong item. Of that piece only the wrong items are kept, so
that the answer names them and not all that follows. In the list of an item, what follows is passed
over: the rest of the item is still to come. For the same reason only `MOST_UNKNOWN` unknown
fields of an object are named.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, get_args, get_origin

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.head import HEAD, Head
from api.metrics import Metrics
from api.problems import of_defect, problem, shown
from api.rates import Rates
from api.schemas.common import MOST_PARTITIONS
from broker.core.errors import Invalid
from broker.pieces import pause

BODY_SECONDS = 10.0
SHARE_OF_ONE = 4
SHARE_OF_ADDRESS = 2
# The calls that name partitions. A queue may have the name of one of them.
_LARGE = re.compile(
    "POST /v1/queues(/[^/]+/(positions|flows/[^/]+/(commit|release|ready|children|conditions)))?"
)
# Where the scope of a request has its `Body`, if it has one.
BODY = "counterpoise.body"
# In the scope of a request whose body has been received.
COMPLETE = "counterpoise.complete"
# What takes at most some milliseconds, whatever it holds.
SMALL_BYTES = 65536
PIECE_BYTES = 65536
MOST_UNKNOWN = 5
MOST_PLAIN_FIELDS = 20

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_PLAIN = rb"(?:" + _STRING + rb"|[-+0-9.eE]{1,100}|true|false|null)"
_OBJECT = rb'\{(?:[^{}"]++|' + _STRING + rb")*+\}"
_OBJECT_WITH_OBJECTS = rb'\{(?:[^{}"]++|' + _STRING + rb"|" + _OBJECT + rb")*+\}"
_START = re.compile(rb"\s*\{\s*")
_NAME = re.compile(rb"\s*(" + _STRING + rb")\s*:\s*")
_PLAIN_VALUE = re.compile(_PLAIN)
_NEXT = re.compile(rb"\s*,\s*")
_BRACE = re.compile(rb"\s*\}")
_REST = re.compile(rb"\s*\Z")
_PAIR = _STRING + rb"\s*:\s*" + _PLAIN


def _several(item: bytes) -> re.Pattern[bytes]:
    """Items with commas between them."""
    return re.compile(rb"\s*" + item + rb"(?:\s*,\s*" + item + rb")*+")


_PAIRS, _VALUES = _several(_PAIR), _several(_PLAIN)
_OBJECTS, _OBJECTS_WITH_OBJECTS = _several(_OBJECT), _several(_OBJECT_WITH_OBJECTS)


def may_be_large(method: str, path: str) -> bool:
    """Whether a body of this call may be larger than `SMALL_BYTES`."""
    return _LARGE.fullmatch(f"{method} {path}") is not None


class BodyBudget:
    """The bytes of all bodies that are read or wait for their turn."""

    def __init__(self, total: int, largest: int) -> None:
        """`largest`: the largest body; one of them always fits."""
        self.total = max(total, largest)
        self.share = max(self.total // SHARE_OF_ONE, largest)
        self.share_of_address = max(self.total // SHARE_OF_ADDRESS, largest)
        self.taken = 0
        self._by_caller: Counter[object] = Counter()
        self._by_address: Counter[object] = Counter()

    def take(self, head: Head, size: int) -> bool:
        """False if so much is not left, for this caller, for its address, or at all."""
        if (
            self.taken + size > self.total
            # A counter does not keep what it is only asked for.
            or self._by_caller[head.caller] + size > self.share
            or self._by_address[head.network] + size > self.share_of_address
        ):
            return False
        self._add(head, size)
        return True

    def give_back(self, head: Head, size: int) -> None:
        """So much of what the caller has taken is free again."""
        self._add(head, -size)

    def _add(self, head: Head, size: int) -> None:
        self.taken += size
        for counter, whose in ((self._by_caller, head.caller), (self._by_address, head.network)):
            counter[whose] += size
            if not counter[whose]:
                del counter[whose]


class RequestRefused(Exception):
    """The request gets this answer, and is not carried out."""

    def __init__(self, response: Response) -> None:
        self.response = response


class _HungUp(Exception):
    """The caller disconnected before its body was complete."""


class _Answer:
    """Where the answer of a request goes: it gives back what the request holds when it begins."""

    __slots__ = ("_send", "body", "held", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.body: Body | None = None
        # 0: it has not begun.
        self.status = 0
        # Each gives back something that was taken.
        self.held: list[Callable[[], object]] = []

    async def __call__(self, message: Message) -> None:
        if not self.status:
            self.status = message["status"]
            self.give_back()
            if self.body is not None and not self.body.is_whole:
                # Where the next request begins is not known.
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await self._send(message)

    def give_back(self) -> None:
        """The request holds nothing any more; repeating it is harmless."""
        while self.held:
            self.held.pop()()


class Body:
    """The body of one request."""

    __slots__ = ("_answer", "_head", "_limits", "_receive", "content", "is_whole")

    def __init__(self, limits: Limits, head: Head, receive: Receive, answer: _Answer) -> None:
        self._limits = limits
        self._head = head
        self._receive = receive
        self._answer = answer
        self.is_whole = False
        self.content = b""

    async def arrive(self) -> None:
        """Returns when it is whole and the call may begin. Raises RequestRefused, _HungUp."""
        if self.is_whole:
            return
        # Who sends slowly is not in progress meanwhile.
        self._answer.give_back()
        self.content = await self._limits.read(self._head, self._receive, self._answer)
        self.is_whole = True
        if not await self._limits.rates.begin(self._head, self._answer.held):
            raise await self._limits.too_many()


async def arrive(scope: Scope) -> None:
    """Returns when the body of this request, if it has one, has arrived. Its caller must be known.

    Raises RequestRefused.
    """
    body: Body | None = scope.get(BODY)
    if body is not None:
        await body.arrive()


class Limits:
    """ASGI middleware: see this module."""

    def __init__(
        self,
        app: ASGIApp,
        limit_bytes: int,
        budget: BodyBudget,
        rates: Rates,
        metrics: Metrics,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        """`limit_bytes`: of a large body."""
        self.app = app
        self.limit_bytes = limit_bytes
        self.budget = budget
        self.rates = rates
        self.metrics = metrics
        self.body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        answer = _Answer(send)
        try:
            await self._admit(scope, receive, answer)
            await self.app(scope, receive, answer)
        except RequestRefused as refused:
            await refused.response(scope, receive, answer)
        except _HungUp:
            pass
        except Exception as error:
            response = of_defect(scope, error)
            if answer.status:
                # Too late for another answer; the server cuts the connection.
                raise
            await response(scope, receive, answer)
        finally:
            if answer.held:
                answer.give_back()
            # They refer to each other.
            answer.body = None
            self.metrics.count(scope, started, answer.status or 500)

    async def _admit(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Returns when the caller may be looked at; the body is still to come.

        Raises RequestRefused.
        """
        head = scope[HEAD] = Head(scope)
        if b"cookie" in head.fields:
            # FastAPI reads cookies for each call, and anybody may send them: Python's parser needs
            # eight seconds for 60 kB of quotes (before 3.11.10 and 3.12.6).
            scope["headers"] = [field for field in scope["headers"] if field[0] != b"cookie"]
        if head.has_body:
            scope[BODY] = answer.body = Body(self, head, receive, answer)
        if wait_seconds := self.rates.wait_seconds(head):
            raise await self.too_many(wait_seconds)
        if not self.rates.enter(head, answer.held):
            raise await self.too_many()
        if head.has_body:
            self._check(head)

    def _check(self, head: Head) -> None:
        """Raise RequestRefused for a body that the head shows to be of no use."""
        limit = self._most_bytes(head)
        if head.length > limit:
            raise _too_large(limit)
        media_type = head.fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if media_type != b"application/json":
            message = "Send the body as JSON with 'Content-Type: application/json'."
            raise RequestRefused(problem("unsupported_media_type", message))

    def _most_bytes(self, head: Head) -> int:
        if may_be_large(head.method, head.path):
            return self.limit_bytes
        return min(SMALL_BYTES, self.limit_bytes)

    async def read(self, head: Head, receive: Receive, answer: _Answer) -> bytes:
        """The whole body, which holds its part of the budget. Raises RequestRefused, _HungUp."""
        limit = self._most_bytes(head)
        taken = limit if head.is_chunked else head.length
        if not self.budget.take(head, taken):
            self.rates.refused.labels("bodies").inc()
            raise await self.too_many()
        answer.held.append(partial(self.budget.give_back, head, taken))
        try:
            async with asyncio.timeout(self.body_seconds):
                body = await _whole(receive, limit)
        except TimeoutError:
            message = f"The body did not arrive within {self.body_seconds:g} s; send it at once."
            raise RequestRefused(problem("body_timeout", message)) from None
        if len(body) < taken:
            self.budget.give_back(head, taken - len(body))
            answer.held[-1] = partial(self.budget.give_back, head, len(body))
        return body

    async def too_many(self, wait_seconds: float = 1.0) -> RequestRefused:
        """The answer 429, after a delay (`Rates.hold`)."""
        await self.rates.hold()
        seconds = max(1, math.ceil(wait_seconds))
        response = problem(
            "too_many_requests",
            f"This caller is over its rate, or the service is at its limit; try again in "
            f"{seconds} s, and ask for several partitions at once.",
            headers={"Retry-After": str(seconds)},
        )
        return RequestRefused(response)


async def _whole(receive: Receive, limit: int) -> bytes:
    """The body, joined from what arrives of it. Raises RequestRefused, _HungUp."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _HungUp
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return b"".join(pieces)


def _too_large(limit: int) -> RequestRefused:
    message = f"The body of this request may have {limit} bytes; send fewer partitions at once."
    return RequestRefused(problem("too_large", message))


class LargeField:
    """The field of a request, or of an item, that may be large: a list of objects or of plain
    values, or a mapping of plain values.
    """

    def __init__(self, model: type[BaseModel], name: str) -> None:
        """The field `name` of a request's `model`, or of an item's."""
        self.name = name
        field = model.model_fields[name]
        annotation: Any = field.annotation
        limits = (getattr(limit, "max_length", None) for limit in field.metadata)
        self.most: int = next(filter(None, limits), MOST_PARTITIONS)
        self.mapping = get_origin(annotation) is dict
        kind = None if self.mapping else get_args(annotation)[0]
        is_object = isinstance(kind, type) and issubclass(kind, BaseModel)
        self.item: type[BaseModel] | None = kind if is_object else None
        # The large list of an item.
        self.inner = None if self.item is None else _list_of(self.item)
        self.opening, self.closing = (b"{", b"}") if self.mapping else (b"[", b"]")
        self.pattern, self.kind = _VALUES, "plain values"
        if self.mapping:
            self.pattern = _PAIRS
        elif self.item is not None:
            nested = self.inner is not None and self.inner.item is not None
            self.pattern = _OBJECTS_WITH_OBJECTS if nested else _OBJECTS
            self.kind = "objects of plain values"
        # In pieces: the limits of the whole are checked with the whole.
        self._piece: TypeAdapter[Any] = TypeAdapter(
            annotation if self.item is None else Annotated[annotation, Field(fail_fast=True)],
            config=ConfigDict(strict=True) if self.mapping else None,
        )

    def checked(self, piece: Any) -> tuple[Any, bool]:
        """A piece, validated, and True; if it is wrong, what is needed to say so, and False."""
        if self.item is not None:
            piece = [_few_unknown(item, self.item) for item in piece]
        try:
            return self._piece.validate_python(piece), True
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
        if self.mapping:
            names = {item["loc"][0] for item in found[:MOST_UNKNOWN]}
            return {name: piece[name] for name in names if name in piece}, False
        # All before the wrong one is right, and the wrong one keeps its index.
        return piece[: int(found[0]["loc"][0]) + 1], False


def _list_of(model: type[BaseModel]) -> LargeField | None:
    """The list in an item; no item has several."""
    for name, field in model.model_fields.items():
        if get_origin(field.annotation) is list:
            return LargeField(model, name)
    return None


class ReadRequest(Request):
    """A request whose body was read and parsed; FastAPI asks it for the result."""

    def __init__(self, request: Request, value: object, body: bytes = b"?") -> None:
        """`body`: what stands for it; FastAPI looks only at whether it is empty."""
        super().__init__(request.scope, request.receive)
        self._value = value
        self._stand_in = body

    async def body(self) -> bytes:
        return self._stand_in

    async def json(self) -> object:
        return self._value


async def read_body(
    request: Request, model: type[BaseModel], large: Sequence[LargeField]
) -> Request:
    """The request with its parsed body, to be validated by `model`. Raises `Invalid`."""
    arrived: Body | None = request.scope.get(BODY)
    body = b"" if arrived is None else arrived.content
    if arrived is not None:
        # So that its memory is free when it is parsed.
        arrived.content = b""
    if not body:
        return ReadRequest(request, None, b"")
    if large and len(body) > SMALL_BYTES:
        value: object = await _Reader(body, large).read()
        return ReadRequest(request, _few_unknown(value, model))
    try:
        value = _loaded(body)
    except orjson.JSONDecodeError as error:
        raise _invalid(f"not JSON: {error.msg} at character {error.pos}") from None
    return ReadRequest(request, _bounded(value, model, large))


def _loaded(text: bytes) -> Any:
    """The value of the text. Raises `orjson.JSONDecodeError`, and `Invalid` if one of its objects
    has a field twice: which of the two is meant is not known.
    """
    value = orjson.loads(text)
    try:
        # Of two fields with one name only the last is left, so there are fewer colons. Those in
        # texts come back as they were, unless they are written as numbers.
        colons = orjson.dumps(value).count(b":")
    except orjson.JSONEncodeError:
        raise _invalid("too many objects or lists within each other") from None
    if text.count(b":") != colons or b"\\u003" in text:
        json.loads(text, object_pairs_hook=_once, parse_int=str, parse_float=str)
    return value


def _once(fields: list[tuple[str, object]]) -> dict[str, object]:
    """An object of these fields. Raises `Invalid` if one is there twice."""
    value = dict(fields)
    if len(value) < len(fields):
        name, _ = Counter(name for name, _ in fields).most_common(1)[0]
        raise _twice(name)
    return value


def _twice(name: str) -> Invalid:
    return _invalid(f"an object has the field {shown(name)!r} twice")


def _invalid(message: str) -> Invalid:
    return Invalid(f"body: {message}", [("body", message)])


class _Reader:
    """Reads one large body."""

    def __init__(self, body: bytes, large: Sequence[LargeField]) -> None:
        self._body = body
        self._large = large
        self._at = 0
        self._wrong = False

    async def read(self) -> dict[str, object]:
        """Its value, the large field validated as far as it is right. Raises `Invalid`."""
        value = await self._object(*self._large)
        if not self._wrong:
            self._take(_REST, "expected nothing after the object")
        return value

    async def _object(self, *fields: LargeField) -> dict[str, object]:
        """The object here: the body, or a large item. `fields`: its large ones."""
        value: dict[str, object] = {}
        self._take(_START, "expected a JSON object")
        for _ in range(MOST_PLAIN_FIELDS):
            name = str(self._parsed(self._take(_NAME, "expected a field's name")[1]))
            if name in value:
                raise _twice(name)
            large = next((one for one in fields if one.name == name), None)
            if large is not None and self._body.startswith(large.opening, self._at):
                self._at += 1
                value[name] = await self._items(large)
                if self._wrong:
                    return value
            else:
                plain = self._take(_PLAIN_VALUE, f"{name[:200]} is not a plain value")
                value[name] = self._parsed(plain[0])
            if closed := _BRACE.match(self._body, self._at):
                self._at = closed.end()
                return value
            self._take(_NEXT, "expected , or }")
        raise self._invalid("too many fields")

    async def _items(self, large: LargeField) -> object:
        """The items of the large field up to its end. Of the body's, up to the first wrong ones; of
        an item's, wrong ones are the last that are kept.
        """
        end = re.compile(rb"\s*" + re.escape(large.closing))
        items: list[Any] = []
        mapping: dict[str, Any] = {}
        count, wrong = 0, False
        found = end.match(self._body, self._at)
        while not found:
            piece = await self._piece(large)
            if not wrong:
                if large.mapping and (repeated := mapping.keys() & piece.keys()):
                    raise _twice(repeated.pop())
                checked, right = large.checked(piece)
                if large.mapping:
                    mapping |= checked
                else:
                    items += checked
                count += len(checked)
                # More than there may be are not read; that they are too many is said of the whole.
                wrong = not right or count > large.most
                self._wrong = wrong and large in self._large
                if self._wrong:
                    break
            found = end.match(self._body, self._at)
            if not found:
                self._take(_NEXT, f"expected , or {large.closing.decode()}")
            await pause()
        self._at = found.end() if found else self._at
        await pause()
        return mapping if large.mapping else items

    async def _piece(self, large: LargeField) -> Any:
        """As many of the next items as a piece has; one item if that is larger."""
        found = large.pattern.match(self._body, self._at, self._at + PIECE_BYTES)
        if found is not None:
            self._at = found.end()
            return self._parsed(large.opening + found[0] + large.closing)
        if large.inner is None:
            raise self._invalid(f"{large.name} should have {large.kind}, none of them large")
        return [await self._object(large.inner)]

    def _parsed(self, text: bytes) -> Any:
        try:
            return _loaded(text)
        except orjson.JSONDecodeError as error:
            raise self._invalid(f"not JSON: {error.msg}") from None

    def _take(self, pattern: re.Pattern[bytes], expected: str) -> re.Match[bytes]:
        found = pattern.match(self._body, self._at, self._at + PIECE_BYTES)
        if found is None:
            raise self._invalid(expected)
        self._at = found.end()
        return found

    def _invalid(self, message: str) -> Invalid:
        return _invalid(f"{message}, at byte {self._at}")


def _bounded(value: Any, model: type[BaseModel], large: Sequence[LargeField]) -> Any:
    """A small body's value without most of what is wrong with it."""
    if not isinstance(value, dict):
        return value
    value = _few_unknown(value, model)
    for field in large:
        items = value.get(field.name)
        if isinstance(items, dict if field.mapping else list):
            value = {**value, field.name: field.checked(items)[0]}
    return value


def _few_unknown(value: Any, model: type[BaseModel]) -> Any:
    """An object without most of its unknown fields."""
    known = model.model_fields
    if not isinstance(value, dict) or len(value) <= len(known) + MOST_UNKNOWN:
        return value
    unknown = itertools.islice((name for name in value if name not in known), MOST_UNKNOWN)
    kept = {name: value[name] for name in known if name in value}
    return kept | {name: value[name] for name in unknown}
