"""Why a queue was rebalanced, in the words that people read."""

from __future__ import annotations

from typing import Any

import pytest

from broker.calls.history import cause, why
from counterpoise import wire


def bound(client: str) -> wire.Cause:
    return cause(0.0, "bound", f"flow of {client}", client)


def left(client: str | None, reason: str) -> wire.Cause:
    return cause(0.0, "left", "0198c0de-7f2a-7c31", client, reason)


def changed(**settings: Any) -> wire.Cause:
    return cause(0.0, "changed", settings=settings)


@pytest.mark.parametrize(
    ("trigger", "causes", "said"),
    [
        ("bind", [bound("a")], "a bound"),
        ("bind", [bound("a"), bound("b")], "a and b bound"),
        ("bind", [bound(c) for c in "abcde"], "a, b, c and 2 others bound"),
        ("bind", [bound(c) for c in "abcd"], "a, b, c and 1 other bound"),
        ("bind", [bound("a"), bound("a")], "a bound"),
        ("unbind", [left("a", "unbound"), bound("b")], "a left; b bound"),
        ("lease_expired", [left("a", "lease_expired")], "a did not renew the lease"),
        ("driver_lost", [left("a", "driver_lost")], "a lost the Spark driver, which was killed"),
        ("unbind", [left("a", "key_ended")], "a left, because the key ended"),
        ("unbind", [left("a", "of a later version")], "a left (of a later version)"),
        ("unbind", [left(None, "unbound")], "flow 0198c0de left"),
        ("replaced", [bound("a"), left("a", "replaced")], "a started again"),
        ("resize", [changed(partition_count=12)], "resized to 12 partitions"),
        ("resize", [changed(partition_count=1)], "resized to 1 partition"),
        ("access_type", [changed(access_type="exclusive")], "access_type was set to exclusive"),
        ("admin", [], "an administrator asked for a rebalance"),
        ("admin", [bound("a")], "an administrator asked for a rebalance; a bound"),
        ("bind", [], "a consumer bound"),
        ("of a later version", [], "of a later version"),
    ],
)
def test_why(trigger: str, causes: list[wire.Cause], said: str) -> None:
    assert why(trigger, causes) == said
