"""The source's end of the channel to its driver: it reads the driver's documents, writes the view.

A thread checks some twenty times a second. This is cheap, because documents rarely change and a
stamp shows it. It reads:

- `done`: the end offset of the latest micro-batch in Spark's commit log. Spark itself tells the
  source only when it asks for the next offset, which is a trigger interval later, and never when
  the query is stopped before.
- `drain`: the order to leave.
- `stopped`: Spark's context has stopped, and the flow is to leave at once.
- `ready`: the partitions whose state the driver has restored (docs, *Warm-up*).

If the channel fails (a full disk), its functions fail, but never the query.
"""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections.abc import Callable
from typing import Protocol

from counterpoise.spark.channel.channel import Channel, Name
from counterpoise.spark.channel.status import QueryStatus
from counterpoise.spark.offsets import Json

logger = logging.getLogger("counterpoise.spark")

POLL_SECONDS = 0.05
# How often a view is written if only its figures have changed.
REPORT_SECONDS = 0.2


class DrivenQuery(Protocol):
    """The part of the consumption that the correspondent uses."""

    def held(self) -> tuple[object, ...]: ...

    def status(self) -> QueryStatus: ...

    def batch_done(self, end: Json) -> bool: ...

    def rows_dropped(self, total: int) -> None: ...

    def restored(self, document: Json) -> None: ...

    def leave(self, timeout_seconds: float) -> None: ...

    def spark_has_stopped(self) -> None: ...


class Correspondent:
    """Reads and writes for one source, on the channel of this source."""

    def __init__(self, channel: Channel, speaker: DrivenQuery) -> None:
        self._channel = channel
        self._speaker = speaker
        self._closed = threading.Event()
        self._seen: dict[Name, tuple[int, int] | None] = {}
        self._held: tuple[object, ...] = ()
        self._said: Json | None = None
        self._said_at = 0.0
        self._failed: set[tuple[Callable[[], None], type[Exception]]] = set()
        self._drained = False
        self._ended = False
        self._hearing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="counterpoise-channel", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Write no more, and remove the documents: they are not true any longer."""
        self._closed.set()
        self._thread.join(1.0)
        self._channel.drop("view", "plan", "ready", "drain", "stopped", "done")

    def wait_ended(self, timeout_seconds: float) -> None:
        """Wait until the driver has written its last word on this query, for about that time."""
        give_up_at = time.monotonic() + timeout_seconds
        while not self._ended and time.monotonic() < give_up_at:
            time.sleep(POLL_SECONDS / 5)
            self._guarded(self._hear_done)

    def _run(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            self._guarded(self._hear_done)
            self._guarded(self._hear_ready)
            self._guarded(self._hear_drain)
            self._guarded(self._hear_stopped)
            self._guarded(self._say)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            # Log each kind once, because it is tried again twenty times a second.
            if (act, type(error)) not in self._failed:
                logger.exception("counterpoise: the channel to the driver fails")
            self._failed.add((act, type(error)))

    def _hear_done(self) -> None:
        with self._hearing:
            document = self._news("done")
            if document is None:
                return
            end = document.get("offset")
            if isinstance(end, dict):
                self._speaker.batch_done(end)
            self._speaker.rows_dropped(int(document.get("dropped") or 0))
            self._ended = self._ended or bool(document.get("ended"))

    def _hear_ready(self) -> None:
        document = self._news("ready")
        if document is not None:
            self._speaker.restored(document)

    def _hear_drain(self) -> None:
        document = None if self._drained else self._news("drain")
        if document is not None:
            self._drained = True
            self._speaker.leave(float(document["timeout_seconds"]))

    def _hear_stopped(self) -> None:
        if self._news("stopped") is not None:
            self._speaker.spark_has_stopped()

    def _news(self, name: Name) -> Json | None:
        """The document, if it was written since it was last read."""
        stamp = self._channel.stamp(name)
        if stamp == self._seen.get(name):
            return None
        document = self._channel.get(name)
        self._seen[name] = stamp
        return document

    def _say(self) -> None:
        held, now = self._speaker.held(), time.monotonic()
        same = len(held) == len(self._held) and all(map(operator.is_, held, self._held))
        if same and now - self._said_at < REPORT_SECONDS:
            return
        status = self._speaker.status()
        document = {**status.view(), "report": status.report()}
        self._held, self._said_at = held, now
        if document != self._said:
            self._channel.put("view", document)
            self._said = document
