"""The calls of flows: bind, follow the view, commit and release, unbind.

A flow calls heartbeat and updates all the time: plain Starlette handlers serve these two.
"""

from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response
from msgspec.structs import astuple
from starlette.applications import Starlette
from starlette.requests import Request

from api import problems
from api.answers import answer, encode
from api.rates import Rates
from api.routing import (
    FLOW_ID_PATTERN,
    LONGEST_WAIT_SECONDS,
    DryRun,
    Name,
    Route,
    broker_of,
    flow_of,
    last_event_id,
    number,
    served_by,
    whole_number,
)
from api.security import Also, allow, caller_of
from api.streams import DeferredCall, EventStream, OpenCalls, StreamHolder, event
from broker.calls.bound_flows import BoundFlow
from broker.core import commands as c
from broker.core.access import Right
from broker.core.errors import TooManyFlows
from broker.service import Broker
from counterpoise import wire
from counterpoise.wire import EXAMPLE_FLOW, MOST_INT64

ROUTER = APIRouter(prefix="/v1/queues/{queue}/flows", route_class=Route, tags=["Flows"])
FlowId = Annotated[
    str,
    Path(
        pattern=FLOW_ID_PATTERN,
        description="The `flow_id` that bind answered.",
        openapi_examples={"flow": {"value": EXAMPLE_FLOW}},
    ),
]
LeavesBecause = Annotated[
    Literal["driver_lost"] | None,
    Query(
        description="What the history says instead of `unbound`. `driver_lost`: the driver of a "
        "Spark query is gone, and its source unbinds the flow."
    ),
]

CREDENTIALS = (
    "unauthorized",
    "forbidden",
    "invalid",
    "unavailable",
    "queue_not_found",
    "queue_unreadable",
)
UPDATES_PATH = "/v1/queues/{queue}/flows/{flow}/updates"
ON_A_FLOW = (*CREDENTIALS, "flow_not_found", "flow_gone")


# The most frequent calls


async def _serve_heartbeat(request: Request) -> Response:
    return answer(await broker_of(request).flows.heartbeat(flow_of(request)))


@ROUTER.post(
    "/{flow}/heartbeat",
    response_model=wire.Heartbeat,
    summary="Renew the lease",
    response_description="The time at which the lease expires now.",
    responses=problems.document(*ON_A_FLOW),
)
@allow(Also.FLOW)
@served_by(_serve_heartbeat)
async def heartbeat(queue: Name, flow: FlowId) -> None:
    """Renew the flow's lease.

    Polling, commit, release, ready, children, conditions and drain renew it as well; an open event
    stream does not.
    """


async def _serve_updates(request: Request) -> Response:
    flow, query = flow_of(request), request.query_params
    after = whole_number(query.get("after", "0"), "after", 0, MOST_INT64)
    wait_seconds = number(query.get("wait", "0"), "wait", 0, LONGEST_WAIT_SECONDS)
    resumed = last_event_id(request)
    if "text/event-stream" in request.headers.get("accept", ""):
        after = after if resumed is None else resumed
        source = broker_of(request).updates.watch(flow, after)
        return EventStream(
            source,
            _update_event,
            request.app.state.open_calls,
            open_streams=request.app.state.open_streams,
            holder=StreamHolder("flow", request.path_params["flow"]),
        )
    return waiting(request.app, flow, after, wait_seconds)


def waiting(app: Starlette, flow: BoundFlow, after: int, wait_seconds: float) -> DeferredCall:
    """A long poll of a caller who may make it; `api.routes.polls` has a shorter way to it."""
    open_calls: OpenCalls = app.state.open_calls
    broker: Broker = app.state.broker
    # Also the renewal waits without the request's layers: all flows may renew at once.
    wait = partial(broker.updates.wait, flow, after, wait_seconds, asked=app.state.answered)
    return DeferredCall(lambda: open_calls.waiting(wait(), renews=True), _update)


def _update(view: wire.Update | None) -> Response:
    """The view as an answer; None: nothing is newer."""
    if view is None:
        return Response(status_code=204)
    return answer(view)


def _update_event(view: wire.Update) -> bytes:
    return event("FlowChangeUpdate", encode(view), view.revision)


