"""`counterpoise simulate`, as people and programs call it."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from msgspec import structs

from broker.simulate.command import RunningQueue, simulate
from counterpoise.client import Client
from counterpoise.errors import BadAnswer
from counterpoise.flow import Flow
from counterpoise.testing import MemoryService
from tests.service import Service


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(simulate, arguments)
    assert result.exit_code == code, result.output
    return result


def test_it_says_what_would_happen_and_draws_it(tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    said = run("-p", "100", "--consumers", "10", "--picture", str(picture)).output
    assert "100 partitions, 10 consumers; rebalance_delay 5 s" in said
    assert "BALANCED AFTER" in said
    root = ElementTree.fromstring(picture.read_text("utf-8"))
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert "simulated: autoscale" in texts
    assert "consumers" in texts
    assert "how long partitions paused, in seconds (50 pauses)" not in said


def test_json_has_the_numbers(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('[{"at": 0, "do": "bind", "count": 2}, {"at": 9, "do": "crash", "count": 1}]')
    result = run("--scenario", str(plan), "--json", "--lease-seconds", "4")
    document = json.loads(result.stdout)
    assert [step["do"] for step in document["steps"]] == ["bind", "crash"]
    assert document["steps"][1]["pause_longest"] == 9.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--scenario", "nonsense"), "autoscale, rolling-restart, crash, or a file"),
        (("-p", "0"), "partitions"),
        (("-p", "1000001"), "partitions"),
    ],
)
def test_wrong_usage_says_what_there_is(arguments: tuple[str, ...], said: str) -> None:
    assert said in " ".join(run(*arguments, code=2).output.split())


def test_a_picture_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    result = run("--picture", str(tmp_path / "no" / "plan.svg"), code=1)
    assert "the picture cannot be written" in result.output


@pytest.mark.long
def test_a_running_queue_gives_its_own_numbers(service: Service) -> None:
    with Client(service.url) as client:
        client.create_queue("flights", 6, rebalance_delay=0, max_handoff_time=30)
        with Flow("flights", url=service.url):
            result = run("--from", "flights", "--url", service.url, "--max-handoff-time", "7")
    assert "6 partitions, 1 consumer from flights" in result.output
    assert "rebalance_delay 0 s, max_handoff_time 7 s" in result.output


def test_a_running_queue_is_played_with_its_settings_that_are_no_options() -> None:
    with MemoryService() as service:
        service.create_queue("one", 6, access_type="exclusive")
        service.create_queue("warm", 6, max_warmup_time=1)
        options = ("--url", service.url, "--flows", "4", "--json", "--warmup-seconds", "60")
        one = json.loads(run("--from", "one", *options).stdout)["steps"]
        warm = json.loads(run("--from", "warm", *options).stdout)["steps"]
    assert [(step["do"], step["handoffs"]) for step in one[:2]] == [("bind", 0), ("bind", 0)]
    assert (warm[1]["do"], warm[1]["handoffs"]) == ("bind", 3)
    assert warm[1]["balanced_after"] < 60


def test_the_partitions_of_aligned_logs_move_together() -> None:
    with MemoryService() as service:
        for name in ("one", "two"):
            service.create_queue(name, 3)
        service.client.create_queue("both", log="builtin:one", align_with="two")
        options = ("--from", "both", "--url", service.url, "--flows", "4")
        steps = json.loads(run(*options, "--json").stdout)["steps"]
        said = run(*options, "-p", "7", code=1).output
    assert [step["handoffs"] for step in steps[:2]] == [0, 2]
    assert "both reads 2 aligned logs: 7 is no multiple of 2" in said


def test_a_dynamic_queue_is_played_with_the_partitions_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with MemoryService() as service:
        queue = service.create_queue("flights", 4)
    grown = structs.replace(queue, partitioning="dynamic", operational_partition_count=64)
    running = RunningQueue(grown, None, 0)
    monkeypatch.setattr("broker.simulate.command.read_queue", lambda url, name: running)
    assert run("--from", "flights").output.startswith("64 partitions, ")


def test_a_night_without_an_owner_is_no_handoff() -> None:
    with MemoryService() as service:
        service.create_queue("flights", 2, rebalance_delay=5)
        with Flow("flights", url=service.url) as flow:
            service.advance(6)
            service.wait_until(lambda: len(flow.partitions) == 2)
            service.client.drain("flights", str(flow.flow_id))
            for number, owned in flow.partitions.items():
                flow.release(number, epoch=owned.epoch)
        service.advance(36_000)
        with Flow("flights", url=service.url) as flow:
            service.advance(6)
            said = run("--from", "flights", "--url", service.url).output
        (move, *_) = service.client.rebalances("flights")[0].moves
    assert (move.outcome, move.seconds) == ("graceful", 36_005.0)
    assert "(0 handoffs measured)" in said
    assert "finish 0.5 s" in said


def test_a_queue_that_is_not_there_is_one_line(service: Service) -> None:
    assert "nothing" in run("--from", "nothing", "--url", service.url, code=1).output
    away = run("--from", "flights", "--url", "http://127.0.0.1:9", code=1)
    assert "no service answers" in away.output


def test_the_first_line_says_how_it_began(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(
        '[{"at": 0, "do": "bind", "count": 2}, {"at": 60, "do": "resize", "count": 90}]'
    )
    arguments = ("--scenario", str(plan), "-p", "40", "--flows", "2")
    assert run(*arguments).stdout.startswith("40 partitions, 2 consumers; ")
    assert json.loads(run(*arguments, "--json").stdout)["partitions"] == 40


@pytest.mark.parametrize(
    "url", ["http://me:hunter2@127.0.0.1:9", "http://127.0.0.1:9/?key=hunter2"]
)
def test_an_address_with_a_secret_is_not_shown(url: str) -> None:
    said = run("--from", "flights", "--url", url, code=1).output
    assert "the service's address" in said
    assert "hunter2" not in said


@pytest.mark.long
def test_a_history_that_is_too_large_is_read_in_part(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(service.url) as client:
        client.create_queue("flights", 6, rebalance_delay=0, max_handoff_time=30)
        for _ in range(8):
            with Flow("flights", url=service.url):
                pass
        monkeypatch.setattr("counterpoise.reading.MOST_ANSWER_BYTES", 3000)
        with pytest.raises(BadAnswer):
            client.rebalances("flights", 20)
    assert (
        "6 partitions, 1 consumer from flights"
        in run("--from", "flights", "--url", service.url).output
    )
