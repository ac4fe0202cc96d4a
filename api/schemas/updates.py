"""What flows are answered all the time, as JSON without the models.

One change is told to thousands of flows, and a partition of a view or a result costs a fraction of
what the models take for it. The bytes are those that the models make.
"""

from typing import Any

import orjson

from api.schemas.common import rfc3339


def update_json(view: Any) -> bytes:
    """A broker's view as FlowChangeUpdate."""
    return orjson.dumps(_update_values(view))


def results_json(view: Any) -> bytes:
    """Results of a broker and the view afterwards, as Results."""
    results = [_result_values(one) for one in view.results]
    return orjson.dumps({"results": results, "update": _update_values(view.update)})


def _update_values(view: Any) -> dict[str, Any]:
    partitions = [_partition_values(one) for one in view.partitions]
    values = {
        "queue": view.queue,
        "flow_id": view.flow_id,
        "revision": view.revision,
        "active": view.active,
        "draining": view.draining,
        "now": rfc3339(view.now),
        "partitions": partitions,
    }
    if view.resize is not None:
        values["resize"] = view.resize
    return values


def _result_values(one: Any) -> dict[str, Any]:
    values = {"partition": one.partition, "outcome": one.outcome}
    if one.current_epoch is not None:
        values["current_epoch"] = one.current_epoch
    return values


def _partition_values(one: Any) -> dict[str, Any]:
    values = {
        "partition": one.partition,
        "epoch": one.epoch,
        "state": one.state,
        "position": one.position,
    }
    if one.handed_over is not None:
        values["handed_over"] = one.handed_over
    if one.deadline is not None:
        values["deadline"] = rfc3339(one.deadline)
    for name in _SELDOM:
        value = getattr(one, name)
        if value is not None:
            values[name] = value
    return values


_SELDOM = ("cut", "reached_cut", "waits_for", "key", "parents")
