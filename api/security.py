"""Permissions: every route names who may call it, and one function checks it.

A route that names nobody cannot be built (`api.routing.Route`), and only `authorize` reads
credentials. The contract, *Who may call what*, has the table; callers, roles and rights are in
`broker.core.access`. A caller is known by

- a key (`Authorization: Bearer cp_…`);
- the token of a flow (`Authorization: Bearer <flow_token>`);
- the cookie of a session, with which a browser may only read, or for some minutes more
  (*Unlocked sessions*);
- nothing, on a service without keys: its origin must permit it.

**Origin.** Nothing but its origin makes a caller without a key an administrator. Three things can
lie about it:

- **A page in a browser of this machine.** It reaches a loopback service for any site it belongs to.
  The browser marks such a request (`Origin`, `Sec-Fetch-Site`), unless the site has made its own
  name point to the service's address (*DNS rebinding*). Then only the `Host` header shows it. So
  the service answers to the names it knows as its own. An address cannot be rebound.
- **A proxy on this machine.** It reaches a loopback service for callers of any machine. It says so
  in a header (`Forwarded`, `X-Forwarded-For` and its kin, `Via`).
- **The network.** On an address beyond this machine nobody is an administrator without a key,
  unless the setting `insecure` says that everybody is.

**Unlocked sessions.** A session that has shown its key once more may for some minutes make those
changing calls that say `unlocked_may`: no call that gives out a credential, or makes or ends one.
The request has to name this service's own page as its origin; browsers name one with each such
call. So a request that lies about it by saying nothing is refused, too.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, TypeVar

from starlette.requests import Request

from api.head import HEAD, Head
from broker.calls.callers import FOR_THIS_FLOW, STALE_SECONDS
from broker.core.access import RIGHTS, Caller, Right, Role, anybody, flow_caller, key_id_of
from broker.core.errors import (
    FlowGone,
    FlowNotFound,
    Forbidden,
    QueueNotFound,
    Unauthorized,
    Unavailable,
)
from broker.exposure import is_loopback
from broker.logs.ports import ANYONE, CALLER, FLOWS
from broker.service import Broker
from broker.settings import Settings

# A kubelet and a load balancer call these by whatever name they have for the service.
_PROBES = frozenset(("/healthz", "/readyz"))
_OF_PROXIES = frozenset((b"forwarded", b"via", b"x-real-ip"))
Endpoint = TypeVar("Endpoint", bound=Callable[..., object])


def check_host(head: Head, settings: Settings) -> None:
    """Raise `Forbidden` if the Host header does not name this service.

    To be checked for every caller if `allowed_hosts` is set, else only for callers without a key: a
    page whose name was rebound to the service's address has none.
    """
    if head.path in _PROBES:
        return
    if not is_own_name(host_name(head.fields.get(b"host", b"").decode("latin-1")), settings):
        raise Forbidden(
            "The Host header does not name this service; call it by its address, or as localhost "
            "on the same machine. Its operator can allow other names with --allowed-hosts."
        )


def check_origin(head: Head, settings: Settings) -> None:
    """Raise unless the origin of a caller without a key makes it an administrator.

    Raises `Unauthorized` if a key is needed, `Forbidden` for another site's page or name.
    """
    check_host(head, settings)
    if not settings.insecure:
        if not is_loopback(settings.host):
            raise Unauthorized(
                "This service listens beyond its own machine: a call without a key is refused."
            )
        if came_through_proxy(head):
            raise Unauthorized(
                "This request came through a proxy, so it may come from another machine: it needs "
                "a key. Call the service directly, on the machine where it runs."
            )
    check_site(head)


def check_site(head: Head) -> None:
    """Raise `Forbidden` if a browser says that the request comes from another site's page."""
    site, origin = head.fields.get(b"sec-fetch-site", b"none"), head.fields.get(b"origin")
    if site not in (b"none", b"same-origin") or (
        origin is not None and origin.partition(b"://")[2] != head.fields.get(b"host")
    ):
        raise Forbidden(
            "This request comes from another site's page; only this service's own page may call."
        )


def came_through_proxy(head: Head) -> bool:
    """Whether some proxy has left its mark on the request."""
    return any(name in _OF_PROXIES or name.startswith(b"x-forwarded") for name in head.fields)


