"""The calls about access: sessions of browsers, and the audit."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.requests import Request

from api import problems
from api.head import HEAD
from api.routing import Cursor, Limit, Route, broker_of
from api.schemas import access as access_schemas
from api.schemas.common import QUEUE_NAME_PATTERN
from api.security import Also, address_of, allow, caller_of, check_site, session_cookie, session_of
from broker.calls import views
from broker.calls.keys import SESSION_SECONDS
from broker.core.access import Caller, Right

ROUTER = APIRouter(prefix="/v1", route_class=Route, tags=["Access"])

CREDENTIALS = ("unauthorized", "forbidden", "invalid", "unavailable")


@ROUTER.post(
    "/session",
    response_model=access_schemas.Session,
    summary="Log in",
    response_description="The session; its cookie is in `Set-Cookie`.",
    responses=problems.document(*CREDENTIALS, *problems.OF_A_BODY),
)
@allow(Also.ANYONE)
async def log_in(
    request: Request, response: Response, body: access_schemas.LogIn
) -> dict[str, object]:
    """Begin a session of a browser: a cookie with which it may make the `GET` calls of the key.

    It lasts 12 hours and ends with the key.
    """
    check_site(request.scope[HEAD])
    token, caller = await broker_of(request).keys.log_in(body.key.strip(), address_of(request))
    _set_cookie(request, response, token, round(SESSION_SECONDS))
    return _session(caller)


@ROUTER.delete(
    "/session",
    status_code=204,
    response_class=Response,
    summary="Log out",
    response_description="The session has ended, now or already before.",
    responses=problems.document(*CREDENTIALS),
)
@allow(Also.ANYONE)
async def log_out(request: Request, response: Response) -> None:
    """End the session of the browser's cookie."""
    check_site(request.scope[HEAD])
    token = session_of(request)
    if token is not None:
        await broker_of(request).keys.log_out(token)
    _set_cookie(request, response, "", 0)


@ROUTER.get(
    "/session",
    response_model=access_schemas.Session,
    summary="Show who calls",
    response_description="The caller's key, role and queues.",
    responses=problems.document(*CREDENTIALS),
)
@allow(Right.SEE)
async def session(request: Request) -> dict[str, object]:
    """The key, role and queues of the caller. Without keys each caller is an administrator."""
    return _session(caller_of(request))


@ROUTER.get(
    "/audit",
    response_model=access_schemas.AuditPage,
    summary="List administrative calls",
    response_description="A page of administrative calls, newest first.",
    responses=problems.document(*CREDENTIALS),
)
@allow(Right.ADMINISTER)
async def audit(
    request: Request,
    limit: Limit = 100,
    cursor: Cursor = None,
    queue: Annotated[
        str | None,
        Query(pattern=QUEUE_NAME_PATTERN, description="Only calls on the queue of this name."),
    ] = None,
) -> views.Page[views.AuditView]:
    """Administrative calls on the queues of the key, newest first: who, what, before and after.

    Calls on keys are shown to keys for all queues.
    """
    return await broker_of(request).keys.audit(caller_of(request), limit, cursor, queue)


def _set_cookie(request: Request, response: Response, token: str, seconds: int) -> None:
    response.set_cookie(
        session_cookie(request),
        token,
        max_age=seconds,
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def _session(caller: Caller) -> dict[str, object]:
    return {
        "key_id": caller.key_id,
        "name": caller.key_name,
        "role": caller.role,
        "queues": list(caller.patterns),
        "expires_at": caller.ends_at,
    }
