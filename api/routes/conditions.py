"""Conditions: consumers report what is wrong with their work, and people see it."""

from fastapi import APIRouter, Response
from starlette.requests import Request

from api.http import problems
from api.http.routing import Route
from api.http.security import Also, allow
from api.routes.flows import ON_A_FLOW, FlowId
from api.routes.parameters import Limit, Name, broker_of, flow_of
from api.routes.queues import ON_A_QUEUE
from api.schemas import conditions as condition_schemas
from broker.calls import views
from broker.calls.conditions import ConditionView, ReportedCondition
from broker.core.access import Right

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
    request: Request, queue: Name, flow: FlowId, body: condition_schemas.ConditionsReport
) -> None:
    """Say what is wrong with the flow's work, all of it at once. Renews the lease.

    A condition of a partition holds as long as the flow owns the partition under the named epoch.
    """
    reported = [
        ReportedCondition(one.kind, one.text, one.partition, one.epoch) for one in body.conditions
    ]
    await broker_of(request).conditions.report(flow_of(request), body.seq, reported)


@ROUTER.get(
    "/conditions",
    response_model=condition_schemas.ConditionPage,
    tags=["Queues"],
    summary="List conditions",
    response_description="The conditions that hold.",
    responses=problems.document(*ON_A_QUEUE),
)
@allow(Right.SEE)
async def conditions(
    request: Request, queue: Name, limit: Limit = 1000
) -> views.Page[ConditionView]:
    """What consumers say is wrong: partitions in quarantine, a log that is away.

    At most `limit`; the queue itself shows how many there are.
    """
    return views.Page(await broker_of(request).conditions.of_queue(queue, limit))
