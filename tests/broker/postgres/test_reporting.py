"""A failing database is in the log with its code, once and not for each call."""

import structlog

from broker.postgres.reporting import LOG_SECONDS, Reporter


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
