"""Who may pause and resume, and what hostile or unlucky callers get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.api.access import Guarded, bearer
from tests.api.consumer import bind, create_queue
from tests.service import Service

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("access")]

CALLS = ("pause", "resume", "partitions/0/pause", "partitions/0/resume")


def send(http: httpx.Client, queue: str, call: str, token: str | None, body: Any = None) -> int:
    given = {} if call.endswith("pause") and body is None else body
    path = f"/v1/queues/{queue}/{call}"
    return http.post(path, json=given, headers=bearer(token)).status_code


def test_only_an_administrator_of_the_queue_pauses_it(secured: Guarded) -> None:
    secured.create("team-a.held")
    _, flow_token = secured.bind("team-a.held", secured.root)
    strangers = [
        *(secured.key(role, "team-a.*") for role in ("viewer", "publisher", "consumer")),
        secured.key("admin", "team-b.*"),
        flow_token,
    ]
    admin = secured.key("admin", "team-a.*")
    with secured.http as http:
        for call in CALLS:
            assert {send(http, "team-a.held", call, token) for token in strangers} == {403}
            assert send(http, "team-a.held", call, None) == 401
        shown = http.get("/v1/queues/team-a.held", headers=bearer(admin)).json()
        assert (shown["paused"], shown["paused_partition_count"]) == (None, 0)
        assert {send(http, "team-a.held", call, admin) for call in CALLS} == {200}


def test_the_audit_says_who_paused_what_and_why(secured: Guarded) -> None:
    secured.create("team-a.audited")
    admin = secured.key("admin", "team-a.*")
    with secured.http as http:
        reason = "<script>alert(1)</script> \u2713"
        send(http, "team-a.audited", "partitions/0/pause", admin, {"reason": reason})
        send(http, "team-a.audited", "partitions/0/resume", admin)
        send(http, "team-a.audited", "partitions/9/pause", admin)
        path = "/v1/audit?queue=team-a.audited&limit=2"
        resumed, paused = http.get(path, headers=bearer(admin)).json()["items"]
    assert (resumed["call"], paused["call"]) == ("resume_partition", "pause_partition")
    assert paused["key_id"] is not None
    assert paused["before"]["partitions"] == []
    [held] = paused["after"]["partitions"]
    assert (held["partition"], held["pause"]["reason"]) == (0, reason)
    assert resumed["after"]["partitions"] == []


def test_a_pause_during_a_handoff_cuts_nothing_short(
    target: Service, name_of_a_queue: Callable[[], str]
) -> None:
    """A hasty administrator: in the holddown, amid a warm-up, amid a revoke."""
    queue = name_of_a_queue()
    with target.http as http:
        create_queue(http, queue, 2, rebalance_delay=0, max_handoff_time=600)
        owner = bind(http, queue)
        owner.until("owned", 0, 1)
        assert owner.outcomes("commit", owner.item(1, position="0")) == ["ok"]
        other = bind(http, queue, warmup=True)
        other.until("warming", 1)
        http.post(f"/queues/{queue}/pause", json={}).raise_for_status()
        assert other.outcomes("ready", other.item(1)) == ["ok"]
        owner.until("revoking", 1)
        http.post(f"/queues/{queue}/partitions/1/pause", json={}).raise_for_status()
        # What it had begun is finished and committed all the same.
        assert owner.outcomes("release", owner.item(1, position="0")) == ["ok"]
        other.until("owned", 1)
        assert other.view["partitions"][0]["paused"] is not None
        http.post(f"/queues/{queue}/resume").raise_for_status()
        http.post(f"/queues/{queue}/partitions/1/resume").raise_for_status()
        other.poll()
        other.until("owned", 1)
        assert "paused" not in other.view["partitions"][0]


def test_a_partition_that_waits_and_one_that_ended(
    target: Service, name_of_a_queue: Callable[[], str]
) -> None:
    queue = name_of_a_queue()
    with target.http as http:
        create_queue(http, queue, 1, partitioning="dynamic", rebalance_delay=0)
        flow = bind(http, queue)
        flow.until("owned", 0)
        http.post(f"/queues/{queue}/partitions/0/split", json={}).raise_for_status()
        waiting = http.post(f"/queues/{queue}/partitions/1/pause", json={})
        assert waiting.status_code == 200
        http.post(f"/queues/{queue}/partitions/0/pause", json={"reason": "why"}).raise_for_status()
        report = flow.item(0, position="0", finished=True, children=[])
        assert flow.outcomes("children", report) == ["ok"]
        held = http.post(f"/queues/{queue}/pause", json={}).json()["partitions"]
        # The children have the keys of the parent, and its pause.
        assert [(one["partition"], one["pause"]["reason"]) for one in held] == [
            (1, None),
            (2, "why"),
        ]
        ended = http.post(f"/queues/{queue}/partitions/0/pause", json={})
        assert ended.status_code == 422
        assert ended.json()["code"] == "invalid"
