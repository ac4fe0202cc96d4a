"""Reading the event stream of a queue. No I/O here."""

from __future__ import annotations

import re
from collections.abc import Iterator

from counterpoise import wire
from counterpoise.errors import BadAnswer
from counterpoise.reading import MOST_ANSWER_BYTES, json_of

# These alone end a line. U+2028, for one, may stand within JSON.
_LINE_END = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_REVISION = re.compile(r"[0-9]{1,18}")


class EventReader:
    """Reads `text/event-stream` piece by piece (HTML standard, *Server-sent events*)."""

    def __init__(self) -> None:
        self._name = ""
        self._id = ""
        self._data: list[str] = []
        self._size = 0
        self._line = bytearray()
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> Iterator[wire.Event]:
        """Take the next bytes; yields the events that they complete.

        Raises BadAnswer if an event is not JSON, or longer than an answer may be.
        """
        if not chunk:
            return
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._after_cr = chunk.endswith(b"\r")
        first, *others = _LINE_END.split(chunk)
        self._add(first)
        for other in others:
            event = self._take(self._end_of_line())
            if event is not None:
                yield event
            self._add(other)

    def _add(self, piece: bytes) -> None:
        self._line += piece
        if self._size + len(self._line) > MOST_ANSWER_BYTES:
            raise BadAnswer(f"an event is longer than {MOST_ANSWER_BYTES} bytes")

    def _end_of_line(self) -> str:
        line = bytes(self._line)
        self._line.clear()
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        return line.decode(errors="replace")

    def _take(self, line: str) -> wire.Event | None:
        """An empty line completes an event, if there is one."""
        if line == "":
            return self._complete()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "id":
            self._id = value
        elif name == "data":
            self._data.append(value)
            self._size += len(line)
        return None

    def _complete(self) -> wire.Event | None:
        data, name = "\n".join(self._data), self._name or "message"
        self._data, self._name, self._size = [], "", 0
        if not data:
            return None
        try:
            body = json_of(data)
        except ValueError:
            raise BadAnswer("an event is not JSON") from None
        revision = int(self._id) if _REVISION.fullmatch(self._id) else None
        return wire.Event(revision, name, body)
