"""Several queues in one DataFrame: `read_queues`.

Spark has a source for each queue and unites their rows. Each source has a process, a flow and a
place in the checkpoint of its own, and one micro-batch reads from all of them. So each queue keeps
its own promises: positions, handoffs, leases and limits are those of its source. What the queues
share is the micro-batch. A partition that is revoked waits until the micro-batch has written the
rows of all queues, and a log that is away stops all of them.

Offsets of several sources stand in the checkpoint by number, without names. So the queues are read
in the order of their names, whatever the order in which they are given. A checkpoint is no use to
another list of queues, and `driver.refusals` says so before anything is bound. If Spark is told to
know sources by name (`SOURCES_BY_NAME`), each source has its queue's, and the list may change.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark import __version__ as version
from pyspark.sql import functions

from counterpoise.client import Client
from counterpoise.spark.channel.channel import FORMAT
from counterpoise.spark.errors import InvalidOption
from counterpoise.spark.options import SourceOptions, read_options
from counterpoise.spark.queue_log import retry_until
from counterpoise.spark.version import has_read_limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCES_BY_NAME = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""A setting of Spark 4.2 and later: each source of a query has a name, by which the checkpoint has
its offset, whatever other sources are added or left out."""


def read_queues(
    spark: SparkSession, queues: str | Iterable[str], *, streaming: bool = True, **options: Any
) -> DataFrame:
    """A stream of several queues, with the source's columns and the column `queue`.

    `queues`: names, or patterns with `*` and `?` (`"orders-*"`). A pattern stands for the queues
    that match now: one that is made later is read after the next call. `options` are those of the
    source and hold for each queue: limits too, so a micro-batch may have as many messages of each.
    With `instanceId` each queue's flow gets an id of its own, `instanceId/queue`.
    `streaming=False`: a batch read.

    Raises InvalidOption: for an option that cannot hold for several queues, for a queue that is
    named twice or not there, and for a pattern that no queue matches. CannotStart if the service
    does not answer.
    """
    given = {name: _text(value) for name, value in options.items() if value is not None}
    named = [queues] if isinstance(queues, str) else list(queues)
    _check_names(named)
    checked = replace(_check_options(given, streaming=streaming), queue=", ".join(named))
    names = chosen(named, _known(checked))
    can_name = streaming and has_read_limits(version)
    by_name = can_name and spark.conf.get(SOURCES_BY_NAME, "false") == "true"
    frames: list[DataFrame] = []
    for name in names:
        own = {**given, "queue": name}
        if checked.instance_id is not None:
            own = {key: value for key, value in own.items() if key.lower() != "instanceid"}
            own["instanceId"] = f"{checked.instance_id}/{name}"
        reader: Any = spark.readStream if streaming else spark.read
        if by_name:
            reader = reader.name(_source_name(name))
        rows = reader.format(FORMAT).options(**own).load()
        frames.append(rows.withColumn("queue", functions.lit(name)))
    return reduce(lambda some, more: some.union(more), frames)


def chosen(named: Iterable[str], known: Collection[str]) -> list[str]:
    """The queues that these names and patterns stand for, sorted. Raises InvalidOption."""
    found: set[str] = set()
    for one in named:
        if "*" in one or "?" in one:
            matches = re.compile(re.escape(one).replace(r"\*", ".*").replace(r"\?", ".")).fullmatch
            matching = {name for name in known if matches(name)}
            if not matching:
                raise InvalidOption(f"no queue matches {one!r}: {_there(known)}")
            found |= matching
        elif one in known:
            found.add(one)
        else:
            raise InvalidOption(f"there is no queue {one!r}: {_there(known)}")
    return sorted(found)


def _source_name(queue: str) -> str:
    """A name of Spark's for the source of a queue: of letters, digits and `_`, and its own."""
    return re.sub(r"[-._]", lambda sign: f"_{ord(sign[0]):x}", queue)


_SHOWN = 10


def _there(known: Collection[str]) -> str:
    names = sorted(known)
    if not names:
        return "the service shows no queues"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"the service shows {', '.join(names[:_SHOWN])}{more}"


def _check_names(named: list[str]) -> None:
    if not named:
        raise InvalidOption("read_queues needs at least one name of a queue, or a pattern")
    for one in named:
        if not isinstance(one, str):
            raise InvalidOption(f"the names of queues are text, not {one!r}")
    twice = sorted(one for one in set(named) if named.count(one) > 1)
    if twice:
        raise InvalidOption(f"the queue {twice[0]!r} is named twice: leave one out")


def _check_options(given: dict[str, str], *, streaming: bool) -> SourceOptions:
    """Raises InvalidOption for what no source takes, and for what is of one queue alone."""
    if "queue" in {name.lower() for name in given}:
        raise InvalidOption(
            "read_queues takes the queues as its second argument: leave the option 'queue' out"
        )
    options = read_options({**given, "queue": "each"})
    checked = options.for_stream() if streaming else options.for_batch()
    if checked.warmup:
        raise InvalidOption(
            "the option 'warmup' restores state by partition, and several queues have partitions "
            "of one number: read each of these queues in a query of its own"
        )
    for name, edge in (
        ("startingPositions", checked.starting),
        ("endingPositions", checked.ending),
    ):
        if not isinstance(edge, str) and name in checked.given:
            raise InvalidOption(
                f"the option {name!r} names positions, which are of one queue: give a word or a "
                "time for several queues, or read each of them by itself and unite the results"
            )
    return checked


def _known(options: SourceOptions) -> set[str]:
    give_up_at = time.monotonic() + options.start_timeout_seconds
    with Client(options.url) as client:
        return {one.name for one in retry_until(client.queues, options, give_up_at)}


def _text(value: object) -> str:
    """As Spark writes the values of options."""
    return str(value).lower() if isinstance(value, bool) else str(value)
