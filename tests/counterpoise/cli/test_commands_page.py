"""docs/commands.md: the options are those of the commands, and the examples say what it shows.

The examples are one session, played in the order of the page against a real service. An output may
differ from the page in what differs each time (times, ids, addresses); `…` stands for any text, on
a line of its own for any lines.
"""

import re
import runpy
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from counterpoise.client import Client
from counterpoise.consumer import Consumer, DeadLetter
from tests.eventual import eventually
from tests.forked import Forked

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "commands.py"))
PAGE = SCRIPT["PAGE"].read_text("utf-8")
FENCE = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
# They need Kafka, a terminal of their own, a database, or an installed Java; for those of backups
# see below.
NOT_PLAYED = re.compile(r"positions export|serve|migrate|backup|restore|export JAVA_HOME")
IDS = r"cp_[0-9a-f]+_[0-9a-f]+|\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\b[0-9a-f]{12}(?:[0-9a-f]{4})?\b"
# What differs each time, and what it is then.
VARYING = {
    IDS: r"([\w-]+)",
    r"\d{4}-\d\d-\d\d[ T][\d:.]+": r"[\d: T.-]+",
    r"\b[\d.]+ (?:s|min)\b": r"[\d.]+ (?:s|min)",
    r":\d{4,5}\b": r":\d+",
    r"\b\d+\.\d+\.\d+\b": r"[\d.]+",
    r"(?<=revision )\d+|(?<=rebalance )\d+": r"\d+",
    "…": ".*",
    "─+": "─+",
    r"\s+": r"\s+",
}
ANY = re.compile("|".join(f"({one})" for one in VARYING))


def examples(text: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a text, each with the lines that it prints."""
    for fence in FENCE.findall(text):
        for command in re.split(r"^\$ ", fence, flags=re.M)[1:]:
            typed, *printed = command.rstrip("\n").split("\n")
            yield typed, printed


def pattern(lines: list[str]) -> re.Pattern[str]:
    """What an output with these lines looks like; a group for each id."""
    made = ""
    for line in lines:
        if line == "…":
            made += r"(?:.*\n)*?"
            continue
        at = 0
        for found in ANY.finditer(line):
            made += re.escape(line[at : found.start()])
            made += list(VARYING.values())[(found.lastindex or 0) - 1]
            at = found.end()
        made += re.escape(line[at:]) + r"[ ]*\n"
    return re.compile(made + r"\s*")


def test_the_options_are_those_of_the_commands() -> None:
    assert SCRIPT["page"](PAGE) == PAGE, "run make reference"


@pytest.mark.parametrize("name", [name for name, *_ in SCRIPT["commands"]()])
def test_every_command_has_an_example(name: str) -> None:
    section = PAGE.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
    assert any(name in typed for typed, _ in examples(section))


def pass_a_letter_on(url: str) -> None:
    """As the page says: a consumer of `orders` passes on the hammer."""

    def bill(message) -> None:
        if b"hammer" in message.value:
            raise ValueError("no price for a hammer")

    with Client(url) as client:
        client.set_positions("orders", to="earliest")
    Consumer("orders", each=bill, url=url, limit=3, on_poison=DeadLetter("orders-dead")).run()


class Terminal:
    """Types the commands of the page, with the ids that came where the page has its own."""

    def __init__(self, run, start, url: str) -> None:
        self._run, self._start, self._url = run, start, url
        self._ids: dict[str, str] = {}
        self._environment: dict[str, str] = {}

    def type(self, typed: str, printed: list[str]) -> None:
        for on_the_page, real in self._ids.items():
            typed = typed.replace(on_the_page, real)
        if typed.startswith("export "):
            name, _, value = typed.removeprefix("export ").partition("=")
            self._environment[name] = value
            return
        text, _, command = typed.rpartition(" | ")
        words = shlex.split(command)[1:]
        if words[-1] == "&":
            self._in_the_background(words[: words.index(">")])
            return
        stdin = shlex.split(text)[1].replace(r"\n", "\n") if text else None
        eventually(lambda: self._prints(words, stdin, printed))

    def _in_the_background(self, words: list[str]) -> None:
        self._start(*words)
        name = words[words.index("--client-name") + 1]
        with Client(self._url) as client:
            eventually(lambda: name in {flow.client_name for flow in client.flows(words[1])})

    def _prints(self, words: list[str], stdin: str | None, printed: list[str]) -> bool:
        """Whether the output is as on the page. Only a command that looks is typed again."""
        said = self._run(*words, stdin=stdin, environment=self._environment).output
        # It leaves as soon as it owns nothing; the drain may look in between.
        said = said.replace("owns no partition any more", "has left")
        if words[0] == "consume":  # two streams, and partitions in any order
            said, printed = "".join(sorted(said.splitlines(keepends=True))), sorted(printed)
        shown = pattern(printed).fullmatch(said)
        assert shown is not None or words[0] in ("status", "history"), f"{words}\n{said}"
        if shown is not None:
            ids = [one for line in printed for one in re.findall(IDS, line)]
            self._ids |= dict(zip(ids, shown.groups(), strict=True))
        return shown is not None


@pytest.mark.long
def test_the_examples_print_what_the_page_shows(run, start, service, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal(run, start, service.url)
    played = 0
    for typed, printed in examples(PAGE):
        if NOT_PLAYED.search(typed):
            continue
        if "dead-letters list" in typed:
            pass_a_letter_on(service.url)
        terminal.type(typed, printed)
        played += 1
    assert played > 35


@pytest.mark.long
def test_the_examples_of_backups_print_what_the_page_shows(tmp_path) -> None:
    """In a directory with a database. Numbers and names of logs differ."""

    def typed_in(command: str) -> str:
        words, piped = shlex.split(command)[1:], subprocess.PIPE
        process = Forked("counterpoise.cli", words, directory=tmp_path, stdout=piped, stderr=piped)
        said, errors = process.communicate()
        assert process.wait() == 0, errors
        return said

    def shape(said: str) -> str:
        return re.sub(r"\d+", "0", re.sub(r"(?<=incarnation: ).*", "…", said))

    typed_in("counterpoise migrate --data-dir data")
    played = {
        typed: (typed_in(typed), "\n".join([*printed, ""]))
        for typed, printed in examples(PAGE)
        if re.search(r" (backup|restore) ", typed)
    }
    assert len(played) == 2
    for said, printed in played.values():
        assert shape(said) == shape(printed)
