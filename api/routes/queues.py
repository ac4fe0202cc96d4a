"""The calls on queues, for administrators and dashboards."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from msgspec import UNSET
from msgspec.structs import asdict
from starlette.requests import Request

from api import problems
from api.routing import Cursor, DryRun, Flag, Limit, Name, Route, broker_of
from api.security import Also, allow, caller_of
from broker.core.access import Right
from counterpoise import wire

ROUTER = APIRouter(prefix="/v1/queues", route_class=Route)

ADMINISTRATION = ("unauthorized", "forbidden", "invalid", "unavailable")
ON_A_QUEUE = (*ADMINISTRATION, "queue_not_found", "queue_unreadable")


@ROUTER.post(
    "",
    status_code=201,
    tags=["Queues"],
    summary="Create a queue",
    response_description="The queue.",
    responses={**problems.document(*ADMINISTRATION, "queue_exists", *problems.OF_A_BODY)},
)
@allow(Right.ADMINISTER, unlocked_may=True)
async def create_queue(request: Request, body: wire.QueueCreate) -> wire.Queue:
    """Create a queue with its partitions 0..N-1; they get owners when flows bind.

    A call that is repeated answers the queue that is there, if its settings are those of the call.
    """
    caller = caller_of(request)
    caller.require(Right.ADMINISTER, queue=body.name)
    created = await broker_of(request).queues.create(body, caller)
    return (await broker_of(request).conditions.with_counts([created]))[0]


@ROUTER.get(
    "",
    tags=["Queues"],
    summary="List queues",
    response_description="A page of queues, by name.",
    responses=problems.document(*ADMINISTRATION),
)
@allow(Right.SEE)
async def list_queues(
    request: Request, limit: Limit = 100, cursor: Cursor = None
) -> wire.Page[wire.Queue]:
    """The queues that the caller may see, by name, page by page."""
    broker = broker_of(request)
    page = await broker.queues.list(limit, cursor, caller_of(request).patterns)
    return wire.Page(await broker.conditions.with_counts(page.items), page.next_cursor)


@ROUTER.get(
    "/{queue}",
    tags=["Queues"],
    summary="Show a queue",
    response_description="The queue.",
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.SEE, Also.FLOW)
async def show_queue(request: Request, queue: Name) -> wire.Queue:
    """A queue's settings and its state."""
    broker = broker_of(request)
    [shown] = await broker.conditions.with_counts([await broker.queues.get(queue)])
    return shown


@ROUTER.patch(
    "/{queue}",
    tags=["Queues"],
    summary="Change or resize a queue",
    response_description="The queue after the change.",
    responses=problems.document("resize_unsettled", "state_kept", *ON_A_QUEUE, *problems.OF_A_BODY),
)
@allow(Right.ADMINISTER, unlocked_may=True)
async def change_queue(
    request: Request,
    queue: Name,
    body: wire.QueueChange,
    discard: Annotated[
        Flag,
        Query(description="Remove surplus partitions at once, with the messages they still hold."),
    ] = False,
    dry_run: DryRun = False,
) -> wire.Queue | wire.Preview:
    """Change any setting but those that only a creation gives; omitted settings stay.

    `partition_count` is the resize. Growing takes effect at once. Shrinking lets the owners of
    surplus partitions drain them first, so that nothing is lost, unless `discard` is given.
    """
    broker = broker_of(request)
    changes = {name: value for name, value in asdict(body).items() if value is not UNSET}
    changed = await broker.queues.change(
        queue, changes, discard, caller_of(request), dry_run=dry_run
    )
    if isinstance(changed, wire.Preview):
        return changed
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
@allow(Right.ADMINISTER, unlocked_may=True)
async def delete_queue(
    request: Request,
    queue: Name,
    force: Annotated[Flag, Query(description="Delete it even while flows are bound.")] = False,
    dry_run: DryRun = False,
) -> wire.Preview | None:
    """Delete a queue, and the log that it owns with its messages, in Postgres or Redis.

    Refused while another queue reads that log.
    """
    return await broker_of(request).queues.delete(queue, force, caller_of(request), dry_run=dry_run)


