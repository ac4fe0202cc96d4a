"""In place of the API's routes: a client's request becomes a call of the service, and the answer
becomes the JSON values that the client parses.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from msgspec import to_builtins
from msgspec.structs import astuple

from broker.calls.bound_flows import BoundFlow
from broker.core import commands as c
from broker.core.errors import BrokerError, FlowGone
from broker.service import Calls
from counterpoise import wire
from counterpoise.calls import Call
from tests.simulation.checker import Checker
from tests.simulation.plan import KEYS

_STATUS = {
    "unavailable": 503,
    "flow_gone": 410,
    "overtaken": 409,
    "flow_not_found": 404,
    "queue_not_found": 404,
    "unauthorized": 401,
    "forbidden": 403,
    "invalid": 422,
}


def problem(error: BrokerError) -> tuple[int, dict[str, Any]]:
    """The status and the problem document of the API's answer."""
    document: dict[str, Any] = {"code": error.code, "title": error.title(), "detail": error.detail}
    if isinstance(error, FlowGone):
        document["reason"] = error.reason
    return _STATUS[error.code], document


async def _work(calls: Calls, flow: BoundFlow, body: Any) -> wire.Results:
    match body:
        case wire.CommitRequest(items, seq):
            commits = [c.CommitItem(*astuple(item)) for item in items]
            return await calls.commits.commit(flow, seq, commits)
        case wire.ReleaseRequest(items, seq):
            lets = [c.ReleaseItem(*astuple(item)) for item in items]
            return await calls.flows.release(flow, seq, lets)
        case wire.ChildrenRequest(items, seq):
            ends = [
                c.ChildrenItem(
                    item.partition,
                    item.epoch,
                    tuple(c.NewChild(*astuple(child)) for child in item.children),
                    item.finished,
                    item.position,
                )
                for item in items
            ]
            return await calls.flows.children(flow, seq, ends)
    warm = [c.ReadyItem(*astuple(item)) for item in body.partitions]
    return await calls.flows.ready(flow, warm)


async def serve(calls: Calls, call: Call[Any], checker: Checker) -> Any:
    """The body of the answer. Raises BrokerError."""
    began = checker.began()
    parts = call.path.split("/")
    name, flow_id, verb = parts[2], parts[4] if len(parts) > 4 else "", parts[-1]
    body: Any = call.body
    if len(parts) == 4 and parts[3] == "flows":
        bound = await calls.flows.bind(
            name,
            body.client_name,
            body.instance_id,
            body.lease_seconds,
            body.warmup,
            body.binder,
            body.attempt,
            KEYS[int(body.instance_id[1:]) % len(KEYS)],
            weight=body.weight,
            max_partitions=body.max_partitions,
        )
        checker.bound(bound.flow_id)
        checker.showed(bound.update, began)
        return to_builtins(bound)
    if call.method == "DELETE":
        with suppress(FlowGone):  # A repeated unbind is no error.
            await calls.bound_flows.authenticate(name, flow_id, call.token or "")
        await calls.flows.unbind(name, flow_id)
        checker.unbound(flow_id)
        return None
    flow = await calls.bound_flows.authenticate(name, flow_id, call.token or "")
    if verb == "updates":
        after, wait = int(call.query["after"]), float(call.query["wait"])
        view = await calls.updates.wait(flow, after, wait)
        if view is None:
            return None
        checker.showed(view, began)
        return to_builtins(view)
    if verb == "drain":
        drained = await calls.flows.drain(flow, body.timeout_seconds)
        assert isinstance(drained, wire.Update)
        checker.showed(drained, began)
        return to_builtins(drained)
    done = await _work(calls, flow, body)
    for item, result in zip(body.partitions, done.results, strict=True):
        # Children that are reported before the end leave the owner what it is.
        kind = "commit" if verb == "children" and not item.finished else verb
        place = item.partition, item.epoch, int(getattr(item, "position", None) or 0)
        said = *place, getattr(item, "done_above", None)
        checker.answered(kind, flow_id, said, result, began)
    assert done.update is not None
    checker.showed(done.update, began)
    return to_builtins(done)