@ROUTER.get(
    "/{flow}/updates",
    response_model=wire.Update,
    summary="Follow the flow's view",
    response_description="The flow's current view, newer than `after`.",
    responses={
        **problems.document(*ON_A_FLOW),
        200: {
            "content": {
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "example": 'id: 42\nevent: FlowChangeUpdate\ndata: {"queue":"flights",…}\n\n',
                }
            }
        },
        204: {"description": "Nothing newer within `wait`."},
    },
    openapi_extra={
        "parameters": [
            {
                "name": "Last-Event-ID",
                "in": "header",
                "required": False,
                "description": "For an event stream: resume after this revision.",
                "schema": {"type": "integer", "minimum": 0, "maximum": MOST_INT64},
            }
        ]
    },
)
@allow(Also.FLOW)
@served_by(_serve_updates)
async def updates(
    queue: Name,
    flow: FlowId,
    after: Annotated[
        int,
        Query(
            ge=0,
            le=MOST_INT64,
            description="The revision that the client has; 0 for the current view at once.",
        ),
    ] = 0,
    wait: Annotated[
        float,
        Query(
            ge=0,
            le=LONGEST_WAIT_SECONDS,
            description="How long to wait for a newer view, in seconds; at most half the lease.",
        ),
    ] = 0,
) -> None:
    """The flow's view as soon as it is newer than `after`: a long poll, or an event stream.

    The long poll renews the lease when it arrives. With `Accept: text/event-stream` the views
    come as events named `FlowChangeUpdate`, an event's id is its revision, and `Last-Event-ID`
    resumes; a stream does not renew the lease by itself. A slow reader does not get the views that
    it missed, because the latest view is complete. An error during the stream is a last event named
    `problem`.
    """


# The other calls


@ROUTER.post(
    "",
    status_code=201,
    response_model=wire.Bound,
    summary="Bind a flow",
    response_description="The flow, its token, and its first view.",
    responses=problems.document(
        *CREDENTIALS, "overtaken", "state_kept", "flow_gone", *problems.OF_A_BODY
    ),
)
@allow(Right.CONSUME)
async def bind(request: Request, queue: Name, body: wire.BindRequest) -> wire.Bound | Response:
    """Bind a consumer to a queue as a flow.

    If the `instance_id` is bound already, the consumer was restarted: the new flow takes the place
    and the partitions of the old one at once, with new epochs, and the old flow is gone
    (`replaced`).
    """
    rates: Rates = request.app.state.rates
    try:
        bound = await broker_of(request).flows.bind(
            queue,
            body.client_name,
            body.instance_id,
            body.lease_seconds,
            body.warmup,
            body.binder,
            body.attempt,
            caller_of(request).key_id,
            body.at_once,
            body.keeps_state,
            body.weight,
            body.max_partitions,
        )
    except TooManyFlows as refused:
        rates.refused.labels("key_flows").inc()
        return _held_back(rates, refused)
    rates.admit(bound.flow_token)
    return bound


def _held_back(rates: Rates, refused: TooManyFlows) -> DeferredCall:
    """The refusal, after a delay in which the request is not in progress any more."""

    async def wait() -> None:
        await rates.hold()
        raise refused

    return DeferredCall(wait, _update)


@ROUTER.delete(
    "/{flow}",
    status_code=204,
    response_class=Response,
    summary="Unbind a flow",
    response_description="The flow is unbound, now or already before.",
    responses=problems.document(*CREDENTIALS, "flow_not_found"),
)
@allow(Right.ADMINISTER, Also.FLOW, unlocked_may=True, gone_may=True)
async def unbind(
    request: Request,
    queue: Name,
    flow: FlowId,
    reason: LeavesBecause = None,
    dry_run: DryRun = False,
) -> wire.Preview | None:
    """Unbind a flow; its partitions have no owner until they are granted again.

    The call may be repeated, also for a flow that left in another way. To leave in order, drain
    first.
    """
    return await broker_of(request).flows.unbind(
        queue, flow, caller_of(request), reason, dry_run=dry_run
    )


