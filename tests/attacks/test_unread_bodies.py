"""Bodies of callers who may not call: the answer comes before the body.

A service that awaited the body would answer 408 instead (`api.bodies.BODY_SECONDS`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from api.openapi import all_routes
from api.routing import Route
from api.security import Also
from broker.core.access import Right
from tests.api.access import Guarded, bearer
from tests.attacks.keys import revoke
from tests.attacks.wire import Answer, Wire
from tests.service import eventually

pytestmark = pytest.mark.long

WRONG = "cp_000000000000_" + "0" * 64
NOBODYS = "0198c0de-7f2a-7c31-9d2f-0c5d7a1b2e3f"
NEXT = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
DECLARED = {"content_length": str(len(NEXT))}
CHUNKED = {"transfer_encoding": "chunked"}


def with_bodies(but: Right | None = None) -> Iterator[str]:
    """Every call that has a body, as method and path; neither those that are for anyone, nor those
    for which this right is enough.
    """
    for route in all_routes():
        assert isinstance(route, Route)
        route.complete()
        requirement = route.requirement
        is_for_all = requirement.also is Also.ANYONE or but in requirement.rights
        if route.taken is not None and not is_for_all:
            yield f"{next(iter(route.methods or ()))} {route.path}"


CALLS = sorted(with_bodies())
NOT_FOR_VIEWERS = sorted(with_bodies(Right.SEE))
assert len(NOT_FOR_VIEWERS) > 8


def answer_to_a_head(
    wire: Wire, call: str, token: str = WRONG, queue: str = "team-a.none", **headers: str
) -> Answer:
    """The answer to the head of a call whose body does not come."""
    method, template = call.split()
    path = template.format(queue=queue, flow=NOBODYS, partition=0)
    given = {"authorization": f"Bearer {token}", "content_type": "application/json"}
    wire.request(method, path, b"", **given, **(headers or DECLARED))
    answer = wire.answer()
    assert answer is not None
    return answer


def ends(wire: Wire, answer: Answer) -> bool:
    """Whether the connection ends with this answer: what comes after it is no request."""
    if "\r\nconnection: close\r\n" not in answer.head.lower():
        return False
    try:
        wire.send(NEXT)
    except ConnectionError:
        return True
    return wire.answer() is None


@pytest.mark.parametrize("declared", [DECLARED, CHUNKED], ids=["length", "chunks"])
@pytest.mark.parametrize("call", CALLS)
def test_a_stranger_is_refused_before_the_body(
    secured: Guarded, call: str, declared: dict[str, str]
) -> None:
    with Wire(secured.service.url) as wire:
        answer = answer_to_a_head(wire, call, **declared)
        assert answer.status == 401, answer
        assert ends(wire, answer)


@pytest.mark.parametrize("call", NOT_FOR_VIEWERS)
def test_a_caller_without_the_right_is_refused_before_the_body(secured: Guarded, call: str) -> None:
    """A viewer's key, and one of another team."""
    for token, queue in (
        (secured.keys["viewer"], "team-a.none"),
        (secured.keys["admin"], "team-b.none"),
    ):
        if "{queue}" not in call and token != secured.keys["viewer"]:
            continue
        with Wire(secured.service.url) as wire:
            answer = answer_to_a_head(wire, call, token, queue)
            assert answer.status == 403, (queue, answer)
            assert ends(wire, answer)


@pytest.mark.parametrize("call", ["POST /v1/nothing", "PUT /v1/queues", "PATCH /v1/queues/a b"])
def test_what_is_no_call_is_refused_before_the_body(secured: Guarded, call: str) -> None:
    method, path = call.split(" ", 1)
    path = path.replace(" ", "%20")
    with Wire(secured.service.url) as wire:
        answer = answer_to_a_head(wire, f"{method} {path}")
        assert answer.status in (404, 405, 422)
        assert ends(wire, answer)


@pytest.mark.parametrize("path", ["/v1/queues", "/v1/queues/team-a.none/flows/{flow}/commit"])
def test_strangers_who_send_no_bodies_take_nothing(secured: Guarded, path: str) -> None:
    """Neither of the budget of bodies nor of the requests in progress."""
    state = secured.service.app.state
    for token in (WRONG, secured.keys["viewer"]):
        with Wire(secured.service.url) as wire:
            answer = answer_to_a_head(wire, f"POST {path}", token, content_length=str(2**20))
            assert answer.status in (401, 403)
            assert state.budget.taken == 0
            assert not state.rates.at_work


def test_a_body_of_a_caller_who_may_call_leaves_the_connection_open(secured: Guarded) -> None:
    body = b'{"name": "team-a.b", "partition_count": 0}'
    with Wire(secured.service.url) as wire:
        for _ in range(2):
            wire.request(
                "POST", "/v1/queues", body, authorization=f"Bearer {secured.keys['admin']}"
            )
            answer = wire.answer()
            assert answer is not None
            assert answer.status == 422
            assert "connection: close" not in answer.head.lower()


def test_a_key_that_ends_before_its_body_counts_no_more(secured: Guarded) -> None:
    """A body may take longer than it takes until a revoked key is refused everywhere."""
    key = secured.key("admin", "team-a.*")
    body = b'{"name": "team-a.late", "partition_count": 1}'
    with Wire(secured.service.url) as wire, secured.http as http:
        headers = {"authorization": f"Bearer {key}", "content_type": "application/json"}
        wire.request("POST", "/v1/queues", b"", content_length=str(len(body)), **headers)
        eventually(lambda: secured.service.app.state.budget.taken == len(body))
        revoke(secured, key)
        eventually(lambda: http.get("/v1/queues", headers=bearer(key)).status_code == 401)
        wire.send(body)
        answer = wire.answer()
        assert answer is not None
        assert answer.status == 401


def test_who_waits_for_a_body_is_not_in_progress(secured: Guarded) -> None:
    state = secured.service.app.state
    with Wire(secured.service.url) as wire:
        wire.request(
            "POST",
            "/v1/queues",
            authorization=f"Bearer {secured.keys['admin']}",
            content_type="application/json",
            content_length="10",
        )
        eventually(lambda: state.budget.taken == 10)
        assert not state.rates.at_work
