"""Queue -> Spark -> queue: which queue the rows of a streaming write come from, and in which order.

A row is written once by the partition and position of its message, of a certain queue
(docs/writing.md, *Chains*). The writer's tasks know neither the queue nor whether the rows of a
partition are still together, in their order. The driver does: when a query starts, Spark waits
until its listeners have seen it. So the driver then writes a document for each query that reads a
queue (`describe`), and the writer of each micro-batch, which Spark makes in another process of this
machine, finds it (`chains_in`). A task knows the id of its query, and refuses to write without a
document for it: nothing is written by a guess.

Together and in order are the rows of a query that reads one queue and nothing else, if all its
operators work row by row, because the source reads a partition in one task. Only operators that are
known to do so pass, and only a source that is not told to divide partitions.

The id of the queue and the incarnation of its log are in the plan that the source writes before
each micro-batch (`running_batch`). Spark makes the writer after that. A plan belongs to a chain if
it names the same queue at the same service (the option `url`), because two services may have queues
of one name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.spark.channel.channel import Channel, sources_in
from counterpoise.spark.offsets import Json
from counterpoise.spark.options import DIVIDING

# Spark's logical operators that turn each row into zero or more rows, in place.
_ROW_BY_ROW = frozenset(
    {
        "CollectMetrics",
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "Project",
        "SubqueryAlias",
        "View",
    }
)


@dataclass(frozen=True)
class Chain:
    """What is known of a query's rows: the queue that they come from, or why they are unfit.

    `url`: the source's option.
    """

    queue: str | None
    unfit: str | None = None
    queue_id: str | None = None
    log: str | None = None
    url: str | None = None


def describe(plan: Any) -> Chain | None:
    """The chain of a query with this analyzed plan; None: it reads no queue."""
    leaves = sources_in(plan)
    if not leaves:
        return None
    if len(leaves) > 1:
        return Chain(None, "the query reads several queues, and their positions are not one order")
    # As the source reads them (`options`).
    options = leaves[0].extraOptions()
    queue, url = ((options.get(one) or "").strip() for one in ("queue", "url"))
    for name in DIVIDING:
        if options.get(name) is not None:
            return Chain(queue, f"the source's option {name} divides a partition among tasks")
    node = plan
    while node.children().size():
        kind = node.getClass().getSimpleName()
        if kind not in _ROW_BY_ROW or node.children().size() > 1:
            return Chain(queue, f"the operator {kind} may move rows between tasks")
        if node.subqueries().size():
            return Chain(queue, "a subquery may become a join, which moves rows between tasks")
        node = node.children().apply(0)
    return Chain(queue, url=url or None)


def put_chain(home: str | Path, query_id: str, chain: Chain) -> None:
    """Write the document of a query that starts. Raises OSError."""
    Channel(home, f"query {query_id}").put(
        "chain",
        {"query": query_id, "queue": chain.queue, "unfit": chain.unfit, "url": chain.url},
    )


def chains_in(home: str | Path | None) -> Mapping[str, Chain]:
    """The chains of this driver by the id of their query, with the newest plan of each queue."""
    if home is None:
        return {}
    plans = _plans(Path(home))
    found = {}
    for path in Path(home).glob("*/chain.json"):
        said = Channel.read(path)
        if said is not None:
            queue, url = said["queue"], said["url"]
            plan = plans.get((queue, url)) or {}
            found[said["query"]] = Chain(
                queue, said["unfit"], plan.get("queue_id"), plan.get("log"), url
            )
    return found


def _plans(home: Path) -> dict[tuple[str, str | None], Json]:
    """By queue and the option `url`. All queries of a driver with both the same read one queue."""
    found = {}
    for path in sorted(home.glob("*/plan.json"), key=_age):
        plan = Channel.read(path)
        if plan is not None:
            found[plan["end"]["queue"], plan["url"]] = plan
    return found


def _age(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
