"""The calls that pin and unpin partitions."""

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
SHOWN = "What is pinned of the queue after the call."


@ROUTER.post(
    "/{queue}/partitions/{partition}/pin",
    summary="Pin a partition",
    response_description=SHOWN,
    responses=problems.document(*ON_A_QUEUE, *problems.OF_A_BODY),
)
@allow(Right.ADMINISTER, unlocked_may=True)
async def pin_partition(
    request: Request,
    queue: Name,
    partition: Partition,
    body: wire.PinRequest,
    dry_run: DryRun = False,
) -> wire.PinnedQueue | wire.Preview:
    """Pin a partition to a consumer by its name: it belongs there while such a flow takes part.

    A holddown begins if the partition is elsewhere. Without such a flow the partition is balanced
    like others. Pinning again replaces the name and the reason.
    """
    return await broker_of(request).pins.pin(
        queue,
        partition,
        body.client_name,
        reason=body.reason,
        caller=caller_of(request),
        dry_run=dry_run,
    )


@ROUTER.post(
    "/{queue}/partitions/{partition}/unpin",
    summary="Unpin a partition",
    response_description=SHOWN,
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.ADMINISTER, unlocked_may=True)
async def unpin_partition(
    request: Request, queue: Name, partition: Partition, dry_run: DryRun = False
) -> wire.PinnedQueue | wire.Preview:
    """End the pin of a partition: it is balanced like others. Repeating the call is harmless."""
    return await broker_of(request).pins.unpin(
        queue, partition, caller_of(request), dry_run=dry_run
    )
