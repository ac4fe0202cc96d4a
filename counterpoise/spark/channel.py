"""The channel between a query's own process and its driver: documents in a shared directory.

The flow lives in the source's own Python process, which Spark starts next to the driver and which
the driver's Python does not know. Both are on one machine, so they share a directory that
`register` creates, private to the user: one subdirectory for each running source, with one JSON
document of each kind. A document always has the present state (level-triggered). It is replaced as
a whole and atomically, so a reader that is late, or reads twice, only sees the latest.

The driver knows a source by the instance in an offset, and a query that was restarted has another
source of the same instance. So each source has its own documents, and `alias` leads to those of the
instance's present source. Documents that an earlier run left, because it was killed or has yet to
end, are never mistaken for those of this one.

| document | written by | says |
|---|---|---|
| `plan` | source | what the micro-batch being run really reads, and what of it is skipped |
| `view` | source | what the flows hold, and how they are |
| `ready` | driver | which partitions have their state restored (warm-up) |
| `drain` | driver | leave in order, within a time |
| `left` | source | an administrator drained it, and it has left: stop the query |
| `alias` | source | which source speaks for the instance now (or was that in its checkpoint) |
| `done` | driver | the last micro-batch in Spark's commit log, rows dropped, the query's end |
| `chain` | driver | which queue a query reads, and whether its rows keep their order (`chains`) |

Nothing in them is a secret. The directory is removed with the driver; a killed driver leaves it in
the system's directory for temporary files.

*The source's end* (`Correspondent`) is a thread that reads the driver's documents and writes the
view. It checks some twenty times a second. This is cheap, because documents rarely change and a
stamp shows it. It reads:

- `done`: the end offset of the latest micro-batch in Spark's commit log. Spark itself tells the
  source only when it asks for the next offset, which is a trigger interval later, and never when
  the query is stopped before.
- `drain`: the order to leave.
- `ready`: the partitions whose state the driver has restored (docs, *Warm-up*).

If the channel fails (a full disk), its functions fail, but never the query.

*Whether the driver still runs* (`Driver`) decides what the source process says when it ends. It
survives its driver for a moment, and unbinds for it. Without this, the history of the queue would
say that the consumer left, although it was killed. A driver is two processes: the Python program,
and the JVM, whose child the source process is.

- *The Python program* holds a lock on a file in the shared directory (`announce`) for as long as it
  lives: the system ends the lock with the process, however that ends. A program that ends by
  itself, also with an exception, removes the directory. So a file without a lock means that the
  program was killed.
- *The JVM* is gone when the source process has another parent than before.

Where locks are not available (Windows, some file systems) there is no file, and only the JVM is
watched. A child that the program forked without `exec` shares its lock: while it lives, a killed
program is not noticed, and the flow is unbound without a reason.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import logging
import operator
import os
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from counterpoise.spark.errors import SourceError
from counterpoise.spark.offsets import VERSION_FIELD, Json

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from counterpoise.spark.status import QueryStatus


logger = logging.getLogger("counterpoise.spark")

FORMAT = "counterpoise"
"""What Spark calls the source."""

Name = Literal["plan", "view", "ready", "drain", "left", "done", "alias", "chain"]


class NoChannel(SourceError):
    """The query has no running Counterpoise source, or `register` was not called."""

    code = "no_channel"


_CONNECT = "pyspark.sql.connect."


def is_of_connect(what: object) -> bool:
    """Whether a session, a query or a DataFrame is one of Spark Connect, without a JVM."""
    return type(what).__module__.startswith(_CONNECT)


def refuse_connect(what: object, name: str) -> None:
    """Raises NoChannel for `name` with anything of Spark Connect: its driver is the server."""
    if is_of_connect(what):
        raise NoChannel(
            f"{name} does not work over Spark Connect: the query's driver is the server, and this "
            "program reaches neither its JVM nor its files. Run the program with a session of its "
            "own (spark-submit, or counterpoise.spark.session), or drain its flows from outside "
            "(counterpoise consumers drain QUEUE NAME)"
        )


class Channel:
    """The documents under one name. The directory appears when needed."""

    def __init__(self, home: str | Path, name: str) -> None:
        """`home` is the result of `make_home`; a name may be any text."""
        self.name = name
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
        self._own = Path(home) / digest[:32]

    @property
    def directory(self) -> Path:
        """The directory of the documents."""
        return self._own

    def put(self, name: Name, document: Json) -> None:
        """Write the document, unless the driver has ended and removed the shared directory.

        Raises OSError if the disk refuses it.
        """
        directory = self.directory
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
        except FileNotFoundError:
            return
        target = directory / f"{name}.json"
        handle, temporary = tempfile.mkstemp(dir=directory, prefix=f".{name}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(document, file)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def get(self, name: Name) -> Json | None:
        """The latest document; None if there is none."""
        return self.read(self.directory / f"{name}.json")

    @staticmethod
    def read(path: Path) -> Json | None:
        """The document in this file; None if there is none."""
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError:
            return None
        document: Json = json.loads(text)
        return document

    def stamp(self, name: Name) -> tuple[int, int] | None:
        """Changes whenever the document is written; cheap to read. None: there is no document."""
        try:
            status = (self.directory / f"{name}.json").stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def drop(self, *names: Name) -> None:
        """Remove these documents."""
        for name in names:
            with contextlib.suppress(OSError):
                (self.directory / f"{name}.json").unlink()

    def clear(self) -> None:
        """Remove all documents."""
        shutil.rmtree(self.directory, ignore_errors=True)


class DriverEnd(Channel):
    """The driver's end: every access follows the alias to the instance's present source."""

    def __init__(self, home: str | Path, instance_id: str) -> None:
        """`instance_id` as it is in an offset."""
        super().__init__(home, instance_id)
        self._home = home

    @property
    def directory(self) -> Path:
        alias = Channel(self._home, self.name).get("alias")
        return self._own if alias is None else Channel(self._home, alias["source"]).directory


def source_end(home: str | Path, instance_id: str, known_as: str | None) -> Channel:
    """The end of a new source, which becomes the instance's present source.

    `known_as`: the instance in the checkpoint. If the disk refuses a file, the channel does not
    work.
    """
    source = Channel(home, str(uuid.uuid4()))
    for name in {instance_id, known_as or instance_id}:
        instance = Channel(home, name)
        try:
            former = instance.get("alias")
            # First, so that after a failure nothing is mistaken for the earlier source.
            instance.drop("alias")
            if former is not None:
                Channel(home, former["source"]).clear()
            instance.put("alias", {"source": source.name})
        except OSError as error:
            logger.warning("counterpoise: the channel to the driver cannot be set up: %s", error)
    return source


def make_home() -> str:
    """A new private directory for all queries of this driver; removed when Python ends."""
    home = tempfile.mkdtemp(prefix="counterpoise-spark-")
    announce(home)
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


@functools.cache
def driver_home() -> str:
    """The directory of this driver, created on first use; `register` gives it to every source."""
    return make_home()


def channels_of(query: StreamingQuery) -> list[Channel] | None:
    """The channels to the Counterpoise sources of the query; None before they have written an
    offset.

    An empty list: the query has no Counterpoise source. Raises NoChannel.
    """
    execution = _execution(query)
    if not reads_ours(execution):
        return []
    _known_home()
    found = _documents(execution.availableOffsets())
    instances = [one["instance"] for one in found if VERSION_FIELD in one and "instance" in one]
    return [channel_to(instance) for instance in instances] or None


def channel_to(instance_id: str) -> Channel:
    """The driver's end of the channel to an instance, by its name in an offset.

    Raises NoChannel.
    """
    return DriverEnd(_known_home(), instance_id)


def _known_home() -> str:
    """The directory of this driver. Raises NoChannel if no source can know it."""
    if not driver_home.cache_info().currsize:
        raise NoChannel(
            "the query's source does not know this driver, because Spark has found it by itself: "
            "call counterpoise.spark.register(spark) before the stream is loaded"
        )
    return driver_home()


def _execution(query: StreamingQuery) -> Any:
    """Spark's own object for the running query. Raises NoChannel for one of Spark Connect."""
    refuse_connect(query, "this")
    return query._jsq.streamingQuery()


