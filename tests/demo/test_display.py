"""The display: lines without a terminal, a picture on a terminal, the verdict on both."""

import io
import re
import time
from dataclasses import replace

import pytest
from rich.console import Console

from broker.demo.display import (
    LEGEND,
    Doing,
    FlightCounts,
    LiveDisplay,
    Observation,
    PlainDisplay,
    owners_line,
    state_line,
)
from broker.demo.evidence import ScenarioEvent
from broker.demo.playing import report
from broker.demo.verdict import Check, DemoVerdict, OwnerChange

DOING = {
    "alpha": Doing("works", time.monotonic()),
    "beta": Doing("was killed", time.monotonic()),
    "gamma": Doing("starts Java and Spark", time.monotonic()),
}
PROGRESS = FlightCounts(published=1500, counted=1000, total=20000)


def seen(status: str = "Rebalancing", trigger: str | None = "bind") -> Observation:
    return Observation(
        status=status,
        trigger=trigger,
        owners={0: "alpha", 1: "beta", 2: None, 3: "beta.2"},
        successors={0: None, 1: "gamma", 2: None, 3: None},
        committed={0: "10", 1: "20", 2: None, 3: "7"},
        flows={"alpha": "f1", "beta": "f2", "gamma": "f3"},
        draining=frozenset(),
        backlog={0: 5, 1: 1234, 2: 0, 3: 9},
        processed={"alpha": 600, "beta": 400},
    )


def test_owners_are_letters_and_capitals_while_they_hand_off() -> None:
    assert owners_line(seen()) == "aB.b"


def test_partitions_of_a_dynamic_queue_are_named_with_what_they_wait_for() -> None:
    dynamic = replace(seen(), keys={0: "00000000-3fffffff.0"}, waits_for={2: (0, 1)})
    assert owners_line(dynamic) == "0a 1B 2<0,1 3b"


def test_a_queue_is_not_ready_while_partitions_have_no_owner() -> None:
    ready = seen("Ready", None)
    assert state_line(ready) == "1 partition without an owner (Ready)"
    assert state_line(replace(ready, waits_for={2: (0,)})) == "Ready"
    alone = replace(ready, owners=dict.fromkeys(range(4)), flows={})
    assert state_line(alone) == "nobody consumes (Ready)"
    assert state_line(replace(alone, status="Holddown", trigger="bind")) == (
        "nobody consumes (Holddown)"
    )
    assert state_line(replace(alone, backlog=dict.fromkeys(range(4), 0))) == "no consumer (Ready)"
    assert state_line(seen("Holddown", "bind")) == "Holddown (bind)"


def test_plain_output_has_a_line_for_each_change_and_no_control_characters() -> None:
    output = io.StringIO()
    display = PlainDisplay(Console(file=output, width=120))
    display.news("alpha is drained")
    display.show(DOING, None, PROGRESS)
    display.show(DOING, seen(), PROGRESS)
    display.show(DOING, seen(), PROGRESS)
    display.show(DOING, seen("Holddown", "bind"), PROGRESS)
    display.close()
    lines = output.getvalue().splitlines()
    assert [re.sub(r"^ +\d+\.\d s  ", "", line) for line in lines] == [
        "alpha is drained",
        "alpha: works",
        "beta: was killed",
        "gamma: starts Java and Spark",
        LEGEND,
        "[aB.b] Rebalancing (bind)                 1,000 of 20,000 flights",
        "[aB.b] Holddown (bind)                    1,000 of 20,000 flights",
    ]
    assert "\x1b" not in output.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_the_picture_shows_owners_status_applications_progress_and_news(width: int) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=width, height=50, color_system=None)
    display = LiveDisplay(console, "Counterpoise")
    display.news("beta is killed (SIGKILL), and started again")
    display.show(DOING, None, PROGRESS)
    display.show(DOING, seen(), PROGRESS)
    display.close()
    picture = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.getvalue()).rpartition("╭")[2]
    assert "Rebalancing (bind)" in picture
    assert re.search(r"owner +alpha +beta +– +beta", picture)
    assert re.search(r"goes to +gamma", picture)
    assert re.search(r"waiting +5 +1,234 +0 +9", picture)
    assert re.search(r"alpha +works +\d+ s +1 +600", picture)
    assert "1,000 of 20,000" in picture
    assert "beta is killed" in picture
    assert all(len(line) <= width for line in picture.splitlines())


def verdict(kept: bool) -> DemoVerdict:
    drain = ScenarioEvent("drain", "alpha", 10.0)
    handoffs = [
        OwnerChange(0, 2, "graceful", "alpha", "gamma", drain, 45, 1.5, 0.4),
        OwnerChange(1, 2, "graceful", "alpha", "gamma", drain, 40, 2.5, 0.5),
    ]
    check = Check("order kept for every aircraft", kept, "1,434 aircraft [sic]")
    return DemoVerdict([check], handoffs, 0.7)


@pytest.mark.parametrize(
    ("kept", "mark", "word"), [(True, "kept", "GOOD"), (False, "BROKEN", "BAD")]
)
def test_the_report_says_what_was_found_and_what_it_cost(kept: bool, mark: str, word: str) -> None:
    output = io.StringIO()
    report(Console(file=output, width=120), verdict(kept), 83.2)
    text = output.getvalue()
    assert re.search(rf"{mark} +order kept for every aircraft +1,434 aircraft \[sic\]", text)
    assert re.search(r"drain of alpha +2 graceful +40 +2.0 s +2.5 s +0.5 s", text)
    assert f"Verdict: {word} (after 83 s)" in text
