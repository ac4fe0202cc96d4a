"""The calls about partitions that split, merge and end; see `counterpoise.calls`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterpoise import reading, wire
from counterpoise.calls import Call, Listing, listing, queue_path, results_call
from counterpoise.wire import ChildrenItem, Json


def children(
    queue: str,
    flow_id: str,
    flow_token: str,
    items: Sequence[ChildrenItem],
    seq: int | None = None,
) -> Call[wire.Results]:
    """Report what comes after partitions, and finish them, atomically."""
    body: list[dict[str, Any]] = []
    for item in items:
        one: dict[str, Any] = {"partition": item.partition, "epoch": item.epoch}
        if item.position is not None:
            one["position"] = item.position
        if item.finished:
            one["finished"] = True
        one["children"] = [
            {
                "key": child.key,
                "parents": list(child.parents),
                "partition": child.partition,
                "position": child.position,
            }
            for child in item.children
        ]
        body.append(one)
    return results_call(queue, flow_id, flow_token, "children", body, seq)


def graph(name: str, max_items: int | None = None) -> Listing[wire.LineageNode]:
    """The partitions of a dynamic queue as a graph, by number. Raises `Invalid` for a fixed one."""
    return listing(queue_path(name, "/lineage"), reading.lineage_node, max_items, {})


def split_partition(queue: str, partition: int, at: str | None = None) -> Call[Json]:
    """Split a partition: `at` is `middle`, `load`, or a hash as eight hexadecimal digits."""
    return Call(
        "POST",
        queue_path(queue, f"/partitions/{partition}/split"),
        lambda answer: answer,
        body={} if at is None else {"at": at},
    )


def merge_partitions(queue: str, partition: int, other: int) -> Call[Json]:
    """Merge two partitions whose ranges lie side by side."""
    return Call(
        "POST",
        queue_path(queue, f"/partitions/{partition}/merge"),
        lambda answer: answer,
        body={"with": other},
    )
