"""The command line against the real service, and its failures."""

import errno
import io
import json
import os
import re
import select
import signal
import sys
import time
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from subprocess import PIPE
from types import SimpleNamespace
from typing import Any

import pytest

from counterpoise import __version__
from counterpoise.cli import main, mend_streams, messages, queues
from counterpoise.cli.app import COMMANDS, load
from counterpoise.cli.dead_letters import _Hindrance
from counterpoise.cli.picture import QueueSnapshot
from counterpoise.cli.status import _watch
from counterpoise.client import Client
from counterpoise.conditions import report
from counterpoise.errors import NotCounterpoise, ServiceUnavailable
from counterpoise.flow import Flow
from counterpoise.logs import LogUnavailable
from counterpoise.publisher import Publisher
from counterpoise.publisher.delivery import Delivery
from counterpoise.wire import Condition, ReleaseItem
from tests.counterpoise.cli.conftest import run_at
from tests.faults.proxy import Proxy
from tests.forked import Forked
from tests.measured import measured
from tests.service import eventually

# ------------------------------------------------------------------ queues, flows, status


def test_queues_are_made_shown_resized_and_deleted(run):
    options = ("-p", "3", "--rebalance-delay", "0", "--start", "latest")
    said = run("queues", "create", "a", *options).output
    assert said == "a created: 3 partitions, log builtin:a\n"
    document = json.loads(run("queues", "show", "a", "--json").output)
    assert (document["partition_count"], document["rebalance_delay"]) == (3, 0)
    assert document["start"] == "latest"
    assert "builtin:a" in run("queues", "show", "a").output
    listing = run("queues", "list").output.splitlines()
    assert listing[0].split() == ["QUEUE", "STATUS", "PARTITIONS", "CONSUMERS", "LAG", "LOG"]
    assert " ".join(listing[1].split()) == "a no consumer (Ready) 3 0 0 builtin:a"
    assert [one["name"] for one in json.loads(run("queues", "list", "--json").output)] == ["a"]
    assert run("status").output == run("queues", "list").output
    said = run("queues", "resize", "a", "5").output
    assert said == "a resized: 5 partitions, log builtin:a\n"
    said = run("queues", "resize", "a", "4").output
    assert (
        said
        == "a resized: 4 partitions, log builtin:a; 1 surplus partition until read to the end\n"
    )
    run("queues", "resize", "a", "5")
    run("queues", "change", "a", "--max-handoff-time", "0")
    document = json.loads(run("queues", "show", "a", "--json").output)
    assert (document["partition_count"], document["max_handoff_time"]) == (5, 0)
    run("queues", "delete", "a")
    assert json.loads(run("queues", "list", "--json").output) == []


def test_a_queue_for_spark_has_times_that_fit_micro_batches(run):
    def time_of(*options):
        created = json.loads(run("queues", "create", *options, "-p", "3", "--json").output)
        return created["max_handoff_time"]

    assert time_of("a") == 3
    assert time_of("b", "--for", "spark") == 30
    assert time_of("c", "--for", "spark", "--max-handoff-time", "7") == 7
    run("queues", "create", "d", "-p", "3", "--for", "flink", code=2)


def test_help_shows_the_whole_name_of_each_option_and_command(run):
    """At 80 columns, where a wide column of values pushes names out."""
    assert "…" not in run("queues", "create", "--help").output
    assert "keys " in run("--help").output


def test_resize_says_what_happens_to_order(run):
    said = " ".join(run("queues", "resize", "--help").output.split())
    assert "a partition waits for the older messages of its keys" in said
    assert "Without ordered resizes a newer message of a key may be processed first" in said
    assert "stop publishing, wait until" in said


def test_status_has_the_lag_and_a_map_of_a_thousand_partitions(run, service):
    run("queues", "create", "a", "-p", "1000", "--rebalance-delay", "0")
    run("publish", "a", "-q", stdin="x\n" * 7)
    with Client(service.url) as client:
        client.bind("a", "one", lease_seconds=600)
        picture = run("status", "a").output
        assert "consumers: 1 active   lag 7" in picture
        rows = re.findall(r"^\W*(\d+)  ([1>~]{40,64})\W*$", picture, re.M)
        assert [int(first) for first, _ in rows] == list(range(0, 1000, 64))
        assert "".join(owners for _, owners in rows) == "1" * 1000


