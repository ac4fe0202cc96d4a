"""Who may ask for previews, and what hostile callers learn and change by them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.access import Guarded, bearer

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("access")]


def calls_on(queue: str, flow: str) -> list[tuple[str, str, Any]]:
    """Every call that has a preview."""
    path = f"/v1/queues/{queue}"
    return [
        ("PATCH", path, {"partition_count": 3}),
        ("DELETE", f"{path}?force=true", None),
        ("POST", f"{path}/rebalance", None),
        ("POST", f"{path}/pause", {}),
        ("POST", f"{path}/resume", None),
        ("POST", f"{path}/partitions/0/pause", {}),
        ("POST", f"{path}/partitions/0/resume", None),
        ("POST", f"{path}/partitions/0/split", {"at": "middle"}),
        ("POST", f"{path}/partitions/0/merge", {"with": 1}),
        ("POST", f"{path}/positions", {"to": "latest"}),
        ("POST", f"{path}/flows/{flow}/drain", {}),
        ("DELETE", f"{path}/flows/{flow}", None),
    ]


def statuses(
    secured: Guarded, queue: str, flow: str, token: str | None, flag: str = "dry_run=true"
) -> list[int]:
    with secured.http as http:
        return [
            http.request(
                method,
                f"{path}{'&' if '?' in path else '?'}{flag}",
                headers=bearer(token),
                **({} if body is None else {"json": body}),
            ).status_code
            for method, path, body in calls_on(queue, flow)
        ]


def test_a_preview_needs_the_right_of_its_call(secured: Guarded) -> None:
    secured.create("team-a.seen")
    flow, flow_token = secured.bind("team-a.seen", secured.root)
    admin = secured.key("admin", "team-a.*")
    for role in ("viewer", "publisher", "consumer"):
        assert {*statuses(secured, "team-a.seen", flow, secured.key(role, "team-a.*"))} == {403}
    stranger = secured.key("admin", "team-b.*")
    assert {*statuses(secured, "team-a.seen", flow, stranger)} == {403}
    assert {*statuses(secured, "team-a.seen", flow, None)} == {401}
    # A flow may drain and unbind itself, and nothing else.
    assert statuses(secured, "team-a.seen", flow, flow_token) == [403] * 10 + [200] * 2
    # A fixed queue neither splits nor merges.
    assert statuses(secured, "team-a.seen", flow, admin) == ([200] * 7 + [422] * 2 + [200] * 3)


def test_no_misspelt_dry_run_is_carried_out(secured: Guarded) -> None:
    secured.create("team-a.spelt")
    flow, _ = secured.bind("team-a.spelt", secured.root)
    admin = secured.key("admin", "team-a.*")
    flags = ("dryrun=true", "dry_run=1", "dry_run=", "dry_run=TRUE", "dry_run=true&dry_run=false")
    for flag in flags:
        assert {*statuses(secured, "team-a.spelt", flow, admin, flag)} == {422}, flag
    with secured.http as http:
        queue = http.get("/v1/queues/team-a.spelt", headers=bearer(admin)).json()
        audit = http.get("/v1/audit?queue=team-a.spelt", headers=bearer(admin)).json()["items"]
    assert (queue["partition_count"], queue["paused"], queue["flow_count"]) == (2, None, 1)
    assert [one["call"] for one in audit] == ["create_queue"]


def test_followers_of_others_are_not_named(secured: Guarded) -> None:
    secured.create("team-a.log")
    admin = secured.key("admin", "team-a.*")
    with secured.http as http:
        for name in ("team-a.reader", "team-b.reader"):
            new = {"name": name, "log": "builtin:team-a.log"}
            made = http.post("/v1/queues", json=new, headers=bearer(secured.root))
            assert made.status_code == 201, made.text
        body = {"partition_count": 3}
        path = "/v1/queues/team-a.log?dry_run=true"
        of_team = http.patch(path, json=body, headers=bearer(admin)).json()
        of_root = http.patch(path, json=body, headers=bearer(secured.root)).json()
    assert of_team["followers"] == ["team-a.reader"]
    assert of_root["followers"] == ["team-a.reader", "team-b.reader"]
