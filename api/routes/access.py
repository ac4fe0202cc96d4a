"""The calls about access: sessions of browsers, keys, and the audit."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from starlette.requests import Request

from api import problems
from api.answers import answer
from api.head import HEAD
from api.routing import Cursor, Flag, Limit, Route, broker_of
from api.security import (
    Also,
    address_of,
    allow,
    caller_of,
    came_through_proxy,
    check_site,
    session_cookie,
    session_of,
)
from broker.calls.callers import SESSION_SECONDS
from broker.calls.times import time_of
from broker.core.access import Caller, Right, Role
from broker.exposure import is_loopback
from counterpoise import wire
from counterpoise.wire import QUEUE_NAME_PATTERN

ROUTER = APIRouter(prefix="/v1", route_class=Route, tags=["Access"])

CREDENTIALS = ("unauthorized", "forbidden", "invalid", "unavailable")


@ROUTER.post(
    "/session",
    response_model=wire.Session,
    summary="Log in",
    response_description="The session; its cookie is in `Set-Cookie`.",
    responses=problems.document(*CREDENTIALS, *problems.OF_A_BODY),
)
@allow(Also.ANYONE)
async def log_in(request: Request, body: wire.LogIn) -> Response:
    """Begin a session of a browser: a cookie with which it may make the `GET` calls of the key.

    It lasts 12 hours and ends with the key. For calls that change something it has to be unlocked.
    """
    check_site(request.scope[HEAD])
    token, caller = await broker_of(request).callers.log_in(body.key.strip(), address_of(request))
    response = answer(_session(caller))
    _set_cookie(request, response, token, round(SESSION_SECONDS))
    return response


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
        await broker_of(request).callers.log_out(token)
    _set_cookie(request, response, "", 0)


@ROUTER.post(
    "/session/unlock",
    response_model=wire.Session,
    summary="Unlock a session",
    response_description="The session, and until when it may change something.",
    responses=problems.document(*CREDENTIALS, *problems.OF_A_BODY),
)
@allow(Right.SEE, locked_may=True)
async def unlock(request: Request, body: wire.LogIn) -> wire.Session:
    """Let the session of the browser's cookie also change queues and messages for 10 minutes.

    It takes the key of the session once more. No session makes or revokes keys, binds flows, or
    gets access to a log.
    """
    return _session(await broker_of(request).callers.unlock(caller_of(request), body.key.strip()))


@ROUTER.post(
    "/session/lock",
    response_model=wire.Session,
    summary="Lock a session",
    response_description="The session, which only reads.",
    responses=problems.document(*CREDENTIALS),
)
@allow(Right.SEE, locked_may=True)
async def lock(request: Request) -> wire.Session:
    """Let the session of the browser's cookie only read again. Repeating the call is harmless."""
    return _session(await broker_of(request).callers.lock(caller_of(request)))


@ROUTER.get(
    "/session",
    response_model=wire.Session,
    summary="Show who calls",
    response_description="The caller's key, role and queues.",
    responses=problems.document(*CREDENTIALS),
)
@allow(Right.SEE)
async def session(request: Request) -> wire.Session:
    """The key, role and queues of the caller. Without keys each caller is an administrator."""
    return _session(caller_of(request))


@ROUTER.get(
    "/keys",
    summary="List the keys",
    response_description="A page of keys, without their secrets.",
    responses=problems.document(*CREDENTIALS),
)
@allow(Right.ADMINISTER)
async def list_keys(
    request: Request,
    limit: Limit = 100,
    cursor: Cursor = None,
    everything: Annotated[
        Flag, Query(alias="all", description="Also keys that were revoked or have ended.")
    ] = False,
) -> wire.Page[wire.Key]:
    """The keys for queues of the caller's key, the earliest first."""
    keys = broker_of(request).key_administration
    return await keys.list(caller_of(request), limit, cursor, everything=everything)


@ROUTER.post(
    "/keys",
    status_code=201,
    response_model=wire.MadeKey,
    summary="Make a key",
    response_description="The key. It is not shown again.",
    responses=problems.document(*CREDENTIALS, *problems.OF_A_BODY),
)
@allow(Right.ADMINISTER)
async def create_key(request: Request, body: wire.NewKey) -> Response:
    """Make a key that is no stronger than the caller's: for some of its queues, ending no later.

    Without a key only the first one can be made: on the service's own machine, for an administrator
    of all queues.
    """
    local = is_loopback(request.app.state.settings.host) and not came_through_proxy(
        request.scope[HEAD]
    )
    made = await broker_of(request).key_administration.create(
        caller_of(request),
        Role(body.role),
        body.queues,
        body.name,
        None if body.ends_at is None else body.ends_at.timestamp(),
        local=local,
    )
    response = answer(made, 201)
    response.headers["Cache-Control"] = "no-store"
    return response


@ROUTER.delete(
    "/keys/{key}",
    summary="Revoke a key",
    response_description="The key, revoked now or already before.",
    responses=problems.document(*CREDENTIALS, "key_not_found"),
)
@allow(Right.ADMINISTER)
async def revoke_key(
    request: Request,
    key: Annotated[str, Path(pattern=r"^[0-9a-f]{12}$", description="The key's id.")],
) -> wire.Key:
    """Revoke a key, for good: within 5 s it is refused everywhere, and its flows end."""
    return await broker_of(request).key_administration.revoke(caller_of(request), key)


@ROUTER.get(
    "/audit",
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
) -> wire.Page[wire.AuditItem]:
    """Administrative calls on the queues of the key, newest first: who, what, before and after.

    Calls on keys are shown to keys for all queues.
    """
    return await broker_of(request).callers.audit(caller_of(request), limit, cursor, queue)


def _set_cookie(request: Request, response: Response, token: str, seconds: int) -> None:
    # Behind a proxy that speaks TLS only the page's origin shows it.
    page = request.headers.get("origin", "")
    response.set_cookie(
        session_cookie(request),
        token,
        max_age=seconds,
        path="/",
        secure="https" in (request.url.scheme, page.partition(":")[0]),
        httponly=True,
        samesite="strict",
    )


def _session(caller: Caller) -> wire.Session:
    assert caller.role is not None, "a flow has no session"
    return wire.Session(
        key_id=caller.key_id,
        name=caller.key_name,
        role=caller.role,
        queues=tuple(caller.patterns),
        expires_at=time_of(caller.ends_at),
        unlocked_until=time_of(caller.unlocked_until),
    )