def test_messages_that_nobody_consumes_are_the_first_thing_said(run):
    run("queues", "create", "a", "-p", "2")
    assert "nobody" not in run("queues", "list").output, "there is nothing to do"
    run("publish", "a", stdin="x\n")
    assert "nobody consumes (Ready)" in run("queues", "list").output
    assert "nobody consumes; Ready" in run("status", "a").output


def test_a_lag_that_grows_is_said(run, service, migrated_url):
    run("queues", "create", "a", "-p", "2", "--rebalance-delay", "0")
    measured(migrated_url, "a", rounds=40)
    with Client(service.url) as client:
        client.bind("a", "one", lease_seconds=600)
        with Publisher("a", url=service.url) as publisher:
            publisher.publish(b"x", published_at=datetime.now(UTC) - timedelta(minutes=6))
        run("publish", "a", "-q", stdin="x\n" * 999)
        assert "lag grows" not in run("queues", "list").output, "these are few"
        run("publish", "a", "-q", stdin="x\n")
        assert "lag grows (Ready)" in run("queues", "list").output
        assert "lag grows; Ready" in run("status", "a").output


def test_the_option_that_is_missing_is_named(run, monkeypatch):
    assert "--partitions" in run("queues", "create", "a", code=2).stderr
    monkeypatch.setenv("COUNTERPOISE_TOKEN", "two\nlines")
    assert "COUNTERPOISE_TOKEN: the token contains" in run("queues", "list", code=1).stderr


def test_status_and_flows_show_the_owners(run, service):
    run("queues", "create", "a", "-p", "3", "--rebalance-delay", "0", "--max-handoff-time", "60")
    assert "no consumer is bound" in run("status", "a").output
    with Client(service.url) as client:
        mine = client.bind("a", "me", warmup=False, lease_seconds=600)
        client.bind("a", "[red]other[/red]", lease_seconds=600)
        eventually(lambda: client.rebalance_status("a").status == "Rebalancing")
        picture = run("status", "a").output
        assert "Rebalancing (bind)" in picture
        assert "[red]other[/red]" in picture
        assert "p2" in picture
        client.release("a", mine.flow_id, mine.flow_token, [ReleaseItem(2, 1)])
        eventually(lambda: client.rebalance_status("a").status == "Ready")
        assert "0-1" in run("status", "a").output
        status = json.loads(run("status", "a", "--json").output)
        assert (status["status"], status["spread"], status["lag"]) == ("Ready", 1, 0)
        assert [one["client_name"] for one in status["consumers"]] == ["me", "[red]other[/red]"]
        assert [one["owner"] == mine.flow_id for one in status["partitions"]] == [True, True, False]
        flows = json.loads(run("flows", "list", "a", "--json").output)
        assert [flow["client_name"] for flow in flows] == ["me", "[red]other[/red]"]
        assert "token" not in json.dumps(flows)
        poison = Condition("quarantined", "at 7: [red]ValueError[/red]", 0, 1)
        client.send(report("a", mine.flow_id, mine.flow_token, [poison], 1))
        said = " ".join(run("status", "a").output.split())
        assert "p0 quarantined at me for" in said
        assert "[red]ValueError[/red]" in said
        (told,) = json.loads(run("status", "a", "--json").output)["conditions"]
        assert (told["kind"], told["partition"]) == ("quarantined", 0)
        assert "1 quarantined (Ready)" in run("queues", "list").output
        assert "active" in run("consumers", "list", "a").output
        assert "a: Ready" in run("rebalance", "a").output


@pytest.mark.long
def test_a_pipe_gets_no_line_that_is_filled_with_spaces(run):
    run("queues", "create", "a", "-p", "2")
    run("queues", "create", "a-queue-with-a-longer-name", "-p", "2")
    for command in (["queues", "list"], ["doctor"], ["lag", "a"], ["audit"]):
        said = run(*command).stdout
        assert said.endswith("\n")
        assert [line for line in said.splitlines() if line != line.rstrip()] == [], command