def is_own_name(name: str, settings: Settings) -> bool:
    """Whether the service may be called by this name: lower case, an IPv6 address in brackets."""
    for allowed in settings.allowed_hosts.split():
        if name == allowed or (allowed.startswith("*.") and name.endswith(allowed[1:])):
            return True
    if is_loopback(name):
        return True
    if is_loopback(settings.host):
        return False
    if name == socket.gethostname().lower():
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def host_name(host: str) -> str:
    """A Host header without its port, in lower case; an IPv6 address keeps its brackets."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower().rstrip(".")


class Also(StrEnum):
    """Who may call besides the holders of keys."""

    ANYONE = "anyone"  # no credential: health, the pages without data, the documentation
    FLOW = "flow"  # the flow in the path; without one there, a flow of the queue in the path


class Requirement(NamedTuple):
    """Who may call: callers with one of `rights`, and `also`.

    `unlocked_may`: also an unlocked session may make this call, though it changes something.
    `locked_may`: also any session. `gone_may`: the token of a flow that has left is still accepted
    (a repeated unbind).
    `stale_may`: without the database, what this replica knew last of keys counts (a call that then
    shows nothing of queues).
    """

    rights: frozenset[Right]
    also: Also | None = None
    unlocked_may: bool = False
    locked_may: bool = False
    gone_may: bool = False
    stale_may: bool = False

    @property
    def callers(self) -> list[str]:
        """The roles of keys that may call, and who else may."""
        roles = [role.value for role in Role if RIGHTS[role] & self.rights]
        return [*([self.also.value] if self.also else ()), *roles]


def allow(
    *callers: Right | Also,
    unlocked_may: bool = False,
    locked_may: bool = False,
    gone_may: bool = False,
    stale_may: bool = False,
) -> Callable[[Endpoint], Endpoint]:
    """Name who may call a route's endpoint."""
    rights = frozenset(caller for caller in callers if isinstance(caller, Right))
    also = next((caller for caller in callers if isinstance(caller, Also)), None)
    requirement = Requirement(rights, also, unlocked_may, locked_may, gone_may, stale_may)
    assert requirement.callers

    def mark(endpoint: Endpoint) -> Endpoint:
        vars(endpoint)["requirement"] = requirement
        return endpoint

    return mark


def requirement_of(endpoint: Callable[..., object]) -> Requirement:
    """What `allow` set; a route without it must not exist."""
    requirement = vars(endpoint).get("requirement")
    if not isinstance(requirement, Requirement):
        raise TypeError(f"{endpoint!r} names nobody who may call it; decorate it with @allow(…)")
    return requirement


async def authorize(request: Request, requirement: Requirement) -> None:
    """Raise `Unauthorized`, `Forbidden`, `FlowGone` or `FlowNotFound` unless the caller may call.

    Afterwards `caller_of` has who calls, and the request's state the `flow` that does.
    """
    broker: Broker = request.app.state.broker
    settings: Settings = request.app.state.settings
    head: Head = request.scope[HEAD]
    is_open = requirement.also is Also.ANYONE
    if settings.allowed_hosts or (is_open and not broker.callers.some_known):
        # Of others without a key it is checked with the rest of their origin.
        check_host(head, settings)
    if is_open:
        return
    token = bearer_token(head)
    queue = request.path_params.get("queue")
    flow_id = request.path_params.get("flow")
    for_flows = requirement.also is Also.FLOW
    if for_flows and flow_id is not None and token is not None and key_id_of(token) is None:
        await _flow(request, head, str(queue), flow_id, token, requirement)
        CALLER.set(FLOWS)
    else:
        caller = await _caller(request, head, token, queue, requirement)
        _check(caller, request, queue, requirement)
        request.state.caller = caller
        CALLER.set(caller.key_id or ANYONE)


def _check(caller: Caller, request: Request, queue: str | None, requirement: Requirement) -> None:
    """Raise unless this caller may make the call."""
    if caller.flow_id is not None:
        if requirement.also is not Also.FLOW:
            raise Forbidden(FOR_THIS_FLOW)
    elif not requirement.rights:
        message = (
            "This call is the flow's own; send 'Authorization: Bearer <flow_token>' with the token "
            "that bind answered."
        )
        raise Unauthorized(message) if caller.key_id is None else Forbidden(message)
    else:
        if caller.session is not None and request.method != "GET":
            _check_session(caller, request.scope[HEAD], requirement)
        caller.require(*requirement.rights, queue=queue)


