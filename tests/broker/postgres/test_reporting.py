"""A failing database is in the log with its code, once and not for each call."""

import structlog

from broker.postgres.checks import LOG_SECONDS, MOST_CAUSES, Reporter
from broker.telemetry import configure_logging


def test_each_code_is_said_once_in_a_while() -> None:
    now = 100.0
    reporter = Reporter(lambda: now)
    with structlog.testing.capture_logs() as logs:
        for _ in range(50):
            reporter.report("no space left on device", "53100")
        reporter.report("no answer", None)
        now += LOG_SECONDS
        reporter.report("no space left on device", "53100")
    assert [(line["code"], line["times_before"]) for line in logs] == [
        ("53100", 0),
        (None, 0),
        ("53100", 49),
    ]


def test_without_a_code_each_text_is_said() -> None:
    reporter = Reporter(lambda: 100.0)
    with structlog.testing.capture_logs() as logs:
        for error in ("no answer in time", 'database "x" does not exist') * 2:
            reporter.report(error, None)
    assert [line["error"] for line in logs] == ["no answer in time", 'database "x" does not exist']


def test_what_differs_each_time_takes_bounded_memory() -> None:
    reporter = Reporter(lambda: 100.0)
    with structlog.testing.capture_logs() as logs:
        for number in range(3 * MOST_CAUSES):
            for _ in range(2):
                reporter.report(f"no route from port {number}", None)
    assert len(logs) == 3 * MOST_CAUSES
    assert len(reporter._said_at) == len(reporter._unsaid) == MOST_CAUSES


def test_logs_are_captured_however_often_logging_was_configured() -> None:
    """Commands configure it, and so do their tests, in the process of other tests."""
    for _ in range(2):
        configure_logging("critical", "json")
        with structlog.testing.capture_logs() as logs:
            Reporter().report("disk full", "53100")
        assert [line["code"] for line in logs] == ["53100"]
