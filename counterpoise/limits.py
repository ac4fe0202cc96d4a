"""What a client takes from a server at most.

The address may be wrong, and a proxy or a stranger may answer. Whatever comes, a call ends with a
result or an exception of ours, and needs a bounded amount of memory. What exceeds a limit is a
`BadAnswer`, which counts as temporary like every answer that does not follow the contract.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Generic, NoReturn, TypeVar

from counterpoise.errors import BadAnswer, InvalidToken
from counterpoise.wire import Page

T = TypeVar("T")

# The longest answer is the view of a flow that owns all partitions: 100,000 of some 200 bytes.
MOST_ANSWER_BYTES = 64 * 1024 * 1024
# The contract's documents nest four deep.
MOST_DEPTH = 32
MOST_LISTED = 1_000_000
# A listing may show a caller few items of each page.
MOST_PAGES = 10_000
MOST_CURSOR_CHARACTERS = 2_000

_NUMBER = re.compile(r"[0-9]{1,100}")
_TOKEN = re.compile(r"[!-~]{1,8192}")


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
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise _too_deep() from None
    # Most answers have so few brackets that they cannot be deep; to count them takes no time.
    if _brackets(text) > MOST_DEPTH and not _is_shallow(value):
        raise _too_deep()
    return value


class Listed(Generic[T]):
    """The items of a listing, page by page."""

    def __init__(self, max_items: int | None) -> None:
        self._max_items = max_items
        self._cursors: set[str] = set()
        self.items: list[T] = []
        self.cursor: str | None = None

    def add(self, page: Page[T]) -> bool:
        """Take a page; whether to ask for another, after `cursor`. Raises BadAnswer."""
        self.items.extend(page.items)
        self.cursor = page.next_cursor
        if self._max_items is not None and len(self.items) >= self._max_items:
            del self.items[self._max_items :]
            return False
        if self.cursor is None:
            return False
        if self.cursor in self._cursors:
            raise BadAnswer("the pages of the listing go in a circle")
        self._cursors.add(self.cursor)
        if len(self._cursors) >= MOST_PAGES or len(self.items) > MOST_LISTED:
            raise BadAnswer(f"the listing does not end: {len(self.items)} items so far")
        return True


def is_token(text: str) -> bool:
    """Whether a header can carry it: visible ASCII characters, without a blank or a line end."""
    return _TOKEN.fullmatch(text) is not None


def checked_token(text: str | None) -> str | None:
    """The token without blanks and line ends around it (files end with one); None for an empty one.

    Raises InvalidToken, which does not show it.
    """
    token = (text or "").strip()
    if not token:
        return None
    if not is_token(token):
        raise InvalidToken(
            "the token contains a character that a header cannot carry (a blank, a line end or one "
            "beyond ASCII), or is too long: give it exactly as it was handed out"
        )
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


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _too_long() -> BadAnswer:
    return BadAnswer(f"the answer is longer than {MOST_ANSWER_BYTES} bytes")


def _too_deep() -> ValueError:
    return ValueError(f"it nests more than {MOST_DEPTH} deep")
