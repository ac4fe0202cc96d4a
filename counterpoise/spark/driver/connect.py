"""Spark Connect: what a program that is only a client can refuse before its query starts.

The driver is the server, and this program has no JVM. So it cannot talk with the source of a query,
and cannot look into a query's plan. But the server gives the analyzed plan of a frame as text, the
one that `explain` shows. Its lines are the operators that `stateful.OPERATORS` lists, as a tree:

    ~Aggregate [key#5], [key#5, count(1) AS count#104L]
    +- ~StreamingRelationV2 …, counterpoise, …, [url=*********(redacted), queue=flights], …

`~` says that an operator is streaming. What a `WITH` of SQL names is elsewhere in the tree, below a
`CTERelationDef 5`, and read by `CTERelationRef 5`. `start` and `toTable` read this text, and refuse
a query whose state a handoff would lose (`StateLost`), as with a session that has a JVM. Three
things cannot be seen there. The address of the service is not shown, so an exclusive queue is no
exception. The processor of `transformWithState` is on its way to the server, so on a source that
restores states (`warmup=true`) any processor passes. And a correlated subquery that becomes a join
of streams passes, because it does so only when the server optimizes the plan.

A query that ends by itself is refused if the server's PySpark has no read limits (`refusals`).

What needs the driver is refused by `foreachBatch`, if it gets such a sink itself. A function that
calls one fails on the server, in its first micro-batch, with the same words.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from counterpoise.spark.channel.channel import FORMAT, refuse_connect
from counterpoise.spark.driver.refusals import ENDS_BY_ITSELF
from counterpoise.spark.driver.stateful import OPERATORS, StatefulUse, state_lost, unrestored
from counterpoise.spark.driver.wrapping import check_before
from counterpoise.spark.errors import InvalidOption, Unsupported
from counterpoise.spark.options import read_options
from counterpoise.spark.version import has_read_limits

if TYPE_CHECKING:
    from counterpoise.spark.options import SourceOptions

logger = logging.getLogger("counterpoise.spark")

_ANALYZED = "== Analyzed Logical Plan =="
_LINE = re.compile(r"(?P<depth>[ :+-]*)(?P<streaming>~?)(?P<name>[A-Z]\w*)(?P<rest>.*)")
_SOURCE = re.compile(rf", {FORMAT}, \S+, \[(?P<options>[^\]]*)\]", re.IGNORECASE)
_REDACTED = "*********(redacted)"
_DRIVERS = "counterpoise.spark."
_EXCLUSIVE = "make the queue exclusive, set the option below,"


def stateful_uses(explained: str) -> Iterator[StatefulUse]:
    """The operators of a plan whose state a handoff loses, each with its Counterpoise source."""
    nodes = list(_nodes(explained))
    for at, (depth, streaming, name, rest) in enumerate(nodes):
        operator = OPERATORS.get(name)
        if operator is None or not streaming:
            continue
        children = [one for one in _below(nodes, at) if one[0] == depth + 1]
        if name == "Join" and not all(one[1] for one in children):
            continue
        for options in filter(None, (_source(*one[2:]) for one in _read(nodes, at))):
            found: Any = operator
            if name == "TransformWithStateInPySpark":
                found = unrestored(options, event_time=", EventTime," in rest)
            if found is not None:
                yield StatefulUse(found, options)


_Node = tuple[int, bool, str, str]
"""Depth in the tree, whether it is streaming, its name, and the rest of its line."""


def _below(nodes: Sequence[_Node], at: int) -> Sequence[_Node]:
    end = next((n for n in range(at + 1, len(nodes)) if nodes[n][0] <= nodes[at][0]), len(nodes))
    return nodes[at + 1 : end]


def _read(nodes: Sequence[_Node], at: int) -> Iterator[_Node]:
    """All that one reads: the nodes below it, and below what they name, each once."""
    named = {_number(one): n for n, one in enumerate(nodes) if one[2] == "CTERelationDef"}
    waiting = [at]
    while waiting:
        for one in _below(nodes, waiting.pop()):
            yield one
            if one[2] == "CTERelationRef" and (found := named.pop(_number(one), None)) is not None:
                waiting.append(found)


def _number(named: _Node) -> str:
    return named[3].partition(",")[0]


def _nodes(explained: str) -> Iterator[_Node]:
    analyzed = explained.partition(_ANALYZED)[2].partition("\n== ")[0]
    for line in analyzed.splitlines():
        found = _LINE.fullmatch(line)
        if found is not None:
            # Each level is three characters.
            yield len(found["depth"]) // 3, bool(found["streaming"]), found["name"], found["rest"]


def _source(name: str, rest: str) -> SourceOptions | None:
    found = _SOURCE.search(rest) if name == "StreamingRelationV2" else None
    if found is None:
        return None
    given = (one.partition("=") for one in found["options"].split(", "))
    try:
        return read_options({name: value for name, _, value in given if value != _REDACTED})
    except InvalidOption:
        return None  # The source itself refuses it.


def refuse_at_start() -> None:
    """Examine each query of this process before it starts; `register` calls this."""
    from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

    for name in ("start", "toTable"):
        check_before(DataStreamWriter, name, refuse)
    check_before(DataStreamWriter, "foreachBatch", _refuse_sinks)


def refuse(writer: Any, *_: object, **__: object) -> None:
    """Raises StateLost, Unsupported. A PySpark with other classes is left unchanged."""
    from pyspark.sql.connect.dataframe import DataFrame

    try:
        frame = DataFrame(writer._write_stream._child, writer._session)
        explained = frame._explain_string(extended=True)
        ends = writer._write_proto.available_now or writer._write_proto.once
    except AttributeError as error:
        logger.info("counterpoise: the query is not examined over Spark Connect (%s)", error)
        return
    for use in stateful_uses(explained):
        if use.options.state_on_handoff != "lose":
            raise state_lost(use, _EXCLUSIVE)
    if not ends or not any(_source(*one[2:]) for one in _nodes(explained)):
        return
    if not has_read_limits(version := writer._session.version):
        raise Unsupported(ENDS_BY_ITSELF.format(version))


def _refuse_sinks(writer: Any, func: object) -> None:
    """Raises Unsupported for a sink of ours."""
    kind = type(func)
    if kind.__module__.startswith(_DRIVERS):
        refuse_connect(writer, kind.__name__)