@ROUTER.post(
    "/{flow}/commit",
    summary="Commit positions",
    response_description="The result of each item.",
    responses=problems.document(*ON_A_FLOW, *problems.OF_A_BODY),
)
@allow(Also.FLOW)
async def commit(
    request: Request, queue: Name, flow: FlowId, body: wire.CommitRequest
) -> wire.Results:
    """Store the positions up to which partitions have been processed. Renews the lease.

    Each item is fenced by its epoch: a stale one changes nothing and does not affect the others.
    """
    items = [c.CommitItem(*astuple(item)) for item in body.partitions]
    done = await broker_of(request).commits.commit(flow_of(request), body.seq, items)
    request.app.state.metrics.count_results(queue, "commit", done.results)
    return done


@ROUTER.post(
    "/{flow}/release",
    summary="Release partitions",
    response_description="The result of each item.",
    responses=problems.document(*ON_A_FLOW, *problems.OF_A_BODY),
)
@allow(Also.FLOW)
async def release(
    request: Request, queue: Name, flow: FlowId, body: wire.ReleaseRequest
) -> wire.Results:
    """Commit a position and release the partition, atomically. Renews the lease.

    For partitions in `revoking`, for retiring ones at their end (`finished`), and for any
    partition of a draining flow.
    """
    items = [c.ReleaseItem(*astuple(item)) for item in body.partitions]
    done = await broker_of(request).flows.release(flow_of(request), body.seq, items)
    request.app.state.metrics.count_results(queue, "release", done.results)
    return done


@ROUTER.post(
    "/{flow}/children",
    summary="Report what comes after partitions",
    response_description="The result of each item.",
    responses=problems.document(*ON_A_FLOW, *problems.OF_A_BODY),
)
@allow(Also.FLOW)
async def children(
    request: Request, queue: Name, flow: FlowId, body: wire.ChildrenRequest
) -> wire.Results:
    """Record the children of partitions of a dynamic queue, and finish partitions.

    Each item is carried out completely or not at all. A child is known by its key: reporting it
    again, also by another parent, is harmless. It waits until all its parents are finished.
    Renews the lease.
    """
    items = [
        c.ChildrenItem(
            item.partition,
            item.epoch,
            tuple(c.NewChild(*astuple(child)) for child in item.children),
            item.finished,
            item.position,
        )
        for item in body.partitions
    ]
    done = await broker_of(request).flows.children(flow_of(request), body.seq, items)
    request.app.state.metrics.count_results(queue, "children", done.results)
    return done


@ROUTER.post(
    "/{flow}/ready",
    summary="Report warm-ups as done",
    response_description="The result of each item.",
    responses=problems.document(*ON_A_FLOW, *problems.OF_A_BODY),
)
@allow(Also.FLOW)
async def ready(
    request: Request, queue: Name, flow: FlowId, body: wire.ReadyRequest
) -> wire.Results:
    """The flow has restored the state that it needs for these partitions. Renews the lease."""
    items = [c.ReadyItem(*astuple(item)) for item in body.partitions]
    done = await broker_of(request).flows.ready(flow_of(request), items)
    request.app.state.metrics.count_results(queue, "ready", done.results)
    return done


@ROUTER.post(
    "/{flow}/drain",
    status_code=202,
    summary="Drain a flow",
    response_description="The flow's view, draining.",
    responses=problems.document(*ON_A_FLOW, *problems.OF_A_BODY),
)
@allow(Right.ADMINISTER, Also.FLOW, unlocked_may=True)
async def drain(
    request: Request,
    queue: Name,
    flow: FlowId,
    body: wire.DrainRequest | None = None,
    dry_run: DryRun = False,
) -> wire.Update | wire.Preview:
    """Hand off all partitions of the flow; it keeps working until each one is handed off.

    Renews the lease if the flow itself asks, not if an administrator does. The flow is
    drained when it is draining and not active: unbind it then. Cannot be undone.
    """
    timeout_seconds = None if body is None else body.timeout_seconds
    broker, caller = broker_of(request), caller_of(request)
    by_flow = caller.flow_id is not None
    drained = flow_of(request) if by_flow else await broker.bound_flows.of(queue, flow)
    return await broker.flows.drain(drained, timeout_seconds, caller, dry_run=dry_run)
