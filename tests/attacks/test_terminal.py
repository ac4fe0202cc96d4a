"""Names and messages that would take over the terminal of an operator who looks at them."""

import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from broker.telemetry import configure_logging
from counterpoise.cli import app as command_line
from counterpoise.cli.app import app
from counterpoise.cli.messages import _Output, _PlainFormatter
from counterpoise.client import Client
from counterpoise.flow import Flow
from counterpoise.plain import plain, plain_line
from tests.databases import name_clients
from tests.service import Service, eventually

# What a name may contain for older releases: a C1 control; a reversed line; rich's markup.
NAME = "\x9b31m\u202eetad\u2028[bold red]:smile:[/]"
# And what a message or another service may: a title, and a cleared screen.
# All that is escaped, but for surrogates, which cannot be sent.
UNFIT = [one for one in map(chr, range(0xD800)) if plain_line(one) != one] + ["\ufeff"]
HOSTILE = f"\x1b]0;pwned\x07\x1b[2J{NAME}"


@pytest.fixture
def attacked(target: Service, name_of_a_queue: Callable[[], str]) -> Iterator[str]:
    """A queue with a flow of a hostile name, which was bound through an older release."""
    name, url = name_of_a_queue(), target.settings.database_url
    assert url is not None
    with Client(target.url) as client:
        client.create_queue(name, 2, rebalance_delay=0)
        with Flow(name, url=target.url, client_name="etl") as flow:
            eventually(lambda: len(flow.partitions) == 2)
            name_clients(url.get_secret_value(), name, NAME)
            yield name


def test_the_service_takes_no_text_that_is_not_shown_as_it_is(
    target: Service, name_of_a_queue: Callable[[], str]
) -> None:
    name = name_of_a_queue()
    with target.http as http:
        http.post("/queues", json={"name": name, "partition_count": 1}).raise_for_status()
        flows = f"/queues/{name}/flows"
        flow = http.post(flows, json={"client_name": "à la 漢字 עברית 👩‍👩‍👧"}).json()
        conditions = f"{flows}/{flow['flow_id']}/conditions"
        token = {"Authorization": f"Bearer {flow['flow_token']}"}

        def report(text: str) -> dict[str, object]:
            return {"seq": 1, "conditions": [{"kind": "quarantined", "text": text}]}

        answers = [http.post(flows, json={"client_name": f"et{one}l"}) for one in UNFIT]
        for one in ("\x7f", "\x9b", "\u202e"):
            text = f"et{one}l"
            answers += [
                http.post(flows, json={"client_name": "etl", "instance_id": text}),
                http.post(flows, json={"client_name": "etl", "binder": text}),
                http.post(conditions, json=report(text), headers=token),
                http.post("/queues", json={"name": f"{name}{one}", "partition_count": 1}),
                http.post("/queues", json={"name": f"{name}2", "log": f"redis://127.0.0.1/{text}"}),
            ]
        assert [answer.status_code for answer in answers] == [422] * len(answers)
        assert http.post(conditions, json=report("עברית"), headers=token).status_code == 204


@pytest.mark.parametrize(
    "arguments",
    [
        ("flows", "list", "{queue}"),
        ("flows", "list", "{queue}", "--json"),
        ("status", "{queue}"),
        ("status", "{queue}", "--json"),
        ("queues", "show", "{queue}"),
        ("lag", "{queue}"),
    ],
)
def test_what_strangers_have_named_is_shown_and_not_obeyed(
    target: Service, attacked: str, arguments: tuple[str, ...]
) -> None:
    arguments = tuple(one.format(queue=attacked) for one in arguments)
    environment = {"COUNTERPOISE_URL": target.url, "FORCE_COLOR": None}
    result = CliRunner().invoke(app, arguments, env=environment)
    assert result.exit_code == 0, result.output
    assert plain(result.output) == result.output
    if arguments[0] == "flows" and "--json" in arguments:
        assert json.loads(result.output)[0]["client_name"] == NAME
    elif "--json" not in arguments and arguments[0] in ("flows", "status"):
        # Text of theirs that looks like markup is text.
        assert ":smile:" in "".join(result.output.split())


def test_an_error_is_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.fail(f"the service says {HOSTILE}")
    said = capsys.readouterr().err
    assert plain(said) == said
    assert said.count("\n") == 1


def test_a_warning_of_a_consumer_is_plain() -> None:
    record = logging.LogRecord("x", logging.WARNING, "", 1, "away: %s", (HOSTILE,), None)
    said = _PlainFormatter("%(message)s").format(record)
    assert plain(said) == said


@contextmanager
def written_to(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bytes]]:
    """Standard output is a terminal, or a pipe; `read()`: what has come out of it."""
    reading, writing = os.openpty() if terminal else os.pipe()
    with open(writing, "w") as stdout, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stdout)
        yield lambda: os.read(reading, 65536)
    os.close(reading)


class _Batch:
    def to_pylist(self) -> list[dict[str, object]]:
        return [{"key": "k", "value": HOSTILE.encode() + b"\xff"}]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_message_reaches_a_program_as_it_is_and_a_terminal_plainly(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with written_to(terminal, monkeypatch) as read:
        _Output(False, b":").write(None, _Batch())
        line = read().rstrip(b"\r\n")
    if terminal:
        assert line.decode() == plain(f"k:{HOSTILE}\ufffd")
    else:
        assert line == b"k:" + HOSTILE.encode() + b"\xff"


def test_the_log_of_the_service_is_plain_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    configure_logging("info", "text")
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("broker").exception("flow %s", HOSTILE, extra={"client": HOSTILE})
    assert "ValueError" in stderr.getvalue()
    assert plain(stderr.getvalue()) == stderr.getvalue()
