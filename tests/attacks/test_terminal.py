"""Names and messages that would take over the terminal of an operator who looks at them."""

import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner
from rich.text import Text

from broker.telemetry import configure_logging
from counterpoise.cli import app as command_line
from counterpoise.cli.app import app
from counterpoise.cli.history import entry
from counterpoise.cli.messages import _Output, _PlainFormatter
from counterpoise.cli.output import say
from counterpoise.cli.partitions import draw
from counterpoise.cli.tables import PlainConsole, conditions_text, table
from counterpoise.client import Client
from counterpoise.flow import Flow
from counterpoise.plain import plain, plain_line
from counterpoise.wire import HeldCondition, LineageNode, Rebalance
from tests.databases import name_clients
from tests.service import Service, eventually

pytestmark = pytest.mark.long

# What a name may contain for older releases: a C1 control; a reversed line; rich's markup; a line.
NAME = "\x9b31m\u202eetad\u2028[bold red]:smile:[/]\nforged\r\nforged"
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


@pytest.mark.matrix("arguments")
@pytest.mark.parametrize(
    "arguments",
    [
        ("flows", "list", "{queue}"),
        ("flows", "list", "{queue}", "--json"),
        ("status", "{queue}"),
        ("status", "{queue}", "--json"),
        ("queues", "show", "{queue}"),
        ("lag", "{queue}"),
        ("consumers", "drain", "{queue}", NAME, "--timeout", "0"),
        ("doctor", "--queue", "{queue}"),
    ],
)
def test_what_strangers_have_named_is_shown_and_not_obeyed(
    target: Service, attacked: str, arguments: tuple[str, ...]
) -> None:
    arguments = tuple(one.replace("{queue}", attacked) for one in arguments)
    environment = {"COUNTERPOISE_URL": target.url, "FORCE_COLOR": None}
    result = CliRunner().invoke(app, arguments, env=environment)
    # A drain of the only consumer of a queue goes on without the command.
    assert result.exit_code == (arguments[1] == "drain"), result.output
    assert_plain(result.output)
    if arguments[0] == "flows" and "--json" in arguments:
        assert json.loads(result.output)[0]["client_name"] == NAME
    elif "--json" not in arguments and arguments[0] in ("flows", "status"):
        # Text of theirs that looks like markup is text.
        assert ":smile:" in "".join(result.output.split())


def assert_plain(output: str) -> None:
    """No control character is in it, and no line of it is a stranger's."""
    assert plain(output) == output
    assert not [line for line in output.splitlines() if line.strip(" │→").startswith("forged")]


def test_nothing_that_is_shown_has_lines_of_strangers(capsys: pytest.CaptureFixture[str]) -> None:
    node = LineageNode(0, NAME, "owned", "f", (), (), ())
    now = datetime.now(UTC)
    moved = Rebalance(1, "bind", now, None, 0, 0, 1, now, f"{NAME} bound", (), 0, {}, (), 0)
    condition = HeldCondition(NAME, HOSTILE, 1, 1, now, "f", NAME)
    shown = table("A")
    shown.add_row(HOSTILE)
    shown.add_row(Text(HOSTILE, "red"))
    out = PlainConsole(width=80, file=io.StringIO())
    parts = [HOSTILE, shown, conditions_text([condition]), *entry(moved)]
    for part in (*parts, *draw([node], {"f": NAME})):
        out.print(part)
    say(HOSTILE)
    said = out.file.getvalue() + capsys.readouterr().err  # type: ignore[attr-defined]
    assert said.count("forged") >= 8
    assert_plain(said)


def test_an_error_is_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.fail(f"the service says {HOSTILE}")
    said = capsys.readouterr().err
    assert plain(said) == said
    assert said.count("\n") == 1


def test_a_warning_of_a_consumer_is_plain() -> None:
    record = logging.LogRecord("x", logging.WARNING, "", 1, "away: %s", (HOSTILE,), None)
    said = _PlainFormatter("%(message)s").format(record)
    assert_plain(said)


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
        assert line.decode() == plain_line(f"k:{HOSTILE}\ufffd")
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
