"""What the command line shows of ordered resizes."""

import json

import pytest

from counterpoise.client import Client
from counterpoise.publisher import Publisher


@pytest.mark.long
def test_the_status_says_which_partition_waits_for_which_and_up_to_where(run, service):
    run("queues", "create", "a", "-p", "2", "--rebalance-delay", "0", "--ordered-resize")
    with Publisher("a", url=service.url) as publisher:
        for number in range(40):
            publisher.publish(b"", f"k{number}")
    with Client(service.url) as client:
        ends = {one.partition: one.end for one in client.partitions("a")}
        assert "ordered resize" not in run("status", "a").output
        run("queues", "resize", "a", "3")
        picture = run("status", "a").output
        assert f"p0 waits at {ends[0]} for 1" in picture
        assert "p2 waits at 0 for 0, 1" in picture
        assert "is not settled" in run("queues", "resize", "a", "4", code=1).stderr
        client.set_positions("a", ends)
        assert "waits" not in run("status", "a").output


def test_ordered_resizes_are_switched_on_and_off(run):
    def is_ordered(*words):
        return json.loads(run("queues", *words, "--json").output)["ordered_resize"]

    assert is_ordered("create", "a", "-p", "2") is True
    assert is_ordered("create", "reader", "--log", "builtin:a") is True
    run("queues", "create", "other", "-p", "2")
    assert is_ordered("create", "beside", "--log", "builtin:a", "--align-with", "other") is False
    assert is_ordered("create", "dynamic", "--dynamic") is False
    assert is_ordered("change", "a", "--ordered-resize") is True
    assert is_ordered("change", "a", "--rebalance-delay", "1") is True
    assert is_ordered("change", "a", "--no-ordered-resize") is False
    assert is_ordered("create", "b", "-p", "2", "--no-ordered-resize") is False
