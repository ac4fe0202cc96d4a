"""Who may pin and unpin, and what a consumer gains by a name that is not its own."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.access import Guarded, bearer

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("access")]


def send(http: httpx.Client, queue: str, call: str, token: str | None, **body: Any) -> int:
    given = {"client_name": "etl", **body} if call == "pin" else None
    path = f"/v1/queues/{queue}/partitions/0/{call}"
    return http.post(path, json=given, headers=bearer(token)).status_code


def test_only_an_administrator_of_the_queue_pins(secured: Guarded) -> None:
    secured.create("team-a.pinned")
    _, flow_token = secured.bind("team-a.pinned", secured.root)
    strangers = [
        *(secured.key(role, "team-a.*") for role in ("viewer", "publisher", "consumer")),
        secured.key("admin", "team-b.*"),
        flow_token,
    ]
    admin = secured.key("admin", "team-a.*")
    with secured.http as http:
        for call in ("pin", "unpin"):
            assert {send(http, "team-a.pinned", call, token) for token in strangers} == {403}
            assert send(http, "team-a.pinned", call, None) == 401
        shown = http.get("/v1/queues/team-a.pinned", headers=bearer(admin)).json()
        assert shown["pinned_partition_count"] == 0
        assert {send(http, "team-a.pinned", call, admin) for call in ("pin", "unpin")} == {200}


def test_the_audit_says_who_pinned_what_and_why(secured: Guarded) -> None:
    secured.create("team-a.audited-pins")
    admin = secured.key("admin", "team-a.*")
    with secured.http as http:
        reason = "<script>alert(1)</script> \u2713"
        send(http, "team-a.audited-pins", "pin", admin, reason=reason)
        send(http, "team-a.audited-pins", "unpin", admin)
        path = "/v1/audit?queue=team-a.audited-pins&limit=2"
        unpinned, pinned = http.get(path, headers=bearer(admin)).json()["items"]
    assert (unpinned["call"], pinned["call"]) == ("unpin_partition", "pin_partition")
    assert pinned["key_id"] is not None
    assert pinned["before"]["partitions"] == []
    [one] = pinned["after"]["partitions"]
    assert (one["partition"], one["pin"]["reason"]) == (0, reason)
    assert unpinned["after"]["partitions"] == []


def test_a_name_with_a_terminal_sequence_is_refused(secured: Guarded) -> None:
    secured.create("team-a.names")
    admin = secured.key("admin", "team-a.*")
    with secured.http as http:
        for name in ("\x1b[2J", "a\nb", "\u202eetl", "x" * 201):
            assert send(http, "team-a.names", "pin", admin, client_name=name) == 422
