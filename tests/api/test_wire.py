"""What the client reads and writes is what the service writes and reads.

Users install no pydantic and the service no client, so each has its own shapes: dataclasses
(`counterpoise.wire`) and models (`api.schemas`). Here they are compared, name by name.
"""

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import pytest

from api.openapi import all_routes, document
from counterpoise import reading, wire
from tests.service import Service

# Where the names differ; all others are the same.
SCHEMAS = {
    wire.Child: "NewChild",
    wire.HeldBack: "HeldFlows",
    wire.LogAccess: "LogCredentials",
    wire.LogView: "LogAccess",
    wire.Update: "FlowChangeUpdate",
    wire.UpdatePartition: "PartitionOfFlow",
}
# Of any list, of any event stream, and of no model: the answer of any service.
OF_ANYTHING = {wire.Page, wire.Event, wire.Probe}
# "from" is a word of Python.
NAMES = {"from_flow": "from", "to_flow": "to"}
SHAPES = [
    one
    for one in vars(wire).values()
    if is_dataclass(one) and one.__module__ == wire.__name__ and one not in OF_ANYTHING
]


@cache
def _schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = document(all_routes())["components"]["schemas"]
    return schemas


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_the_client_has_the_fields_of_the_service(shape: type[Any]) -> None:
    """A shape with `raw` may leave some out: they are in there."""
    name = SCHEMAS.get(shape, shape.__name__)
    served = set(_schemas()[name]["properties"])
    known = {NAMES.get(field.name, field.name) for field in fields(shape)}
    if "raw" in known:
        assert known - {"raw"} <= served
    else:
        assert known == served


def test_what_a_queue_says_of_its_log_is_read(service: Service) -> None:
    with service.http as http:
        made = http.post("/queues", json={"name": "flights", "partition_count": 1}).json()
    queue = reading.queue({**made, "mirror_group": "etl"})
    assert queue.mirror_group == "etl"
    assert (queue.retention_seconds, queue.retention_bytes) == (86_400.0, 1 << 30)
    assert reading.queue(made).mirror_group is None
