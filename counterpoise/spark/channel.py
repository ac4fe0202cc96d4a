"""What a query's source and its driver tell each other.

The flow lives in the source's own Python process, which Spark starts beside the driver and of which
the driver's Python knows nothing. Both are on one machine, so they share a directory that
`register` makes, private to the user: one subdirectory for each instance of a source, in it one
JSON document for each thing that can be said. A document always says what is true now
(level-triggered): it is replaced as a whole and atomically, so a reader that is late, or reads
twice, sees nothing but the latest.

| document | written by | says |
|---|---|---|
| `plan` | source | what the micro-batch being run really reads, and what of it is skipped |
| `view` | source | what the flows hold, and how they are |
| `ready` | driver | which partitions have their state restored (warm-up) |
| `drain` | driver | leave in order, within a time |
| `alias` | source | the instance goes by another name now than in the checkpoint |
| `done` | driver | which micro-batch is in Spark's commit log, and whether the query has ended |

Nothing in them is a secret. The directory goes with the driver; what a dead one left is in the
system's directory for temporary files.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from counterpoise.spark.errors import SourceError
from counterpoise.spark.offsets import VERSION_FIELD, Json

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

Name = Literal["plan", "view", "ready", "drain", "done", "alias"]


class NoChannel(SourceError):
    """The query has no running source of ours, or the source was not made known by `register`."""

    code = "no_channel"


class Channel:
    """The documents of one instance. Both sides make one; the directory appears when needed."""

    def __init__(self, home: str | Path, instance_id: str) -> None:
        """`home` is what `make_home` returned; an instance_id may be any text."""
        self.instance_id = instance_id
        digest = hashlib.sha256(instance_id.encode(errors="surrogatepass")).hexdigest()
        self.directory = Path(home) / digest[:32]

    def put(self, name: Name, document: Json) -> None:
        """Say it. Raises OSError when the disk does not take it."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = self.directory / f"{name}.json"
        handle, temporary = tempfile.mkstemp(dir=self.directory, prefix=f".{name}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(document, file)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def get(self, name: Name) -> Json | None:
        """What was said last; None if nothing was."""
        try:
            text = (self.directory / f"{name}.json").read_text("utf-8")
        except FileNotFoundError:
            return None
        document: Json = json.loads(text)
        return document

    def stamp(self, name: Name) -> tuple[int, int] | None:
        """Changes whenever the document is said anew, and costs next to nothing; None without."""
        try:
            status = (self.directory / f"{name}.json").stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def drop(self, *names: Name) -> None:
        """Take back what was said."""
        for name in names:
            with contextlib.suppress(OSError):
                (self.directory / f"{name}.json").unlink()

    def clear(self) -> None:
        """Forget everything that was said: a query that begins must not hear the one before."""
        shutil.rmtree(self.directory, ignore_errors=True)


def make_home() -> str:
    """A new private directory for all queries of this driver; removed when Python ends."""
    home = tempfile.mkdtemp(prefix="counterpoise-spark-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


@functools.cache
def driver_home() -> str:
    """The directory of this driver: `register` gives it to every source, made on first use."""
    return make_home()


def offsets_of(query: StreamingQuery) -> list[Json]:
    """The end offsets of the micro-batch that runs (or ran last), of our sources in the query.

    Raises NoChannel if there are none: the query reads nothing of ours, or has not planned yet.
    """
    progress = _execution(query).availableOffsets()
    found = [document for document in _documents(progress) if VERSION_FIELD in document]
    if not found:
        raise NoChannel("the query has not read from a counterpoise source yet")
    return found


def channels_of(query: StreamingQuery) -> list[Channel] | None:
    """The channels to the sources of ours in the query; None while it has not said what it reads.

    An empty list says that it reads nothing of ours.
    """
    found = list(_documents(_execution(query).availableOffsets()))
    if not found:
        return None
    instances = [one["instance"] for one in found if VERSION_FIELD in one and "instance" in one]
    return [channel_to(instance) for instance in instances]


def channel_to(instance_id: str) -> Channel:
    """The driver's end of the channel to an instance, by the name it has in an offset."""
    channel = Channel(driver_home(), instance_id)
    alias = channel.get("alias")
    return channel if alias is None else Channel(driver_home(), alias["instance"])


def _execution(query: StreamingQuery) -> Any:
    """Spark's own object for the running query."""
    return query._jsq.streamingQuery()


def _documents(progress: Any) -> Iterator[Json]:
    """The offsets in a StreamProgress, as far as they are JSON objects."""
    values = progress.values().iterator()
    while values.hasNext():
        with contextlib.suppress(ValueError):
            document = json.loads(values.next().json())
            if isinstance(document, dict):
                yield document
