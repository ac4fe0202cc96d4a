"""The calls that pause and resume a queue and its partitions."""

from fastapi import APIRouter
from starlette.requests import Request

from api import problems
from api.routes.lineage import Partition
from api.routes.queues import ON_A_QUEUE
from api.routing import DryRun, Name, Route, broker_of
from api.security import allow, caller_of
from broker.core.access import Right
from counterpoise import wire

ROUTER = APIRouter(prefix="/v1/queues", route_class=Route, tags=["Queues"])
SHOWN = "What is paused of the queue after the call."


@ROUTER.post(
    "/{queue}/pause",
    summary="Pause a queue",
    response_description=SHOWN,
    responses=problems.document(*ON_A_QUEUE, *problems.OF_A_BODY),
)
@allow(Right.ADMINISTER, unlocked_may=True)
async def pause_queue(
    request: Request, queue: Name, body: wire.PauseRequest, dry_run: DryRun = False
) -> wire.PausedQueue | wire.Preview:
    """Pause all partitions of a queue, those that come later among them.

    Owners keep their partitions, finish what is outstanding, commit, and read nothing more. Pausing
    again replaces the end and the reason.
    """
    return await _pause(request, queue, None, body, dry_run)


@ROUTER.post(
    "/{queue}/resume",
    summary="Resume a queue",
    response_description=SHOWN,
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.ADMINISTER, unlocked_may=True)
async def resume_queue(
    request: Request, queue: Name, dry_run: DryRun = False
) -> wire.PausedQueue | wire.Preview:
    """End the pause of the whole queue. Partitions with a pause of their own stay paused.

    Repeating the call is harmless.
    """
    return await broker_of(request).pauses.resume(queue, None, caller_of(request), dry_run=dry_run)


@ROUTER.post(
    "/{queue}/partitions/{partition}/pause",
    summary="Pause a partition",
    response_description=SHOWN,
    responses=problems.document(*ON_A_QUEUE, *problems.OF_A_BODY),
)
@allow(Right.ADMINISTER, unlocked_may=True)
async def pause_partition(
    request: Request,
    queue: Name,
    partition: Partition,
    body: wire.PauseRequest,
    dry_run: DryRun = False,
) -> wire.PausedQueue | wire.Preview:
    """Pause one partition, whoever owns it now or later; otherwise as the whole queue."""
    return await _pause(request, queue, partition, body, dry_run)


@ROUTER.post(
    "/{queue}/partitions/{partition}/resume",
    summary="Resume a partition",
    response_description=SHOWN,
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.ADMINISTER, unlocked_may=True)
async def resume_partition(
    request: Request, queue: Name, partition: Partition, dry_run: DryRun = False
) -> wire.PausedQueue | wire.Preview:
    """End the pause of a partition. While the whole queue is paused it stays paused with it.

    Repeating the call is harmless.
    """
    return await broker_of(request).pauses.resume(
        queue, partition, caller_of(request), dry_run=dry_run
    )


async def _pause(
    request: Request,
    queue: str,
    partition: int | None,
    body: wire.PauseRequest,
    dry_run: bool,
) -> wire.PausedQueue | wire.Preview:
    until = None if body.until is None else body.until.timestamp()
    return await broker_of(request).pauses.pause(
        queue,
        partition,
        until=until,
        seconds=body.seconds,
        reason=body.reason,
        caller=caller_of(request),
        dry_run=dry_run,
    )
