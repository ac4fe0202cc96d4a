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
| `stopped` | driver | Spark's context has stopped: leave at once |
| `left` | source | an administrator drained it, and it has left: stop the query |
| `alias` | source | which source speaks for the instance now (or was that in its checkpoint) |
| `done` | driver | the last micro-batch in Spark's commit log, rows dropped, the query's end |
| `chain` | driver | which queue a query reads, and whether its rows keep their order (`chains`) |
| `state` | driver | above which sources a query keeps state in Spark (`query_state`) |

Nothing in them is a secret. The directory is removed with the driver. After a killed driver the
last of its sources removes it. If they were killed too, a later driver of the user does.
`source_channel` is the source's end; `running_driver` says whether the driver still runs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from counterpoise.at_exit import at_exit
from counterpoise.spark.channel.running_driver import announce, was_killed
from counterpoise.spark.errors import Unsupported
from counterpoise.spark.offsets import VERSION_FIELD, Json

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


logger = logging.getLogger("counterpoise.spark")

FORMAT = "counterpoise"
"""What Spark calls the source."""

ABANDONED_SECONDS = 3600.0
"""So long after its last document the directory of a killed driver is removed."""
_PREFIX = "counterpoise-spark-"

Name = Literal[
    "plan", "view", "ready", "drain", "stopped", "left", "done", "alias", "chain", "state"
]


_CONNECT = "pyspark.sql.connect."


def is_of_connect(what: object) -> bool:
    """Whether a session, a query or a DataFrame is one of Spark Connect, without a JVM."""
    return type(what).__module__.startswith(_CONNECT)


def refuse_connect(what: object, name: str) -> None:
    """Raises Unsupported for `name` with anything of Spark Connect: its driver is the server."""
    if is_of_connect(what):
        raise Unsupported(
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
    _remove_abandoned()
    home = tempfile.mkdtemp(prefix=_PREFIX)
    announce(home)
    at_exit(lambda: shutil.rmtree(home, ignore_errors=True))
    return home


def _remove_abandoned() -> None:
    """Remove what drivers of this user have left that were killed, once their sources, which
    survive them for a moment, have ended."""
    for home in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = home.lstat()
            ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if ours and was_killed(home) and time.time() > _last_change(home) + ABANDONED_SECONDS:
                shutil.rmtree(home, ignore_errors=True)


def _last_change(home: Path) -> float:
    return max(path.lstat().st_mtime for path in (home, *home.glob("*/")))


@functools.cache
def driver_home() -> str:
    """The directory of this driver, created on first use; `register` gives it to every source."""
    return make_home()


def channels_of(query: StreamingQuery) -> list[Channel] | None:
    """The channels to the Counterpoise sources of the query; None before they have written an
    offset.

    An empty list: the query has no Counterpoise source. Raises Unsupported.
    """
    execution = _execution(query)
    if not reads_ours(execution):
        return []
    known_home()
    found = offsets_in(execution.availableOffsets()).values()
    instances = [one["instance"] for one in found if "instance" in one]
    return [channel_to(instance) for instance in instances] or None


def channel_to(instance_id: str) -> Channel:
    """The driver's end of the channel to an instance, by its name in an offset.

    Raises Unsupported.
    """
    return DriverEnd(known_home(), instance_id)


def known_home() -> str:
    """The directory of this driver. Raises Unsupported if no source can know it."""
    if not driver_home.cache_info().currsize:
        raise Unsupported(
            "the query's source does not know this driver, because Spark has found it by itself: "
            "call counterpoise.spark.register(spark) before the stream is loaded"
        )
    return driver_home()


def _execution(query: StreamingQuery) -> Any:
    """Spark's own object for the running query. Raises Unsupported for one of Spark Connect."""
    refuse_connect(query, "this")
    return query._jsq.streamingQuery()


def reads_ours(execution: Any) -> bool:
    """Whether the query has a Counterpoise source.

    Its plan shows that from the start. Offsets do not: those of other sources are any text, and a
    source that finds nothing (files in an empty directory) never has one.
    """
    return bool(sources_in(execution.analyzedPlan()))


def running_executions(session: Any) -> list[Any]:
    """Spark's own objects for the running queries of an application, in any of its sessions."""
    active = session.sharedState().activeStreamingQueries()
    found = [active.get(run) for run in list(active)]
    return [one for one in found if one is not None]


def sources_in(plan: Any) -> list[Any]:
    """The Counterpoise streams that a logical plan of Spark's reads: its leaves."""
    return [
        leaf
        for leaf in _each(plan.collectLeaves())
        if leaf.nodeName() == "StreamingRelationV2" and leaf.sourceName().lower() == FORMAT
    ]


def queues_in(plan: Any) -> set[str]:
    """The queues that a logical plan of Spark's reads."""
    return {(one.extraOptions().get("queue") or "").strip() for one in sources_in(plan)}


def offsets_in(progress: Any) -> dict[int, Json]:
    """Counterpoise's offsets in a StreamProgress, by source."""
    found = ((entry._1().hashCode(), _offset_of(entry._2())) for entry in _each(progress))
    return {source: offset for source, offset in found if offset is not None}


def offsets_logged(execution: Any) -> dict[str, Json]:
    """Counterpoise's offsets in the newest entry of a query's checkpoint, by source.

    In the first format of Spark's log they are a sequence, by the number of their source. The
    second (`spark.sql.streaming.offsetLog.formatVersion` 2) maps them by its number as text, or by
    its name if sources have names.
    """
    latest = execution.offsetLog().getLatest()
    if not latest.isDefined():
        return {}
    entry = latest.get()._2()
    if entry.getClass().getSimpleName() == "OffsetMap":
        logged = [(one._1(), one._2()) for one in _each(entry.offsetsMap())]
    else:
        logged = [(str(number), one) for number, one in enumerate(_each(entry.offsets()))]
    found = ((source, _offset_of(one.get())) for source, one in logged if one.isDefined())
    return {source: offset for source, offset in found if offset is not None}


def _each(collection: Any) -> Iterator[Any]:
    """The elements of a collection of Scala's."""
    elements = collection.iterator()
    while elements.hasNext():
        yield elements.next()


def _offset_of(offset: Any) -> Json | None:
    """An offset of Spark's as a document, if it is one of Counterpoise's."""
    if offset is None:
        return None
    try:
        document = json.loads(offset.json())
    except ValueError:
        return None
    return document if isinstance(document, dict) and VERSION_FIELD in document else None
