"""Reading the event stream of a queue. No I/O here."""

from __future__ import annotations

import json

from counterpoise import wire
from counterpoise.errors import BadAnswer


class EventReader:
    """Reads `text/event-stream` line by line (HTML standard, *Server-sent events*)."""

    def __init__(self) -> None:
        self._name = ""
        self._id = ""
        self._data: list[str] = []

    def line(self, line: str) -> wire.Event | None:
        """Take one line without its line end; an empty line completes an event, if there is one."""
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
        return None

    def _complete(self) -> wire.Event | None:
        data, name = "\n".join(self._data), self._name or "message"
        self._data, self._name = [], ""
        if not data:
            return None
        try:
            body = json.loads(data)
        except ValueError:
            raise BadAnswer("an event is not JSON") from None
        return wire.Event(int(self._id) if self._id.isdigit() else None, name, body)
