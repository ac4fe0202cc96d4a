"""`counterpoise peek`: messages are shown, and nothing is bound or committed."""

import json

import pytest

from counterpoise.publisher import Publisher
from tests.api.access import guarded
from tests.counterpoise.cli.conftest import run_at


@pytest.fixture
def published(run, service):
    run("queues", "create", "a", "-p", "1", "--rebalance-delay", "0")
    with Publisher("a", url=service.url) as publisher:
        publisher.publish(b"3 screws", "c1", {"trace": "t-1"})
        publisher.publish(b"\xff\x00", "c2")
        publisher.publish("ä".encode() * 2000, "c1")
        publisher.publish(b"\x1b[2J", None)


def rows(run, *options):
    said = run("peek", "a", "--json", *options).stdout
    return [json.loads(line) for line in said.splitlines()]


def test_messages_are_shown_and_nothing_is_changed(run, published):
    before = run("positions", "show", "a", "--json").stdout
    first, binary, long, screen = rows(run)
    assert (first["partition"], first["position"], first["key"]) == (0, "0", "c1")
    assert (first["value"], first["headers"], first["size_bytes"]) == (
        "3 screws",
        {"trace": "t-1"},
        8,
    )
    assert (binary["value_base64"], binary["size_bytes"]) == ("/wA=", 2)
    # It is cut, but not within a character.
    assert (long["value"], long["size_bytes"]) == ("ä" * 500, 4000)
    assert rows(run, "--max-bytes", "3")[2]["value"] == "ä"
    assert (screen["value"], screen["key"]) == ("\x1b[2J", None)
    text = run("peek", "a").stdout
    assert "key c1  trace=t-1  8 bytes\n  3 screws\n" in text
    assert "\x1b" not in text
    assert "  base64 /wA=\n" in text
    assert run("positions", "show", "a", "--json").stdout == before
    assert json.loads(run("flows", "list", "a", "--json").stdout) == []
    # A consumer gets the same values, whole.
    got = run("consume", "a", "-n", "4", "-q", "--json").stdout
    values = [json.loads(line) for line in got.splitlines()]
    assert [one.get("value") for one in values] == ["3 screws", None, "ä" * 2000, "\x1b[2J"]
    assert values[1]["value_base64"] == "/wA="


@pytest.mark.long
def test_no_message_has_lines_or_a_size_of_its_own(run, service):
    """It is two lines, whatever it holds, and of all its parts no more is shown than asked for."""
    run("queues", "create", "a", "-p", "1", "--rebalance-delay", "0")
    forged = "x\npartition 0 position 9  key c9\n"
    with Publisher("a", url=service.url) as publisher:
        publisher.publish(forged.encode(), forged, {"h\n": forged, "a  b": "c=d"})
        publisher.publish(b"v", "k" * 1_000_000)
        publisher.publish(b"v", None, {"h": "x" * 1_000_000})
    lines = run("peek", "a").stdout.splitlines()
    assert [line.startswith(("partition 0 position", "  ")) for line in lines] == [True] * 6
    assert [line[:22] for line in lines[::2]] == [f"partition 0 position {n}" for n in range(3)]
    assert r'key "x\npartition 0 position 9  key c9\n"  "h\n"="x\npart' in lines[0]
    assert '"a  b"="c=d"' in lines[0]
    assert lines[1] == r"  x\x0apartition 0 position 9  key c9\x0a"
    assert f"key {'k' * 1000} …  1 byte" in lines[2]
    assert "headers of 1,000,001 bytes" in lines[4]
    first, long, many = rows(run)
    assert (first["key"], first["headers"]["h\n"]) == (forged, forged)
    assert (long["key"], many["headers"]) == ("k" * 1000, None)
    assert rows(run, "--max-bytes", "3")[1]["key"] == "kkk"


def test_messages_are_picked_by_place_key_and_number(run, published):
    def positions(*options):
        return [row["position"] for row in rows(run, *options)]

    assert positions("--key", "c1") == ["0", "2"]
    assert positions("--key", "c1", "-n", "1") == ["0"]
    assert positions("-p", "0", "--position", "2") == ["2", "3"]
    assert "no such message" in run("peek", "a", "--key", "c9").stderr
    assert "the queue has no partition 99" in run("peek", "a", "-p", "99", code=2).stderr
    assert "--position needs one --partition" in run("peek", "a", "--position", "1", code=2).stderr
    assert run("peek", "a", "-p", "0", "--position", "99", code=1).stderr.count("\n") == 1


def test_it_takes_a_key_for_consuming(migrated_url):
    with guarded(migrated_url) as secured:
        secured.create("team-a.orders")
        for role, code in (("viewer", 1), ("consumer", 0)):
            token = {"COUNTERPOISE_TOKEN": secured.keys[role]}
            said = run_at(
                secured.service.url, "peek", "team-a.orders", code=code, environment=token
            )
            assert ("may not do this" in said.stderr) == (code == 1)
