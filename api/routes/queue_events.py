"""A queue's changes as they are committed, as server-sent events."""

from collections.abc import Mapping, Sequence
from functools import partial

import orjson
from fastapi import APIRouter, Response
from starlette.requests import Request

from api.http import problems
from api.http.routing import Route, served_by
from api.http.security import allow, caller_of
from api.http.streams import EventStream, event
from api.routes.parameters import Name, broker_of, last_event_id
from api.routes.queues import ON_A_QUEUE
from api.schemas import common
from broker.calls import views
from broker.core.access import Right

ROUTER = APIRouter(prefix="/v1/queues", route_class=Route)


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
        until=None if stays else partial(broker.keys.until_ended, caller),
    )


@ROUTER.get(
    "/{queue}/events",
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
                "schema": {"type": "integer", "minimum": 0, "maximum": common.MOST_INT64},
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


async def _change_event(queue: str, item: views.EventView) -> bytes:
    document = {
        "queue": queue,
        "revision": item.revision,
        "at": common.rfc3339(item.at),
        "changes": [_with_times(change) for change in item.changes],
    }
    return event("change", orjson.dumps(document), item.revision)


def _with_times(value: object, name: str = "") -> object:
    """A change in its wire form, with times as text (see `EventView`)."""
    match value:
        case Mapping():
            return {str(key): _with_times(inner, str(key)) for key, inner in value.items()}
        case float() if name == "deadline" or name.endswith(("_at", "_until")):
            return common.rfc3339(value)
        case Sequence() if not isinstance(value, str):
            return [_with_times(inner) for inner in value]
    return value
