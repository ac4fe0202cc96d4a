"""Permissions: every route names the role that it requires, and one function checks it.

A route without a role cannot be built (`api.routing.Route`), and only `authorize` looks at
credentials. Until API keys exist there are two kinds of caller:

- a flow, identified by its token from the bind (`Authorization: Bearer <flow_token>`);
- an administrator: every caller without a token whose origin permits it (`api.http.origin`).
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, TypeVar

from starlette.requests import Request

from api.http.origin import check_host, check_origin
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
    token = None if role is Role.ANYONE else _bearer_token(request)
    check_host(request, has_key=token is not None)
    if role is Role.ANYONE:
        return
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
    check_origin(request)


def by_flow(request: Request) -> bool:
    """Whether an authorized caller is the flow in the path itself, and not an administrator."""
    return getattr(request.state, "by_flow", False)


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
