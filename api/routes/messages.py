"""Messages, for people: those of a partition, and one that they publish."""

from typing import Annotated

from annotated_types import Ge, Le
from fastapi import APIRouter, Query
from pydantic import BeforeValidator
from starlette.requests import Request

from api import problems
from api.routes.lineage import Partition
from api.routes.queues import ON_A_QUEUE
from api.routing import Flag, Name, Route, broker_of, whole
from api.security import allow, caller_of
from broker.calls.messages import LOOK_BYTES
from broker.core.access import Right
from counterpoise import wire
from counterpoise.logs import Message
from counterpoise.wire import POSITION_PATTERN

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
        Annotated[
            str,
            Query(min_length=1, max_length=1000, pattern=POSITION_PATTERN, examples=["1042"]),
        ]
        | None,
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
    request: Request, queue: Name, body: wire.PublishRequest
) -> wire.PublishedMessage:
    """Append one message to the log of the queue, with the service's own access to it.

    This is for people: programs publish to the log itself. A body has at most 64 KiB. After an
    answer that was lost, the call is repeated with the same `id`. The call is in the audit, without
    the message.
    """
    message = Message(body.content, body.key, body.headers)
    return await broker_of(request).messages.publish(
        queue, message, caller_of(request), id=body.id, partition=body.partition
    )


@ROUTER.post(
    "/{queue}/partitions/{partition}/dead-letter",
    summary="Put a message aside as a dead letter",
    response_description="The letter, and where the partition continues.",
    responses=problems.document(*ON_A_QUEUE, *problems.OF_A_BODY),
)
@allow(Right.ADMINISTER, unlocked_may=True)
async def dead_letter(
    request: Request,
    queue: Name,
    partition: Partition,
    body: wire.DeadLetterRequest,
    dry_run: Annotated[
        Flag, Query(description="Change nothing, and say what would be stored, and passed.")
    ] = False,
) -> wire.Letter:
    """Store a message as a dead letter in another queue, once, and pass it: what a consumer with
    this poison policy does.

    It takes the right to publish to that queue, too. Raises the epoch of the partition. If the
    answer is lost, repeat the call. A message that is processed already is refused, and no letter
    is stored.
    """
    caller = caller_of(request)
    caller.require(Right.PUBLISH, queue=body.to)
    return await broker_of(request).letters.store(
        queue, partition, body.position, body.to, caller, dry_run=dry_run
    )


@ROUTER.post(
    "/{queue}/redrive",
    summary="Send dead letters back",
    response_description="How many letters went where.",
    responses=problems.document(*ON_A_QUEUE, "queue_in_use", *problems.OF_A_BODY),
)
@allow(Right.ADMINISTER, unlocked_may=True)
async def redrive(
    request: Request,
    queue: Name,
    body: wire.RedriveRequest,
    dry_run: Annotated[
        Flag, Query(description="Change nothing, and say how many would go where.")
    ] = False,
) -> wire.Redrive:
    """Send letters that wait in this queue back to the queues that they come from, and pass them.

    Each is sent once, as it was. It takes the rights to consume and to publish to those queues.
    Their logs have to confirm the letters; if one does not, nothing is sent. Refused while
    consumers of this queue are bound. If the answer is lost, repeat the call.
    """
    return await broker_of(request).letters.redrive(
        queue, body.to, body.max_messages, caller_of(request), dry_run=dry_run
    )
