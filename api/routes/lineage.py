"""The graph of a dynamic queue: shown, and changed where the built-in log splits and merges."""

from typing import Annotated, Any

from annotated_types import Ge, Le
from fastapi import APIRouter, Path, Response
from pydantic import BeforeValidator
from starlette.requests import Request

from api import problems
from api.answers import answer
from api.routes.queues import ON_A_QUEUE
from api.routing import Cursor, DryRun, Limit, Name, Route, broker_of, whole
from api.security import Also, allow, caller_of
from broker.core.access import Right
from counterpoise import wire
from counterpoise.plain import dot
from counterpoise.wire import MOST_INT32

ROUTER = APIRouter(prefix="/v1/queues", route_class=Route, tags=["Queues"])
DOT = "text/vnd.graphviz"


REFUSED = ("partition_ended", "children_refused")


@ROUTER.get(
    "/{queue}/lineage",
    response_model=wire.Lineage,
    summary="Show the graph of partitions",
    response_description="A page of the graph, by number.",
    responses={
        **problems.document(*ON_A_QUEUE),
        200: {
            "content": {
                DOT: {
                    "schema": {"type": "string"},
                    "example": 'digraph "orders" {\n  "token-3" -> "token-7";\n}\n',
                }
            }
        },
    },
)
@allow(Right.SEE, Also.FLOW)
async def lineage(
    request: Request, queue: Name, limit: Limit = 1000, cursor: Cursor = None
) -> Response:
    """Which partition of a dynamic queue follows which, and which waits for which.

    With `Accept: text/vnd.graphviz` the page is a graph in DOT. Partitions that were removed are
    named by their children only.
    """
    page = await broker_of(request).lineage.graph(queue, limit, cursor)
    if DOT in request.headers.get("accept", ""):
        return Response(f"{dot(page.queue, page.items)}\n", media_type=f"{DOT}; charset=utf-8")
    return answer(page)


Partition = Annotated[
    int,
    Ge(0),
    Le(MOST_INT32),
    BeforeValidator(whole),
    Path(description="The partition."),
]


@ROUTER.post(
    "/{queue}/partitions/{partition}/split",
    summary="Split a partition",
    response_description="What was sealed, and what came of it.",
    responses=problems.document(*ON_A_QUEUE, *REFUSED, *problems.OF_A_BODY),
)
@allow(Right.ADMINISTER, unlocked_may=True)
async def split_partition(
    request: Request,
    queue: Name,
    partition: Partition,
    body: wire.SplitRequest,
    dry_run: DryRun = False,
) -> wire.Sealed | wire.Preview:
    """Split a partition of a dynamic queue with the built-in log, while it is in use.

    In one transaction the partition is sealed at its end, and two begin that share its range of the
    hash. No message is lost and every key stays in order. Repeating the call is harmless.
    """
    at: Any = body.at if body.at in ("middle", "load") else int(body.at, 16)
    return await broker_of(request).lineage.split(
        queue, partition, at, caller_of(request), dry_run=dry_run
    )


@ROUTER.post(
    "/{queue}/partitions/{partition}/merge",
    summary="Merge two partitions",
    response_description="What was sealed, and what came of it.",
    responses=problems.document(*ON_A_QUEUE, *REFUSED, *problems.OF_A_BODY),
)
@allow(Right.ADMINISTER, unlocked_may=True)
async def merge_partitions(
    request: Request,
    queue: Name,
    partition: Partition,
    body: wire.MergeRequest,
    dry_run: DryRun = False,
) -> wire.Sealed | wire.Preview:
    """Merge a partition of a dynamic queue with the one whose range lies beside.

    What comes of it waits until both are processed to their ends. Repeating the call is harmless.
    """
    return await broker_of(request).lineage.merge(
        queue, partition, body.other, caller_of(request), dry_run=dry_run
    )