@ROUTER.get(
    "/{queue}/rebalance",
    tags=["Rebalancing"],
    summary="Show the rebalance status",
    response_description="The status.",
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.SEE, Also.FLOW)
async def rebalance_status(request: Request, queue: Name) -> wire.RebalanceStatus:
    """The status (Ready, Holddown or Rebalancing), its trigger, its begin, and the handoffs."""
    return await broker_of(request).monitoring.rebalance_status(queue)


@ROUTER.post(
    "/{queue}/rebalance",
    status_code=202,
    tags=["Rebalancing"],
    summary="Rebalance now",
    response_description="The status immediately after the call.",
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.ADMINISTER, unlocked_may=True)
async def rebalance_now(
    request: Request, queue: Name, dry_run: DryRun = False
) -> wire.RebalanceStatus | wire.Preview:
    """Rebalance at once, skipping the holddown. In a balanced queue no partition moves."""
    return await broker_of(request).queues.rebalance(queue, caller_of(request), dry_run=dry_run)


@ROUTER.get(
    "/{queue}/rebalances",
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
) -> wire.Page[wire.Rebalance]:
    """Every rebalance and every grant outside one, newest first; with `moves=true` what it moved.

    A page has at most 1 MiB, and may have fewer items than `limit`. An item that has `more_moves`
    is the last of its page; the next page begins with the same item and the moves after these.
    """
    return await broker_of(request).monitoring.rebalances(queue, limit, cursor, moves=moves)


@ROUTER.get(
    "/{queue}/partitions",
    tags=["Queues"],
    summary="List partitions",
    response_description="A page of partitions, by number.",
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.SEE, Also.FLOW)
async def partitions(
    request: Request, queue: Name, limit: Limit = 100, cursor: Cursor = None
) -> wire.Page[wire.Partition]:
    """Owner, successor, state and position of each partition."""
    return await broker_of(request).monitoring.partitions(queue, limit, cursor)


@ROUTER.get(
    "/{queue}/flows",
    tags=["Queues"],
    summary="List flows",
    response_description="A page of flows, in the order of binding.",
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.SEE)
async def flows(
    request: Request, queue: Name, limit: Limit = 100, cursor: Cursor = None
) -> wire.Page[wire.FlowSummary]:
    """The bound flows. Tokens are never listed."""
    return await broker_of(request).monitoring.flows(queue, limit, cursor)


@ROUTER.post(
    "/{queue}/positions",
    tags=["Queues"],
    summary="Set positions",
    response_description="The partitions that were set, with their raised epochs.",
    responses=problems.document(*ON_A_QUEUE, *problems.OF_A_BODY),
)
@allow(Right.ADMINISTER, unlocked_may=True)
async def set_positions(
    request: Request,
    queue: Name,
    body: wire.PositionsRequest,
    dry_run: Annotated[
        Flag, Query(description="Change nothing, and say what would be read again or skipped.")
    ] = False,
) -> wire.Positions:
    """Set the positions from which consumers continue: an end of the log, a time, or positions.

    Raises the epochs, so that calls under the old epochs are refused.
    """
    target: Any
    if body.positions is not None:
        target = {int(number): position for number, position in body.positions.items()}
    else:
        target = body.to.timestamp() if isinstance(body.to, datetime) else body.to
    return await broker_of(request).positions.set(
        queue, target, caller_of(request), dry_run=dry_run
    )


@ROUTER.post(
    "/{queue}/log-access",
    tags=["Queues"],
    summary="Get access to the log",
    response_description="The log's address; credentials if the service can give them.",
    responses=problems.document(*ON_A_QUEUE, *problems.OF_A_BODY),
)
@allow(Right.PUBLISH, Right.CONSUME, Also.FLOW)
async def log_access(request: Request, queue: Name, body: wire.LogAccessRequest) -> wire.LogView:
    """The address of a queue's log, its current partition count, and short-lived credentials.

    Publishers call it before they publish, and when an append is refused because the partition
    count has changed. Consumers call it when the credentials from the bind are about to expire.
    """
    caller, publishes = caller_of(request), body.purpose == "publish"
    caller.require(Right.PUBLISH if publishes else Right.CONSUME)
    return await broker_of(request).logs.access(
        queue, "publish" if publishes else "read", caller, refused=body.refused
    )
