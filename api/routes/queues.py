"""The calls on queues, for administrators and dashboards."""

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from starlette.requests import Request

from api import problems
from api.answers import answer
from api.routing import Cursor, Flag, Limit, Name, Route, broker_of
from api.schemas import logs as log_schemas
from api.schemas import queues as queue_schemas
from api.schemas import rebalances as rebalance_schemas
from api.security import Also, allow, caller_of
from broker.calls import views
from broker.core.access import Right

ROUTER = APIRouter(prefix="/v1/queues", route_class=Route)

ADMINISTRATION = ("unauthorized", "forbidden", "invalid", "unavailable")
ON_A_QUEUE = (*ADMINISTRATION, "queue_not_found", "queue_unreadable")


@ROUTER.post(
    "",
    status_code=201,
    response_model=queue_schemas.Queue,
    tags=["Queues"],
    summary="Create a queue",
    response_description="The queue.",
    responses={**problems.document(*ADMINISTRATION, "queue_exists", *problems.OF_A_BODY)},
)
@allow(Right.ADMINISTER)
async def create_queue(request: Request, body: queue_schemas.QueueCreate) -> views.QueueView:
    """Create a queue with its partitions 0..N-1; they get owners when flows bind.

    A call that is repeated answers the queue that is there, if its settings are those of the call.
    """
    caller = caller_of(request)
    caller.require(Right.ADMINISTER, queue=body.name)
    given = body.model_dump(exclude_unset=True)
    if "partitions" in given:
        given["partitions"] = tuple(root.key for root in body.partitions)
    if "positions" in given:
        given["positions"] = {int(number): at for number, at in body.positions.items()}
    created = await broker_of(request).queues.create(views.QueueSpec(**given), caller)
    return (await broker_of(request).conditions.with_counts([created]))[0]


@ROUTER.get(
    "",
    response_model=queue_schemas.QueuePage,
    tags=["Queues"],
    summary="List queues",
    response_description="A page of queues, by name.",
    responses=problems.document(*ADMINISTRATION),
)
@allow(Right.SEE)
async def list_queues(
    request: Request, limit: Limit = 100, cursor: Cursor = None
) -> views.Page[views.QueueView]:
    """The queues that the caller may see, by name, page by page."""
    broker = broker_of(request)
    page = await broker.queues.list(limit, cursor, caller_of(request).patterns)
    return replace(page, items=await broker.conditions.with_counts(page.items))


@ROUTER.get(
    "/{queue}",
    response_model=queue_schemas.Queue,
    tags=["Queues"],
    summary="Show a queue",
    response_description="The queue.",
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.SEE, Also.FLOW)
async def show_queue(request: Request, queue: Name) -> views.QueueView:
    """A queue's settings and its state."""
    broker = broker_of(request)
    [shown] = await broker.conditions.with_counts([await broker.queues.get(queue)])
    return shown


@ROUTER.patch(
    "/{queue}",
    response_model=queue_schemas.Queue,
    tags=["Queues"],
    summary="Change or resize a queue",
    response_description="The queue after the change.",
    responses=problems.document("resize_unsettled", *ON_A_QUEUE, *problems.OF_A_BODY),
)
@allow(Right.ADMINISTER)
async def change_queue(
    request: Request,
    queue: Name,
    body: queue_schemas.QueueChange,
    discard: Annotated[
        Flag,
        Query(description="Remove surplus partitions at once, with the messages they still hold."),
    ] = False,
) -> views.QueueView:
    """Change any setting but those that only a creation gives; omitted settings stay.

    `partition_count` is the resize. Growing takes effect at once. Shrinking lets the owners of
    surplus partitions drain them first, so that nothing is lost, unless `discard` is given.
    """
    broker, changes = broker_of(request), body.model_dump(exclude_unset=True)
    changed = await broker.queues.change(queue, changes, discard, caller_of(request))
    [shown] = await broker.conditions.with_counts([changed])
    return shown


@ROUTER.delete(
    "/{queue}",
    status_code=204,
    response_class=Response,
    tags=["Queues"],
    summary="Delete a queue",
    response_description="The queue is deleted.",
    responses=problems.document(*ON_A_QUEUE, "queue_in_use"),
)
@allow(Right.ADMINISTER)
async def delete_queue(
    request: Request,
    queue: Name,
    force: Annotated[Flag, Query(description="Delete it even while flows are bound.")] = False,
) -> None:
    """Delete a queue, and the log that it owns with its messages, in Postgres or Redis.

    Refused while another queue reads that log.
    """
    await broker_of(request).queues.delete(queue, force, caller_of(request))