def _check_session(caller: Caller, head: Head, requirement: Requirement) -> None:
    """Raise Forbidden unless this session may make a call that changes something."""
    if b"origin" not in head.fields:  # `check_site` has compared it
        raise Forbidden("A session changes something only from this service's own page.")
    if requirement.locked_may:
        return
    if not requirement.unlocked_may:
        raise Forbidden("No session makes this call; send the key itself as bearer token.")
    if caller.unlocked_until is None:
        raise Forbidden(
            "This session only reads. Unlock it with its key (POST /v1/session/unlock), or send "
            "the key itself as bearer token."
        )


def caller_of(request: Request) -> Caller:
    """Who makes an authorized call; not for routes that are for anyone."""
    caller: Caller = request.state.caller
    return caller


async def _flow(
    request: Request, head: Head, queue: str, flow_id: str, token: str, requirement: Requirement
) -> None:
    """The flow in the path, by its token."""
    broker: Broker = request.app.state.broker
    try:
        request.state.flow = await broker.bound_flows.authenticate(queue, flow_id, token)
        if not head.is_of_flow:
            request.app.state.rates.admit(token)
    except FlowGone:
        if not requirement.gone_may:
            raise
    except QueueNotFound:
        if not await _is_closed(request):
            raise
        # A stranger may not learn which queues exist.
        raise FlowNotFound(flow_id) from None
    if requirement.rights:
        request.state.caller = flow_caller(flow_id, queue, None, address_of(request))


async def _caller(
    request: Request, head: Head, token: str | None, queue: str | None, requirement: Requirement
) -> Caller:
    """Who calls, by whatever credential."""
    broker: Broker = request.app.state.broker
    settings: Settings = request.app.state.settings
    address = address_of(request)
    if token is not None:
        if key_id_of(token) is not None:
            return await broker.callers.by_key(token, address, stale_may=requirement.stale_may)
        return await broker.callers.by_flow_token(token, queue, address)
    if not await _is_closed(request, requirement.stale_may):
        check_origin(head, settings)
        return anybody(address)
    session = session_of(request)
    if session is None:
        raise Unauthorized(
            "This service needs a key: send 'Authorization: Bearer <key>' (our clients take it "
            "from COUNTERPOISE_TOKEN). 'counterpoise keys create' makes one."
        )
    check_site(head)
    return await broker.callers.by_session(session, address)


async def _is_closed(request: Request, stale_may: bool = False) -> bool:
    """Whether callers without a credential are refused."""
    settings: Settings = request.app.state.settings
    broker: Broker = request.app.state.broker
    if settings.keys_optional:
        return False
    try:
        async with asyncio.timeout(STALE_SECONDS if stale_may else None):
            return await broker.callers.any_made()
    except (Unavailable, TimeoutError):
        if stale_may:
            return broker.callers.some_known
        raise


def address_of(request: Request) -> str | None:
    """The caller's network address."""
    return request.client.host if request.client else None


def session_cookie(request: Request) -> str:
    """The name of the session's cookie. With TLS browsers let no other host set this one."""
    return "__Host-counterpoise" if request.url.scheme == "https" else "counterpoise_session"


def session_of(request: Request) -> str | None:
    """The token of the session that the browser sends, if any."""
    head: Head = request.scope[HEAD]
    wanted = session_cookie(request)
    for cookie in head.fields.get(b"cookie", b"").decode("latin-1").split(";"):
        name, _, token = cookie.strip().partition("=")
        if name == wanted:
            return token or None
    return None


def bearer_token(head: Head) -> str | None:
    """The token, None without an Authorization header; another scheme is refused."""
    header = head.fields.get(b"authorization")
    if header is None:
        return None
    scheme, _, token = header.decode("latin-1").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or not token.isascii():
        raise Unauthorized(
            "The Authorization header is not valid; send 'Authorization: Bearer <token>'."
        )
    return token
