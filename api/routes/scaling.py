"""How many consumers a queue should have, for autoscalers."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BeforeValidator
from starlette.requests import Request

from api.http import problems
from api.http.lags import Lags
from api.http.routing import Route
from api.http.security import allow
from api.routes.parameters import Name, broker_of, whole
from api.routes.queues import ON_A_QUEUE
from api.schemas import common
from api.schemas import scaling as scaling_schemas
from broker.core.access import Right
from broker.scaling import Rule, advise

ROUTER = APIRouter(prefix="/v1/queues/{queue}", route_class=Route, tags=["Queues"])

Whole = Annotated[int, BeforeValidator(whole)]


@ROUTER.get(
    "/scaling",
    response_model=scaling_schemas.Scaling,
    summary="How many consumers?",
    response_description="The number, and why.",
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.SEE)
async def scaling(
    request: Request,
    queue: Name,
    lag_per_consumer: Annotated[
        Whole,
        Query(ge=1, le=common.MOST_INT32, description="One consumer for so many messages."),
    ] = 1000,
    quiet_seconds: Annotated[
        Whole,
        Query(
            ge=0,
            le=86400,
            description="No consumer is taken away until the queue has been Ready for so long.",
        ),
    ] = 300,
    minimum: Annotated[
        Whole, Query(ge=0, le=common.MOST_PARTITIONS, description="The least answer.")
    ] = 0,
    maximum: Annotated[
        Whole,
        Query(ge=1, le=common.MOST_PARTITIONS, description="The largest answer."),
    ] = common.MOST_PARTITIONS,
) -> dict[str, Any]:
    """How many consumers the queue should have, for an autoscaler such as KEDA.

    Up as the lag demands, to one for each partition; down by one at a time, only when the queue is
    Ready and was not changed for a while. So an autoscaler does not answer its own changes.
    """
    lags: Lags = request.app.state.lags
    known = (await lags.of([queue])).get(queue)
    lag = None if known is None or known.unknown else known.messages
    load = await broker_of(request).monitoring.load(queue, lag)
    advice = advise(load, Rule(lag_per_consumer, quiet_seconds, minimum, maximum))
    return {
        "queue": queue,
        "consumers": advice.consumers,
        "why": advice.why,
        "present": load.consumers,
        "partition_count": load.partitions,
        "lag": lag,
    }
