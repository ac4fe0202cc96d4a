"""Reports of conditions: sent when something has changed, and never a reason to stop."""

from collections.abc import Generator
from typing import Any

import pytest
from msgspec import to_builtins

from counterpoise.errors import (
    CounterpoiseError,
    FlowGone,
    Invalid,
    ServiceUnavailable,
)
from counterpoise.flow.base import REFUSED_REPORT_SECONDS, Reports
from counterpoise.flow.core import FlowCore, FlowSettings
from counterpoise.flow.programs import Send, Sent
from counterpoise.wire import Condition
from tests.counterpoise.flow.answers import bound

AWAY = Condition("log_away", "no answer")
POISON = Condition("quarantined", "at 7: ValueError: 7", 5, 3)


class Program:
    """A flow that reports, and a service that answers as scripted."""

    def __init__(self) -> None:
        self.core = FlowCore(FlowSettings("flights", "etl", "i-1"))
        self.reports = Reports()
        self.error: CounterpoiseError | None = None
        self.bodies: list[Any] = []
        self.now = 100.0

    def bind(self, flow_id: str = "f-1") -> None:
        if self.core.status == "new":
            self.core.open()
        self.core.bind_answered(bound(1, flow_id=flow_id), self.now, self.now)

    def report(self, *conditions: Condition) -> None:
        run: Generator[Any, Sent, None] = self.reports.report(self.core, conditions, self.now, 5.0)
        sent = None
        while True:
            try:
                effect = next(run) if sent is None else run.send(sent)
            except StopIteration:
                return
            assert isinstance(effect, Send)
            assert effect.call.path.endswith("/conditions")
            self.bodies.append(to_builtins(effect.call.body))
            sent = Sent(self.now, self.now, 0.5, error=self.error)


@pytest.fixture
def program() -> Program:
    program = Program()
    program.bind()
    return program


def test_a_healthy_flow_sends_nothing(program: Program) -> None:
    program.report()
    program.report()
    assert program.bodies == []


def test_only_changes_are_sent(program: Program) -> None:
    for _ in range(3):
        program.report(AWAY, POISON)
    program.report(POISON)
    program.report()
    program.report()
    assert [(body["seq"], len(body["conditions"])) for body in program.bodies] == [
        (1, 2),
        (2, 1),
        (3, 0),
    ]
    poison = {"kind": "quarantined", "text": "at 7: ValueError: 7", "partition": 5, "epoch": 3}
    assert program.bodies[0]["conditions"] == ({"kind": "log_away", "text": "no answer"}, poison)


def test_what_was_not_answered_is_sent_again(program: Program) -> None:
    program.error = ServiceUnavailable("away")
    with pytest.raises(ServiceUnavailable):
        program.report(AWAY)
    program.error = None
    program.report(AWAY)
    program.report(AWAY)
    assert [body["seq"] for body in program.bodies] == [1, 2]


def test_a_flow_that_was_bound_again_reports_again(program: Program) -> None:
    program.report(AWAY)
    gone = {"code": "flow_gone", "reason": "lease_expired"}
    program.error = FlowGone("gone", 410, gone)
    program.report(AWAY, POISON)  # no error: it binds again
    program.report(AWAY)
    assert len(program.bodies) == 2
    program.error = None
    program.bind("f-2")
    program.report(AWAY)
    assert len(program.bodies) == 3


def test_a_flow_that_is_over_says_why(program: Program) -> None:
    program.error = FlowGone("gone", 410, {"code": "flow_gone", "reason": "replaced"})
    with pytest.raises(FlowGone):
        program.report(AWAY)


def test_a_refused_report_is_sent_again_later(program: Program) -> None:
    program.error = Invalid("wrong", 422, {"code": "invalid"})
    program.report(AWAY)
    program.report(AWAY)
    assert len(program.bodies) == 1
    program.now += REFUSED_REPORT_SECONDS
    program.error = None
    program.report(AWAY)
    assert len(program.bodies) == 2


def test_long_and_strange_texts_are_made_fit(program: Program) -> None:
    program.report(Condition("quarantined", "a\nb\x1b[0m" + "x" * 1000, 1, 1), Condition("k", ""))
    text, empty = (one["text"] for one in program.bodies[0]["conditions"])
    assert len(text) == 300
    assert text.startswith("a\\x0ab\\x1b[0mx")
    assert empty == "k"


def test_a_report_is_bounded(program: Program) -> None:
    program.report(*(Condition("quarantined", "t", number, 1) for number in range(1500)))
    assert len(program.bodies[0]["conditions"]) == 1000