def test_a_flow_is_drained_and_unbound_from_the_outside(run, service):
    run("queues", "create", "a", "-p", "4", "--rebalance-delay", "0")
    with Client(service.url) as client:

        def let_go(owned, seconds_left):
            first.release(owned.partition)

        first = Flow("a", url=service.url, client_name="first", on_revoking=let_go)
        with first, Flow("a", url=service.url, client_name="second") as second:
            eventually(lambda: [one.partitions for one in client.flows("a")] == [2, 2])
            done = run("consumers", "drain", "a", "first", "--timeout", "60")
            assert "first owns no partition any more" in done.stderr
            assert [one.partitions for one in client.flows("a")] == [0, 4]
            assert done.stderr.startswith("first owns ")
            # No flow is left to take them over.
            late = run("consumers", "drain", "a", "second", "--timeout", "0.3", code=1)
            assert "nobody can take over, because no other consumer is bound" in late.stderr
            assert "second still owns 4 partitions after" in late.stderr
            document = json.loads(
                run("consumers", "drain", "a", "second", "--timeout", "0", "--json", code=1).stdout
            )
            assert (document["partitions"], document["successors"]) == (4, False)
            ended = run("consumers", "unbind", "a", second.flow_id, "--json")
            assert json.loads(ended.stdout)["client_name"] == "second"
            assert [one.client_name for one in client.flows("a")] == ["first"]
            unknown = run("consumers", "unbind", "a", "nobody", code=2)
            said = " ".join(unknown.stderr.replace("│", " ").split())
            assert "counterpoise consumers list a" in said


def test_a_drain_that_waits_for_a_pair_says_so(run, service):
    with Client(service.url) as client:
        client.create_queue("a", 4, rebalance_delay=600, max_handoff_time=600)
        first, _ = (client.bind("a", name, lease_seconds=600) for name in ("first", "second"))
        client.rebalance_now("a")
        client.drain("a", first.flow_id)
        run("consumers", "drain", "a", "second", "--no-wait")
        client.bind("a", "third", lease_seconds=600)
        status = client.rebalance_status("a")
        assert (status.status, status.holddown_until is not None) == ("Rebalancing", True)
        waits = run("consumers", "drain", "a", "second", "--timeout", "0.1", code=1)
        assert "its successors are chosen after the holddown" in waits.stderr


def test_a_drain_is_waited_for_through_an_outage_of_the_service(run, service, monkeypatch):
    errors = [ServiceUnavailable("away"), NotCounterpoise("a page of a proxy")]
    asked = Client.rebalance_status
    with Client(service.url) as client:
        client.create_queue("a", 2, rebalance_delay=0)
        bound = client.bind("a", "first", lease_seconds=600)
        client.rebalance_now("a")

        def status(self, queue):
            if errors:
                raise errors.pop()
            client.unbind(queue, bound.flow_id)
            return asked(self, queue)

        monkeypatch.setattr(Client, "rebalance_status", status)
        done = run("consumers", "drain", "a", "first", "--timeout", "60")
    assert "away; waiting for it" in done.stderr
    assert "first has left" in done.stderr


def test_a_proxys_page_ends_neither_a_redrive_nor_a_consumer_that_waits(monkeypatch):
    def page(*_):
        raise NotCounterpoise("a page")

    for call in ("flows", "rebalance_status"):
        monkeypatch.setattr(Client, call, page)
    monkeypatch.setattr("counterpoise.cli.dead_letters.LOOK_SECONDS", 0.0)
    with Client("http://127.0.0.1:1") as client:
        assert not _Hindrance(client, "dead", "me", set).came()
    consumer: Any = SimpleNamespace(queue="a", flow=SimpleNamespace(active=False))
    assert messages._Waiting(consumer, None).over_seconds() == 0.0


def test_watching_outlives_the_page_of_a_proxy(service, monkeypatch):
    with Client(service.url) as client:
        client.create_queue("a", 2)
        pictures = iter(
            [QueueSnapshot.take(client, "a"), NotCounterpoise("a page"), KeyboardInterrupt()]
        )

        def take(*_):
            picture = next(pictures)
            if isinstance(picture, BaseException):
                raise picture
            return picture

        monkeypatch.setattr(QueueSnapshot, "take", take)
        monkeypatch.setattr("counterpoise.cli.status.POLL_SECONDS", 0.0)
        _watch(client, "a")
    assert next(pictures, None) is None


SCREEN = {"TERM": "xterm", "COLUMNS": "200", "LINES": "50"}


@contextmanager
def terminal():
    """A terminal: a test reads its screen, and a process writes to it."""
    screen, within = os.openpty()
    try:
        yield screen, within
    finally:
        os.close(screen)
        os.close(within)