@ROUTER.get(
    "/{queue}/rebalance",
    response_model=rebalance_schemas.RebalanceStatus,
    tags=["Rebalancing"],
    summary="Show the rebalance status",
    response_description="The status.",
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.SEE, Also.FLOW)
async def rebalance_status(request: Request, queue: Name) -> Response:
    """The status (Ready, Holddown or Rebalancing), its trigger, its begin, and the handoffs."""
    view = await broker_of(request).monitoring.rebalance_status(queue)
    return answer(rebalance_schemas.RebalanceStatus, view)


@ROUTER.post(
    "/{queue}/rebalance",
    status_code=202,
    response_model=rebalance_schemas.RebalanceStatus,
    tags=["Rebalancing"],
    summary="Rebalance now",
    response_description="The status immediately after the call.",
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.ADMINISTER)
async def rebalance_now(request: Request, queue: Name) -> Response:
    """Rebalance at once, skipping the holddown. In a balanced queue no partition moves."""
    view = await broker_of(request).queues.rebalance(queue, caller_of(request))
    return answer(rebalance_schemas.RebalanceStatus, view, 202)


@ROUTER.get(
    "/{queue}/rebalances",
    response_model=rebalance_schemas.RebalancePage,
    tags=["Rebalancing"],
    summary="List past rebalances",
    response_description="A page of the history, newest first.",
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.SEE)
async def rebalances(
    request: Request,
    queue: Name,
    limit: Limit = 100,
    cursor: Cursor = None,
    moves: Annotated[Flag, Query(description="Whether each item has its moves.")] = False,
) -> Response:
    """Every rebalance and every grant outside one, newest first; with `moves=true` what it moved.

    A page has at most 1 MiB, and may have fewer items than `limit`. An item that has `more_moves`
    is the last of its page; the next page begins with the same item and the moves after these.
    """
    page = await broker_of(request).monitoring.rebalances(queue, limit, cursor, moves=moves)
    return answer(rebalance_schemas.RebalancePage, page)


@ROUTER.get(
    "/{queue}/partitions",
    response_model=queue_schemas.PartitionPage,
    tags=["Queues"],
    summary="List partitions",
    response_description="A page of partitions, by number.",
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.SEE, Also.FLOW)
async def partitions(
    request: Request, queue: Name, limit: Limit = 100, cursor: Cursor = None
) -> views.Page[views.PartitionView]:
    """Owner, successor, state and position of each partition."""
    return await broker_of(request).monitoring.partitions(queue, limit, cursor)


@ROUTER.get(
    "/{queue}/flows",
    response_model=queue_schemas.FlowPage,
    tags=["Queues"],
    summary="List flows",
    response_description="A page of flows, in the order of binding.",
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.SEE)
async def flows(
    request: Request, queue: Name, limit: Limit = 100, cursor: Cursor = None
) -> views.Page[views.FlowSummaryView]:
    """The bound flows. Tokens are never listed."""
    return await broker_of(request).monitoring.flows(queue, limit, cursor)


@ROUTER.post(
    "/{queue}/positions",
    response_model=log_schemas.Positions,
    tags=["Queues"],
    summary="Set positions",
    response_description="The partitions that were set, with their raised epochs.",
    responses=problems.document(*ON_A_QUEUE, *problems.OF_A_BODY),
)
@allow(Right.ADMINISTER)
async def set_positions(
    request: Request,
    queue: Name,
    body: log_schemas.PositionsRequest,
    dry_run: Annotated[
        Flag, Query(description="Change nothing, and say what would be read again or skipped.")
    ] = False,
) -> Response:
    """Set the positions from which consumers continue: an end of the log, a time, or positions.

    Raises the epochs, so that calls under the old epochs are refused.
    """
    target: Any
    if "positions" in body.model_fields_set:
        target = {int(number): position for number, position in body.positions.items()}
    else:
        target = body.to.timestamp() if isinstance(body.to, datetime) else body.to
    done = await broker_of(request).positions.set(
        queue, target, caller_of(request), dry_run=dry_run
    )
    return answer(log_schemas.Positions, done)


@ROUTER.post(
    "/{queue}/log-access",
    response_model=log_schemas.LogAccess,
    tags=["Queues"],
    summary="Get access to the log",
    response_description="The log's address; credentials if the service can give them.",
    responses=problems.document(*ON_A_QUEUE, *problems.OF_A_BODY),
)
@allow(Right.PUBLISH, Right.CONSUME, Also.FLOW)
async def log_access(
    request: Request, queue: Name, body: log_schemas.LogAccessRequest
) -> views.LogAccessView:
    """The address of a queue's log, its current partition count, and short-lived credentials.

    Publishers call it before they publish, and when an append is refused because the partition
    count has changed. Consumers call it when the credentials from the bind are about to expire.
    """
    caller = caller_of(request)
    caller.require(Right.PUBLISH if body.purpose == "publish" else Right.CONSUME)
    return await broker_of(request).logs.access(queue, body.purpose, caller, refused=body.refused)
