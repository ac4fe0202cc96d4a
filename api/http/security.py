"""Permissions: every route names the role that it requires, and one function checks it.

A route without a role cannot be built (`api.routing.Route`), and only `authorize` looks at
credentials. Until API keys exist there are two kinds of caller:

- a flow, identified by its token from the bind (`Authorization: Bearer <flow_token>`);
- an administrator: every caller without a token, if the service listens on a loopback address (the
  contract, *HTTP*). On any other address no caller is one, unless the setting `trusted_network`
  declares that every caller that reaches the service is an administrator.

An administrator without a token is identified only by the service's loopback address. A web page in
the same user's browser must not be accepted as one: the Host has to be a loopback name, and a
request is refused if the browser marks it as coming from another site.
"""

import ipaddress
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, TypeVar

from starlette.requests import Request

from broker.core.errors import FlowGone, Forbidden, Unauthorized

Endpoint = TypeVar("Endpoint", bound=Callable[..., object])


class Role(StrEnum):
    """What a route requires of its caller."""

    ANYONE = "anyone"  # no requirement: health, metrics, the dashboard's page, the documentation
    VIEWER = "viewer"  # may read queues
    CONSUMER = "consumer"  # may bind
    PUBLISHER = "publisher"  # may publish
    FLOW = "flow"  # the flow in the path, by its token
    FLOW_OR_ADMIN = "flow_or_admin"
    ADMIN = "admin"


class Requirement(NamedTuple):
    """`gone_may`: the token of a flow that has left is still accepted (a repeated unbind)."""

    role: Role
    gone_may: bool = False


def allow(role: Role, *, gone_may: bool = False) -> Callable[[Endpoint], Endpoint]:
    """Name the role that a route's endpoint requires."""

    def mark(endpoint: Endpoint) -> Endpoint:
        vars(endpoint)["requirement"] = Requirement(role, gone_may)
        return endpoint

    return mark


def requirement_of(endpoint: Callable[..., object]) -> Requirement:
    """The role that `allow` set; a route without one must not exist."""
    requirement = vars(endpoint).get("requirement")
    if not isinstance(requirement, Requirement):
        raise TypeError(f"{endpoint!r} names no role; decorate it with @allow(Role.…)")
    return requirement


async def authorize(request: Request, requirement: Requirement) -> None:
    """Raise `Unauthorized`, `Forbidden` or `FlowGone` unless the caller has the role."""
    role = requirement.role
    if role is Role.ANYONE:
        return
    token = _bearer_token(request)
    if role in (Role.FLOW, Role.FLOW_OR_ADMIN) and token is not None:
        try:
            await request.app.state.broker.flows.authenticate(
                request.path_params["queue"], request.path_params["flow"], token
            )
            request.app.state.rates.admit(token)
        except FlowGone:
            if not requirement.gone_may:
                raise
        request.state.by_flow = True
        return
    if role is Role.FLOW:
        raise Unauthorized(
            "This call is the flow's own; send 'Authorization: Bearer <flow_token>' with the token "
            "that bind answered."
        )
    if token is not None:
        raise Forbidden(
            "A flow's token is valid only for that flow's own calls, and this service has no API "
            "keys; call without a token."
        )
    _require_open_administration(request)


def by_flow(request: Request) -> bool:
    """Whether an authorized caller is the flow in the path itself, and not an administrator."""
    return getattr(request.state, "by_flow", False)


def is_loopback(host: str) -> bool:
    """Whether an address or name can be reached from this machine alone."""
    name = host.strip("[]")
    if name.lower() == "localhost" or name.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _bearer_token(request: Request) -> str | None:
    """The token, None without an Authorization header; another scheme is refused."""
    header = request.headers.get("authorization")
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or not token.isascii():
        raise Unauthorized(
            "The Authorization header is not valid; send 'Authorization: Bearer <token>'."
        )
    return token


def _require_open_administration(request: Request) -> None:
    settings = request.app.state.settings
    if not settings.trusted_network:
        if not is_loopback(settings.host):
            raise Unauthorized(
                f"This service listens on {settings.host}, beyond this machine, and has no API "
                "keys. Start it on 127.0.0.1, or, if every caller that reaches it may administer "
                "it, with --trusted-network."
            )
        if not is_loopback(_host_name(request.headers.get("host", ""))):
            raise Forbidden(
                "The Host header names another machine; call this service as 127.0.0.1 or "
                "localhost."
            )
    site = request.headers.get("sec-fetch-site", "none")
    origin = request.headers.get("origin")
    if site not in ("none", "same-origin") or (
        origin is not None and origin.partition("://")[2] != request.headers.get("host")
    ):
        raise Forbidden(
            "This request comes from another site's page; only this service's own page may call."
        )


def _host_name(host: str) -> str:
    """A Host header without its port; an IPv6 address keeps its brackets."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