def read_until(screen, text, after="", seconds=240):
    """Read what a terminal shows until `text` appears, after `behind` bytes."""
    deadline = time.monotonic() + seconds
    shown = ""
    while text not in (shown.partition(after)[2] if after else shown):
        left = deadline - time.monotonic()
        assert left > 0, f"{text!r} was not shown: {shown!r}"
        if select.select([screen], [], [], left)[0]:
            shown += os.read(screen, 65536).decode(errors="replace")


def test_watching_ends_with_an_interrupt_and_outlives_the_service(run, service, start):
    run("queues", "create", "a", "-p", "3")
    with terminal() as (screen, within):
        watching = start("status", "a", "--watch", environment=SCREEN, stdout=within)
        read_until(screen, "no consumer is bound")
        service.stop()
        read_until(screen, "service away, no consumer")
        read_until(screen, "no service answers")
        assert watching.poll() is None
        watching.send_signal(signal.SIGINT)
        # The earlier screen is back, with the last picture on it.
        read_until(screen, "no service answers", after="\x1b[?1049l")
        _, err = watching.communicate(timeout=60)
    assert watching.returncode == 0, err
    assert err == ""


# ------------------------------------------------------------------ publish and consume


def test_lines_are_published_and_consumed(run, tmp_path):
    run("queues", "create", "a", "-p", "3", "--rebalance-delay", "0")
    file = tmp_path / "lines"
    file.write_bytes(b"k1: one\nk2: two\nk1: three\n")
    said = run("publish", "a", "--file", str(file), "--key-separator", ": ").stderr
    assert said == "published 3 messages to a\n"
    run("publish", "a", "--key", "k3", "-q", stdin="four\r\nfünf\r\r\n")
    got = run("consume", "a", "-n", "2", "-q", "--json").stdout
    messages = [json.loads(line) for line in got.splitlines()]
    assert len(messages) == 2
    rest = run("consume", "a", "-n", "3", "--idle", "20", "--key-separator", "\\t").stdout_bytes
    lines = [f"{one['key']}\t{one['value']}" for one in messages]
    lines += rest.decode().removesuffix("\n").split("\n")
    assert sorted(lines) == ["k1\tone", "k1\tthree", "k2\ttwo", "k3\tfour", "k3\tfünf\r"]
    assert lines.index("k1\tone") < lines.index("k1\tthree")
    assert run("consume", "a", "--idle", "0.3", "-q").stdout == ""


@pytest.mark.long
def test_a_holddown_is_not_idleness(run):
    run("queues", "create", "a", "-p", "2", "--rebalance-delay", "5")
    run("publish", "a", "-q", stdin="one\n")
    assert run("consume", "a", "-n", "1", "--idle", "4", "-q").stdout == "one\n"


def test_a_publish_tells_programs_how_many(run):
    run("queues", "create", "a", "-p", "1")
    done = run("publish", "a", "--json", stdin="one\ntwo\n")
    assert json.loads(done.stdout) == {"queue": "a", "published": 2}
    assert done.stderr == ""
    # Progress is for terminals.
    assert run("publish", "a", stdin="one\n").stderr == "published 1 message to a\n"


@pytest.mark.long
def test_a_publish_shows_its_progress_on_a_terminal(run, start, tmp_path):
    run("queues", "create", "a", "-p", "1")
    file = tmp_path / "lines"
    file.write_bytes(b"x\n" * 50_000)
    with terminal() as (screen, within):
        publishing = start("publish", "a", "-f", str(file), environment=SCREEN, stderr=within)
        read_until(screen, " messages, ")
        read_until(screen, "published 50,000 messages to a")
        assert publishing.wait(240) == 0


@pytest.mark.long
@pytest.mark.parametrize("command", ["publish", "consume"])
def test_a_service_that_is_away_is_said_at_once(start, command):
    process = start(command, "a", "--url", "http://127.0.0.1:9")
    said = process.stderr.readline()
    assert "no service answers at http://127.0.0.1:9" in said
    # A consumer may be started before its service, so it waits.
    assert said.endswith("; waiting for it\n") == (command == "consume")


