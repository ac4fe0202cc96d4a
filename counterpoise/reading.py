"""From JSON to the messages of `wire.py`.

Unknown fields are ignored and missing optional fields have their defaults, so that a newer service
can talk to an older client (the contract, *FlowChangeUpdate*). An answer that does not follow the
contract raises `BadAnswer`, which counts as temporary: it may come from a proxy in between.

**Limits.** The address may be wrong, and a proxy or a stranger may answer. Whatever comes, a call
ends with a result or an exception of ours, and needs a bounded amount of memory. What exceeds a
limit is a `BadAnswer`, too.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import DecodeError, Struct, ValidationError, convert, structs
from msgspec.json import Decoder, decode

from counterpoise.documents import Document
from counterpoise.errors import BadAnswer, InvalidSettings
from counterpoise.wire import TOKEN_PATTERN, Page, Rebalance

T = TypeVar("T")

# Far above the longest answer, the view of a flow that owns all 4,096 partitions.
MOST_ANSWER_BYTES = 64 * 1024 * 1024
# The contract's documents nest four deep.
MOST_DEPTH = 32
MOST_LISTED = 1_000_000
# A listing may show a caller few items of each page.
MOST_PAGES = 10_000

# msgspec examines a message class when it first reads one, and a second thread that reads such a
# message meanwhile crashes the process. So each class is examined by one thread, before any reads.
_examined: set[Any] = set()
_examining = threading.Lock()

_NUMBER = re.compile(r"[0-9]{1,100}")
_TOKEN = re.compile(TOKEN_PATTERN)


class Content:
    """The body of one answer, collected piece by piece."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        """Raises BadAnswer for a body that is announced as too long, or compressed.

        No call asks for compression: a few bytes could become any number.
        """
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise BadAnswer("the answer is compressed, which was not asked for")
        announced = headers.get("content-length", "")
        if _NUMBER.fullmatch(announced) and float(announced) > MOST_ANSWER_BYTES:
            raise _too_long()
        self._bytes = bytearray()

    def add(self, chunk: bytes) -> None:
        """Raises BadAnswer when it gets too long."""
        if len(self._bytes) + len(chunk) > MOST_ANSWER_BYTES:
            raise _too_long()
        self._bytes += chunk

    def all(self) -> bytes:
        return bytes(self._bytes)


def json_of(text: str | bytes) -> Any:
    """The decoded JSON. Raises ValueError if it is none, and for what nests too deeply."""
    try:
        value = decode(text)
    except RecursionError:
        raise _too_deep() from None
    except DecodeError as wrong:
        raise ValueError(str(wrong)) from None
    # Most answers have so few brackets that they cannot be deep; to count them takes no time.
    if _brackets(text) > MOST_DEPTH and not _is_shallow(value):
        raise _too_deep()
    return value


class Parts(Struct, Generic[T], frozen=True):
    """Items that may be divided: the last of a page goes on as the first of the next."""

    goes_on: Callable[[T], bool]
    joined: Callable[[T, T], T]


class Listed(Generic[T]):
    """The items of a listing, page by page."""

    def __init__(self, max_items: int | None, parts: Parts[T] | None = None) -> None:
        self._max_items = max_items
        self._parts = parts
        self._cursors: set[str] = set()
        self.items: list[T] = []
        self.cursor: str | None = None

    def add(self, page: Page[T]) -> bool:
        """Take a page; whether to ask for another, after `cursor`. Raises BadAnswer."""
        items = page.items
        if self._parts is not None and self._goes_on() and items:
            self.items[-1], items = self._parts.joined(self.items[-1], items[0]), items[1:]
        self.items.extend(items)
        self.cursor = page.next_cursor
        if self._max_items is not None and len(self.items) >= self._max_items:
            del self.items[self._max_items :]
            if not self._goes_on():
                return False
        if self.cursor is None:
            return False
        if self.cursor in self._cursors:
            raise BadAnswer("the pages of the listing go in a circle")
        self._cursors.add(self.cursor)
        if len(self._cursors) >= MOST_PAGES or len(self.items) > MOST_LISTED:
            raise BadAnswer(f"the listing does not end: {len(self.items)} items so far")
        return True

    def _goes_on(self) -> bool:
        """Whether the last item has another part."""
        return self._parts is not None and bool(self.items) and self._parts.goes_on(self.items[-1])


def checked_token(text: str | None) -> str | None:
    """The token without blanks and line ends around it (files end with one); None for an empty one.

    Raises InvalidSettings, which does not show it.
    """
    token = (text or "").strip()
    if not token:
        return None
    if not _TOKEN.fullmatch(token):
        raise InvalidSettings(
            "the token contains a character that a header cannot carry (a blank, a line end or one "
            "beyond ASCII), or is too long: give it exactly as it was handed out"
        )
    return token


def token_in(file: str | os.PathLike[str]) -> str:
    """The token in a file. Raises InvalidSettings, which does not show it."""
    try:
        with open(file, encoding="utf-8") as opened:
            # Longer than any, and less than a disk that was named by mistake.
            token = checked_token(opened.read(1 << 16))
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidSettings(f"the token in {os.fspath(file)} cannot be read: {said}") from None
    except InvalidSettings as error:
        raise InvalidSettings(f"{os.fspath(file)}: {error}") from None
    if token is None:
        raise InvalidSettings(f"{os.fspath(file)} is empty: it should have the token")
    return token


def _brackets(text: str | bytes) -> int:
    if isinstance(text, str):
        return text.count("{") + text.count("[")
    return text.count(b"{") + text.count(b"[")


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return True
    return False


def _too_long() -> BadAnswer:
    return BadAnswer(f"the answer is longer than {MOST_ANSWER_BYTES} bytes")


def _too_deep() -> ValueError:
    return ValueError(f"it nests more than {MOST_DEPTH} deep")


def reader(shape: type[T]) -> Callable[[Any], T]:
    """Makes a message of a decoded body; raises BadAnswer, which names what is wrong."""
    add_raw = _with_raw if issubclass(shape, Document) else None

    def read(body: Any) -> T:
        return _converted(add_raw(body) if add_raw else body, shape)

    return read


def page_reader(shape: type[T]) -> Callable[[Any], Page[T]]:
    """As `reader`, for a page of such messages."""
    page: Any = Page[shape]  # type: ignore[valid-type]
    has_raw = issubclass(shape, Document)

    def read(body: Any) -> Page[T]:
        if has_raw and isinstance(body, dict) and isinstance(items := body.get("items"), list):
            body = {**body, "items": [_with_raw(item) for item in items]}
        read: Page[T] = _converted(body, page)
        return read

    return read


def _with_raw(body: Any) -> Any:
    return {**body, "raw": body} if isinstance(body, dict) else body


def _converted(body: Any, shape: type[T]) -> T:
    if shape not in _examined:
        with _examining:
            Decoder(shape)
            _examined.add(shape)
    try:
        return convert(body, shape)
    except ValidationError as wrong:
        raise BadAnswer(f"the answer is not what the contract says: {wrong}") from None


def joined(one: Rebalance, following: Rebalance) -> Rebalance:
    """An entry of the history with further moves."""
    moves = [*(one.raw.get("moves") or ()), *(following.raw.get("moves") or ())]
    clients = {**one.clients, **following.clients}
    return structs.replace(
        following,
        moves=(*one.moves, *following.moves),
        clients=clients,
        raw={**following.raw, "moves": moves, "clients": clients},
    )