def reads_ours(execution: Any) -> bool:
    """Whether the query has a Counterpoise source.

    Its plan shows that from the start. Offsets do not: those of other sources are any text, and a
    source that finds nothing (files in an empty directory) never has one.
    """
    leaves = execution.analyzedPlan().collectLeaves().iterator()
    while leaves.hasNext():
        leaf = leaves.next()
        if leaf.nodeName() == "StreamingRelationV2" and leaf.sourceName().lower() == FORMAT:
            return True
    return False


def _documents(progress: Any) -> Iterator[Json]:
    """The offsets in a StreamProgress that are JSON objects."""
    values = progress.values().iterator()
    while values.hasNext():
        with contextlib.suppress(ValueError):
            document = json.loads(values.next().json())
            if isinstance(document, dict):
                yield document


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
        self._channel.drop("view", "plan", "ready", "drain", "done")

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


if sys.platform != "win32":
    import fcntl

_FILE = "driver"
# The locks of this process by directory; an open file holds its lock.
_held: dict[str, int] = {}


def announce(home: str) -> None:
    """Hold the lock in this directory until this process ends."""
    if sys.platform == "win32":
        return
    new = Path(home) / f".{_FILE}"
    handle = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Under its name it is locked from the start.
        os.replace(new, Path(home) / _FILE)
    except OSError:
        os.close(handle)
        return
    _held[home] = handle


class Driver:
    """The driver of this source process, which is running now."""

    def __init__(self, home: str | None) -> None:
        """`home`: the directory that it shares, None if it shares none."""
        self._home = home
        self._parent = os.getppid()

    def is_lost(self) -> bool:
        """Whether one of its two processes was killed."""
        return os.getppid() != self._parent or self._program_was_killed()

    def _program_was_killed(self) -> bool:
        if sys.platform == "win32" or self._home is None:
            return False
        try:
            handle = os.open(Path(self._home) / _FILE, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            # Shared: the source processes of the driver's other queries may look at the same time.
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(handle)
        return True
