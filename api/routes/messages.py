"""Messages, for people: those of a partition, and one that they publish."""

from typing import Annotated

from annotated_types import Ge, Le
from fastapi import APIRouter, Query
from pydantic import BeforeValidator
from starlette.requests import Request

from api import problems
from api.routes.lineage import Partition
from api.routes.queues import ON_A_QUEUE
from api.routing import Name, Route, broker_of, whole
from api.schemas import common
from api.schemas import messages as message_schemas
from api.security import allow, caller_of
from broker.calls.messages import LOOK_BYTES
from broker.core.access import Right
from counterpoise import wire

ROUTER = APIRouter(prefix="/v1/queues", route_class=Route, tags=["Queues"])
MOST_MESSAGES = 100


@ROUTER.get(
    "/{queue}/partitions/{partition}/messages",
    summary="Look at messages",
    response_description="Messages in order, and where they go on.",
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.CONSUME)
async def messages(
    request: Request,
    queue: Name,
    partition: Partition,
    position: Annotated[
        common.Position | None,
        Query(description="Begin here; left out, or trimmed: at the first message in the log."),
    ] = None,
    limit: Annotated[
        int,
        Ge(1),
        Le(MOST_MESSAGES),
        BeforeValidator(whole),
        Query(description="The most messages."),
    ] = 20,
    max_bytes: Annotated[
        int,
        Ge(0),
        Le(LOOK_BYTES),
        BeforeValidator(whole),
        Query(description="The most bytes of each value; above 10,000 there are fewer messages."),
    ] = 1000,
) -> wire.ShownMessages:
    """Messages that are in the log of the queue, of one partition. Nothing is bound or committed.

    Messages that all queues have processed may be gone. The service reads logs in Redis and Kafka
    with its own access.
    """
    return await broker_of(request).messages.peek(queue, partition, position, limit, max_bytes)


@ROUTER.post(
    "/{queue}/messages",
    status_code=201,
    summary="Publish a message",
    response_description="Where the message is.",
    responses=problems.document(*ON_A_QUEUE, *problems.OF_A_BODY),
)
@allow(Right.PUBLISH, unlocked_may=True)
async def publish(
    request: Request, queue: Name, body: message_schemas.PublishRequest
) -> wire.PublishedMessage:
    """Append one message to the log of the queue, with the service's own access to it.

    This is for people: programs publish to the log itself. A body has at most 64 KiB. After an
    answer that was lost, the call is repeated with the same `id`. The call is in the audit, without
    the message.
    """
    return await broker_of(request).messages.publish(
        queue, body.message, caller_of(request), id=body.id, partition=body.partition
    )