def test_an_answer_may_be_lost(run, service):
    make = ("queues", "create", "a", "-p", "2", "--ordered-resize")
    with Proxy(service.url) as proxy:
        proxy.lose()
        lost = run_at(proxy.url, *make, code=1)
        assert "was cut" in lost.output
        made = run("queues", "show", "a", "--json").stdout
        assert "created" in run_at(proxy.url, *make).output
        assert run("queues", "show", "a", "--json").stdout == made
        refused = run_at(proxy.url, *make, "--retention-seconds", "60", code=1)
        assert "exists already, with other settings" in refused.output
        proxy.lose()
        published = run_at(proxy.url, "publish", "a", stdin="1\n2\n")
        assert (proxy.lost, "published 2 messages" in published.output) == (2, True)


def test_force_does_not_delete_a_log_that_another_queue_reads(run):
    run("queues", "create", "a", "-p", "1")
    run("queues", "create", "reader", "--log", "builtin:a")
    refused = run("queues", "delete", "a", "--force", code=1).stderr
    said = "counterpoise: The queue 'reader' reads the log of 'a'; delete that queue first."
    assert refused.splitlines() == [said]


@pytest.mark.long
def test_consumers_of_a_deleted_queue_end_with_a_line(run, service, start):
    run("queues", "create", "a", "-p", "4", "--rebalance-delay", "0")
    run("publish", "a", "-q", stdin="one\n")
    consumer = start("consume", "a", "-q")
    # It knows that it is bound, which the service knows before.
    assert consumer.stdout.readline() == "one\n"
    assert "stop them first, or delete with --force" in run("queues", "delete", "a", code=1).stderr
    done = json.loads(run("queues", "delete", "a", "--force", "--json").stdout)
    assert done == {"queue": "a", "consumers_ended": 1}
    _, err = consumer.communicate(timeout=60)
    assert consumer.returncode == 1
    assert err.splitlines()[-1] == "counterpoise: queue a was deleted; the consumer has ended"
    assert "Traceback" not in err


def test_a_queue_with_unprocessed_messages_is_not_deleted_by_a_word(run):
    run("queues", "create", "a", "-p", "3")
    run("publish", "a", "-q", stdin="1\n2\n")
    said = run("queues", "delete", "a", code=1).stderr
    assert said == (
        "counterpoise: a has 2 messages that are not processed; --force deletes it nevertheless\n"
    )
    assert json.loads(run("queues", "list", "--json").output)[0]["lag"] == 2
    run("queues", "delete", "a", "--force")
    assert json.loads(run("queues", "list", "--json").output) == []


@pytest.mark.parametrize(("answer", "left"), [("n", 1), ("y", 0)])
def test_a_person_is_asked_before_messages_are_deleted(run, monkeypatch, answer, left):
    run("queues", "create", "a", "-p", "3")
    run("publish", "a", "-q", stdin="1\n")
    monkeypatch.setattr(queues, "for_people", lambda: True)
    asked = run("queues", "delete", "a", stdin=f"{answer}\n", code=left)
    assert "a has 1 message that is not processed. Delete it?" in asked.stderr
    assert len(json.loads(run("queues", "list", "--json").output)) == left


def test_a_line_that_cannot_be_published_is_named_and_what_came_before_it_counted(run):
    run("queues", "create", "a", "-p", "3")
    said = run("publish", "a", "--key-separator", "=", stdin="a=1\nb\n", code=1).stderr
    assert said == (
        "counterpoise: line 2 has no '=' between key and value; 1 message before it was published\n"
    )
    assert json.loads(run("queues", "list", "--json").output)[0]["lag"] == 1


def interrupted(lines, end=KeyboardInterrupt):
    """Lines of an input that ends with Ctrl-C, or another end."""
    yield from lines
    raise end


