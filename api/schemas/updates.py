"""FlowChangeUpdate as JSON, without its model: one change is told to thousands of flows."""

from typing import Any

import orjson

from api.schemas.common import rfc3339


def update_json(view: Any) -> bytes:
    """A broker's view as FlowChangeUpdate in JSON: the bytes that the model makes, in a fraction of
    the time.
    """
    document = {
        "queue": view.queue,
        "flow_id": view.flow_id,
        "revision": view.revision,
        "active": view.active,
        "draining": view.draining,
        "now": rfc3339(view.now),
        "partitions": [_partition_values(one) for one in view.partitions],
    }
    if view.resize is not None:
        document["resize"] = view.resize
    return orjson.dumps(document)


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
