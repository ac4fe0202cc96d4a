"""What watches a queue: conditions, measurements, the number of consumers for autoscalers, events.

Consumers report conditions, what is wrong with their work, and people see them. An event stream has
a queue's changes as they are committed.
"""

from functools import partial
from typing import Annotated
from weakref import WeakKeyDictionary

from annotated_types import Ge, Le
from fastapi import APIRouter, Query, Response
from msgspec.structs import astuple
from pydantic import BeforeValidator
from starlette.requests import Request

from api import problems
from api.answers import encode
from api.metrics import Lags
from api.routes.flows import ON_A_FLOW, FlowId
from api.routes.queues import ON_A_QUEUE
from api.routing import Limit, Name, Route, broker_of, flow_of, last_event_id, served_by, whole
from api.security import Also, allow, caller_of
from api.streams import EventStream, StreamHolder, event
from broker.calls import views
from broker.calls.conditions import ReportedCondition
from broker.calls.times import time_of, with_times
from broker.core.access import Right
from broker.core.model import MOST_PARTITIONS
from broker.scaling import Rule, advise
from counterpoise import wire
from counterpoise.wire import MOST_INT32, MOST_INT64

ROUTER = APIRouter(prefix="/v1/queues/{queue}", route_class=Route)


@ROUTER.post(
    "/flows/{flow}/conditions",
    status_code=204,
    response_class=Response,
    tags=["Flows"],
    summary="Report conditions",
    response_description="The report is stored.",
    responses=problems.document(*ON_A_FLOW, *problems.OF_A_BODY),
)
@allow(Also.FLOW)
async def report_conditions(
    request: Request, queue: Name, flow: FlowId, body: wire.ConditionsReport
) -> None:
    """Say what is wrong with the flow's work, all of it at once. Renews the lease.

    A condition of a partition holds as long as the flow owns the partition under the named epoch.
    """
    reported = [ReportedCondition(*astuple(one)) for one in body.conditions]
    await broker_of(request).conditions.report(flow_of(request), body.seq, reported)


@ROUTER.get(
    "/conditions",
    tags=["Queues"],
    summary="List conditions",
    response_description="The conditions that hold.",
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.SEE)
async def conditions(
    request: Request, queue: Name, limit: Limit = 1000
) -> wire.Page[wire.HeldCondition]:
    """What consumers say is wrong: partitions in quarantine, a log that is away. Conditions of
    whole consumers come first, then those of partitions.

    At most `limit`; the queue itself shows how many there are.
    """
    return await broker_of(request).conditions.of_queue(queue, limit)


@ROUTER.get(
    "/measurements",
    tags=["Queues"],
    summary="Show the last hour",
    response_description="Lag and rates, the oldest first.",
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.SEE)
async def measurements(request: Request, queue: Name) -> wire.Measurements:
    """Lag and rates of the last hour, as the service measured them, about two a minute.

    And how long after they were published messages were committed, of samples.

    All replicas answer the same. Of a service with very many queues not all are measured each time.
    """
    return await broker_of(request).measurements.of_queue(queue)


@ROUTER.get(
    "/scaling",
    tags=["Queues"],
    summary="How many consumers?",
    response_description="The number, and why.",
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.SEE)
async def scaling(
    request: Request,
    queue: Name,
    lag_per_consumer: Annotated[
        int,
        Ge(1),
        Le(MOST_INT32),
        BeforeValidator(whole),
        Query(description="One consumer, of mean weight, for so many messages."),
    ] = 1000,
    quiet_seconds: Annotated[
        int,
        Ge(0),
        Le(86400),
        BeforeValidator(whole),
        Query(
            description="No consumer is taken away until the queue has been Ready for so long.",
        ),
    ] = 300,
    minimum: Annotated[
        int,
        Ge(0),
        Le(MOST_PARTITIONS),
        BeforeValidator(whole),
        Query(description="The least answer."),
    ] = 0,
    maximum: Annotated[
        int,
        Ge(1),
        Le(MOST_PARTITIONS),
        BeforeValidator(whole),
        Query(description="The largest answer."),
    ] = MOST_PARTITIONS,
    max_lag_seconds: Annotated[
        Annotated[int, Ge(1), Le(86400 * 365), BeforeValidator(whole)] | None,
        Query(
            description="How long a message may wait: half as many consumers more while one is "
            "older, and none fewer until all are younger than half of it. Left out: no limit.",
        ),
    ] = None,
) -> wire.Scaling:
    """How many consumers the queue should have, for an autoscaler such as KEDA.

    Up as the lag demands, or the age of the oldest message, to one for each partition; down by one
    at a time, only when the queue is Ready and was not changed for a while. So an autoscaler does
    not answer its own changes. Where all consumers have a maximum (`max_partitions`), there are
    enough of them for all partitions.
    """
    lags: Lags = request.app.state.lags
    known = (await lags.of([queue])).get(queue)
    load = await broker_of(request).monitoring.load(queue, known)
    rule = Rule(lag_per_consumer, quiet_seconds, minimum, maximum, max_lag_seconds)
    advice = advise(load, rule)
    return wire.Scaling(
        queue=queue,
        consumers=advice.consumers,
        why=advice.why,
        present=load.consumers,
        partition_count=load.partitions,
        lag=load.lag,
        lag_seconds=load.lag_seconds,
    )


async def _serve_events(request: Request) -> Response:
    queue = request.path_params["queue"]
    broker = broker_of(request)
    await broker.queues.get(queue)
    after = last_event_id(request)
    encode = partial(_change_event, queue)
    caller = caller_of(request)
    # Where keys are optional, who came without one stays.
    stays = caller.key_id is None and request.app.state.settings.keys_optional
    return EventStream(
        broker.monitoring.events(queue, after),
        encode,
        request.app.state.open_calls,
        until=None if stays else partial(broker.callers.until_ended, caller),
        open_streams=request.app.state.open_streams,
        # Callers without a key have only their address in common.
        holder=None if caller.key_id is None else StreamHolder("key", caller.key_id),
    )


@ROUTER.get(
    "/events",
    response_class=Response,
    tags=["Rebalancing"],
    summary="Follow a queue's changes",
    response_description="Server-sent events named `change`, until either side ends it.",
    responses={
        **problems.document(*ON_A_QUEUE),
        200: {
            "content": {
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "example": "id: 42\nevent: change\n"
                    'data: {"queue":"flights","revision":42,"at":"2026-11-20T10:00:00.250Z",'
                    '"changes":[{"type":"…"}]}\n\n',
                }
            }
        },
    },
    openapi_extra={
        "parameters": [
            {
                "name": "Last-Event-ID",
                "in": "header",
                "required": False,
                "description": "Resume after this revision; default: only new changes.",
                "schema": {"type": "integer", "minimum": 0, "maximum": MOST_INT64},
            }
        ]
    },
)
@allow(Right.SEE)
@served_by(_serve_events)
async def events(queue: Name) -> None:
    """Every change as it is committed, for dashboards: one event for each revision.

    An event's id is its revision; `Last-Event-ID` resumes. An error during the stream is a last
    event named `problem`.
    """


# The events that are on their way: each is written once, for all streams of its queue.
_written: WeakKeyDictionary[views.EventView, bytes] = WeakKeyDictionary()


def _change_event(queue: str, item: views.EventView) -> bytes:
    known = _written.get(item)
    if known is not None:
        return known
    document = {
        "queue": queue,
        "revision": item.revision,
        "at": time_of(item.at),
        "changes": with_times(item.changes),
    }
    written = _written[item] = event("change", encode(document), item.revision)
    return written
