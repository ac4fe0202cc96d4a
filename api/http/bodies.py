"""Reads the bodies of requests so that none holds the event loop.

A call that names partitions may name 100,000 of them. To parse and check them at once would hold
the loop for a quarter of a second, and a hostile body of the same size for ten. So a body above
`SMALL_BYTES` is read in pieces of about `PIECE_BYTES`, and other requests have their turn between
them. What it may hold is known beforehand: plain values, and one large list or mapping of plain
items. A piece is cut where an item ends, by a pattern that cannot be misled by quotes, and parsed
and validated by itself.

Reading ends at the first piece with a wrong item. Of that piece only the wrong items are kept, so
that the answer names them and not all that follows. For the same reason only `MOST_UNKNOWN` unknown
fields of an object are looked at.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.requests import Request

from api.schemas.common import MOST_PARTITIONS
from broker.core.errors import Invalid
from broker.pieces import pause

# Where the scope of a request has its body, until it is parsed.
BODY = "counterpoise.body"
# What takes at most some milliseconds, whatever it holds.
SMALL_BYTES = 65536
PIECE_BYTES = 65536
MOST_UNKNOWN = 5
MOST_PLAIN_FIELDS = 20

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_PLAIN = rb"(?:" + _STRING + rb"|[-+0-9.eE]{1,100}|true|false|null)"
_OBJECT = rb'\{(?:[^{}"]++|' + _STRING + rb")*+\}"
_START = re.compile(rb"\s*\{\s*")
_NAME = re.compile(rb"\s*(" + _STRING + rb")\s*:\s*")
_PLAIN_VALUE = re.compile(_PLAIN)
_NEXT = re.compile(rb"\s*,\s*")
_END = re.compile(rb"\s*\}\s*\Z")
_OBJECTS = re.compile(rb"\s*" + _OBJECT + rb"(?:\s*,\s*" + _OBJECT + rb")*+")
_PAIR = _STRING + rb"\s*:\s*" + _PLAIN
_PAIRS = re.compile(rb"\s*" + _PAIR + rb"(?:\s*,\s*" + _PAIR + rb")*+")


class Large:
    """The field of a request that may be large: a list of objects, or a mapping of plain values."""

    def __init__(self, model: type[BaseModel], name: str) -> None:
        """The field `name` of a request's `model`."""
        self.name = name
        field = model.model_fields[name]
        annotation: Any = field.annotation
        limits = (getattr(limit, "max_length", None) for limit in field.metadata)
        self.most: int = next(filter(None, limits), MOST_PARTITIONS)
        self.mapping = get_origin(annotation) is dict
        self.item: type[BaseModel] | None = None if self.mapping else get_args(annotation)[0]
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


class ReadRequest(Request):
    """A request whose body was read and parsed; FastAPI asks it for the result."""

    def __init__(self, request: Request, value: Callable[[], object], body: bytes = b"?") -> None:
        """`body`: what stands for it; FastAPI looks only at whether it is empty."""
        super().__init__(request.scope, request.receive)
        self._value = value
        self._stand_in = body

    async def body(self) -> bytes:
        return self._stand_in

    async def json(self) -> object:
        """Raises `json.JSONDecodeError`."""
        return self._value()


async def read(request: Request, model: type[BaseModel], large: Large | None) -> Request:
    """The request with its parsed body, to be validated by `model`. Raises `Invalid`."""
    # Taken out, so that its memory is free when it is parsed.
    body: bytes = request.scope.pop(BODY, b"")
    if not body:
        return ReadRequest(request, lambda: None, b"")
    if large is None or len(body) <= SMALL_BYTES:
        return ReadRequest(request, lambda: _bounded(orjson.loads(body), model, large))
    value = await _Reader(body, large).read()
    return ReadRequest(request, lambda: _few_unknown(value, model))


class _Reader:
    """Reads one large body."""

    def __init__(self, body: bytes, large: Large) -> None:
        self._body = body
        self._large = large
        self._at = 0
        self._wrong = False

    async def read(self) -> dict[str, object]:
        """Its value, the large field validated as far as it is right. Raises `Invalid`."""
        value: dict[str, object] = {}
        self._take(_START, "the body is not a JSON object")
        for _ in range(MOST_PLAIN_FIELDS):
            name = str(self._parsed(self._take(_NAME, "expected a field's name")[1]))
            opening = b"{" if self._large.mapping else b"["
            if name == self._large.name and self._body.startswith(opening, self._at):
                self._at += 1
                value[name] = await self._items()
                if self._wrong:
                    return value
            else:
                plain = self._take(_PLAIN_VALUE, f"{name[:200]} is not a plain value")
                value[name] = self._parsed(plain[0])
            if _END.match(self._body, self._at):
                return value
            self._take(_NEXT, "expected , or }")
        raise self._invalid("too many fields")

    async def _items(self) -> object:
        """The items of the large field up to its end, or up to the first wrong ones."""
        mapping = self._large.mapping
        pattern, kind, closing = (_PAIRS, "plain values", b"}") if mapping else _OF_LIST
        end = re.compile(rb"\s*" + re.escape(closing))
        pieces: list[Any] = []
        count = 0
        found = end.match(self._body, self._at)
        while not found:
            piece = pattern.match(self._body, self._at, self._at + PIECE_BYTES)
            if piece is None:
                raise self._invalid(f"{self._large.name} should have {kind}, none of them large")
            self._at = piece.end()
            text = b"{%s}" % piece[0] if mapping else b"[%s]" % piece[0]
            checked, right = self._large.checked(self._parsed(text))
            pieces.append(checked)
            count += len(checked)
            # More than there may be are not read; that they are too many is said of the whole.
            self._wrong = not right or count > self._large.most
            if self._wrong:
                break
            found = end.match(self._body, self._at)
            if not found:
                self._take(_NEXT, f"expected , or {closing.decode()}")
            await pause()
        self._at = found.end() if found else self._at
        await pause()
        if mapping:
            return {name: value for piece in pieces for name, value in piece.items()}
        return [item for piece in pieces for item in piece]

    def _parsed(self, text: bytes) -> Any:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise self._invalid(f"not JSON: {error.msg}") from None

    def _take(self, pattern: re.Pattern[bytes], expected: str) -> re.Match[bytes]:
        found = pattern.match(self._body, self._at, self._at + PIECE_BYTES)
        if found is None:
            raise self._invalid(expected)
        self._at = found.end()
        return found

    def _invalid(self, message: str) -> Invalid:
        message = f"{message}, at byte {self._at}"
        return Invalid(f"body: {message}", [("body", message)])


_OF_LIST = (_OBJECTS, "objects of plain values", b"]")


def _bounded(value: Any, model: type[BaseModel], large: Large | None) -> Any:
    """A small body's value without most of what is wrong with it."""
    if not isinstance(value, dict):
        return value
    value = _few_unknown(value, model)
    items = value.get(large.name) if large is not None else None
    if large is not None and isinstance(items, dict if large.mapping else list):
        value = {**value, large.name: large.checked(items)[0]}
    return value


def _few_unknown(value: Any, model: type[BaseModel]) -> Any:
    """An object without most of its unknown fields."""
    known = model.model_fields
    if not isinstance(value, dict) or len(value) <= len(known) + MOST_UNKNOWN:
        return value
    unknown = itertools.islice((name for name in value if name not in known), MOST_UNKNOWN)
    kept = {name: value[name] for name in known if name in value}
    return kept | {name: value[name] for name in unknown}