@pytest.mark.long
@pytest.mark.parametrize(
    ("end", "code"), [(KeyboardInterrupt, 130), (SystemExit(143), 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_an_interrupted_publish_says_what_is_published(run, monkeypatch, end, code):
    run("queues", "create", "a", "-p", "3")
    lines = interrupted([b"1\n", b"2\n"], end)
    monkeypatch.setattr(messages, "_input", lambda file: nullcontext(lines))
    said = run("publish", "a", code=code).stderr
    assert said == "counterpoise: interrupted after 2 messages, which are published\n"


def test_an_interrupted_publish_without_its_log_says_what_may_be_lost(run, monkeypatch):
    run("queues", "create", "a", "-p", "3")

    def nowhere(self, log, batch):
        raise LogUnavailable("no log answers")

    monkeypatch.setattr(Delivery, "_append", nowhere)
    # It does not connect before it is closed.
    hasty = partial(Publisher, timeout_seconds=0.3, linger_seconds=3600)
    monkeypatch.setattr("counterpoise.publisher.Publisher", hasty)
    monkeypatch.setattr(messages, "_input", lambda file: nullcontext(interrupted([b"1\n", b"2\n"])))
    said = run("publish", "a", code=130).stderr
    assert said == (
        "counterpoise: interrupted after 2 messages, 2 of them not known to be in the log\n"
    )
    # Another error that ends it is reported too.
    monkeypatch.setattr(messages, "_input", lambda file: nullcontext([b"1\n", b"2\n"]))
    said = run("publish", "a", code=1).stderr
    assert said == "counterpoise: no log answers; 2 messages are not known to be in the log\n"


@pytest.mark.long
@pytest.mark.matrix("signum")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_consumer_told_to_end_hands_over_in_order(run, service, start, signum):
    run("queues", "create", "a", "-p", "4", "--rebalance-delay", "0", "--max-handoff-time", "60")
    with Client(service.url) as client:

        def owned():
            return [flow.partitions for flow in client.flows("a")]

        first = start("consume", "a")
        eventually(lambda: owned() == [4])
        second = start("consume", "a")
        eventually(lambda: owned() == [2, 2])
        first.send_signal(signum)
        _, err = first.communicate(timeout=60)
        assert first.returncode == 0, err
        assert "being handed off" in err
        eventually(lambda: owned() == [4])
        # The last consumer has no successor and does not wait for one.
        second.send_signal(signum)
        assert second.wait(240) == 0
        assert owned() == []
        outcomes = {move.outcome for one in client.rebalances("a") for move in one.moves}
        assert outcomes == {"initial", "graceful"}


@pytest.mark.long
def test_a_reader_that_goes_away_ends_a_consumer(run, start):
    run("queues", "create", "a", "-p", "1", "--rebalance-delay", "0")
    run("publish", "a", "-q", stdin="x" * 1000 + "\n" * 1)
    consumer = start("consume", "a", "-q")
    consumer.stdout.close()
    assert consumer.wait(240) == 1
    assert "Traceback" not in consumer.stderr.read()
    consumer.stdout = None


# ------------------------------------------------------------------ failures


def test_an_error_is_one_line_and_exit_code_1(run):
    for arguments in (["queues", "show", "nowhere"], ["status", "nowhere"], ["consume", "nowhere"]):
        said = run(*arguments, code=1).stderr
        assert said.startswith("counterpoise: No queue is named 'nowhere'")
        assert "counterpoise queues list" in said
        assert "/v1/" not in said
        assert "Client." not in said
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:9", "no service answers at http://127.0.0.1:9"),
        ("http://127.0.0.1:9", "start one with 'counterpoise serve', or set --url"),
        ("127.0.0.1:9", "no service answers at http://127.0.0.1:9"),
        ("nonsense", "must be an http:// or https:// URL"),
        ("queues.example.com:8640", "must be an http:// or https:// URL"),
    ],
)
def test_a_wrong_address_is_said(url, says):
    said = run_at(url, "queues", "list", code=1).stderr
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize("command", [["queues", "list"], ["doctor"]])
def test_nobody_is_told_to_start_a_service_that_answers_without_tls(service, command):
    result = run_at(service.url.replace("http:", "https:"), *command, code=1)
    said = " ".join((result.stdout + result.stderr).split())
    assert "does not speak TLS: try http://" in said
    assert "set --url or COUNTERPOISE_URL" in said
    assert "counterpoise serve" not in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["queues", "create"],
        ["queues", "create", "a", "-p", "many"],
        ["queues", "change", "a"],
        ["publish", "a", "--key", "k", "--key-separator", "="],
        ["consume", "a", "--lease", "0"],
        ["queues", "create", "a", "-p", "1", "--rebalance-delay", "nan"],
        ["consume", "a", "--idle", "inf"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments):
    said = run_at("http://127.0.0.1:9", *arguments, code=2).stderr
    if arguments[-1] in ("nan", "inf"):
        assert f"{arguments[-1]} is no number of seconds" in said
        assert arguments[-2] in said


@pytest.mark.parametrize("name", ["", "a/b", "\udcff"])
def test_a_name_that_no_queue_has_is_refused_before_anything_is_asked(name):
    said = run_at("http://127.0.0.1:9", "queues", "show", name, code=1).stderr
    assert said.startswith("counterpoise: A queue's name is 1 to 200 of the characters")
    assert said.count("\n") == 1


def test_standard_streams_may_be_closed_full_or_not_utf_8(monkeypatch):
    narrow = io.TextIOWrapper(io.BytesIO(), "ascii")
    for name, stream in (("stdin", None), ("stdout", narrow), ("stderr", None)):
        monkeypatch.setattr(sys, name, stream)
    mend_streams()
    with closing(sys.stdin), closing(sys.stderr), narrow:
        assert sys.stdin.read() == ""
        assert not sys.stdin.isatty()
        print("a · b", file=sys.stdout)
        print("lost", file=sys.stderr)
        narrow.flush()
        assert narrow.buffer.getvalue() == b"a \\xb7 b\n"
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr(sys, "stdout", FullStream())
    monkeypatch.setattr(sys, "argv", ["counterpoise", "--version"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert said.getvalue() == "counterpoise: OSError: [Errno 28] No space left on device\n"


def test_nothing_is_consumed_into_a_closed_output(monkeypatch):
    """What stands in for it loses what is written."""
    monkeypatch.setattr(sys, "__stdout__", None)
    said = run_at("http://127.0.0.1:9", "consume", "a", code=1).stderr
    assert said.startswith("counterpoise: OSError: standard output is closed; messages would be")


def test_a_terminal_of_no_size_shows_everything():
    environment = {**os.environ, "COLUMNS": "0", "LINES": "0"}
    with Forked(
        "counterpoise.cli", ["queues", "create"], environment=environment, stderr=PIPE
    ) as process:
        _, said = process.communicate(timeout=240)
        assert process.wait() == 2
    assert "queues create [OPTIONS] QUEUE" in said


class FullStream(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_the_version_is_said():
    assert run_at("", "--version").output == f"counterpoise {__version__}\n"


def test_commands_of_a_package_that_is_not_installed_say_which(monkeypatch):
    monkeypatch.setattr(
        "counterpoise.cli.app.find_spec", lambda name: None if name == "broker" else name
    )
    said = run_at("", "serve", "--port", "1", code=1).stderr
    assert "the command serve comes with the service: pip install counterpoise-server" in said
    assert "serve" not in run_at("", "--help").output


def test_the_list_of_commands_begins_each_help_as_the_command_does():
    for name, place in COMMANDS.items():
        command = load(name)
        assert command.get_short_help_str(200) == place.summary, name
        assert command.hidden == place.hidden


def test_the_demo_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "broker.demo", None)
    said = run_at("", "demo", "--rows", "5", code=1).stderr
    assert "pip install 'counterpoise[demo]'" in said


def test_commands_of_installed_packages_are_there():
    assert "serve" in run_at("", "--help").output
    said = " ".join(run_at("", "serve", "--help").output.split())
    assert "--data-dir" in said
    assert "[env: COUNTERPOISE_DATA_DIR]" in said


def test_commands_are_named_and_no_calls_of_http(run):
    run("queues", "create", "a", "-p", "2")
    for arguments, says in (
        (["queues", "show", "b"], "'counterpoise queues list' shows the queues"),
        (["queues", "create", "a", "-p", "3"], "'counterpoise queues change' changes"),
        (["queues", "resize", "a", "0"], "partition_count: should be greater than or equal to 1"),
        (["queues", "pause", "a", "-p", "9"], "'counterpoise positions show' lists those that"),
    ):
        said = run(*arguments, code=1).stderr
        assert says in said
        assert "/v1/" not in said
        assert "Input should" not in said


def test_a_log_of_a_kind_that_no_client_reads_is_refused_unless_it_is_meant(run):
    options = ("queues", "create", "a", "-p", "2", "--log", "kafak://localhost:9092/flights")
    said = " ".join(run(*options, code=2).stderr.split())
    assert "no client reads logs of this kind" in said
    assert json.loads(run("queues", "list", "--json").output) == []
    run(*options, "--custom-log")
    assert run("queues", "show", "a").output.count("kafak://") == 1
