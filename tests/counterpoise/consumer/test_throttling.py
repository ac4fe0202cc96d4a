"""Equal warnings of a consumer: one line a minute, which names the queue and counts the others."""

import logging

import pytest

from counterpoise.consumer.throttling import EQUAL_SECONDS, Warnings


def test_equal_warnings_are_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    warnings = Warnings(logging.getLogger("counterpoise.consumer"), "flights", lambda: now)

    def said() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    for number in range(341):
        warnings.warn("could not commit, continuing", OSError(number))
    warnings.warn("could not drain", OSError("away"))
    assert said() == [
        "queue flights: could not commit, continuing: 0",
        "queue flights: could not drain: away",
    ]
    now += EQUAL_SECONDS
    for number in range(2):
        warnings.warn("could not commit, continuing", OSError(number))
    assert said() == [
        "queue flights: could not commit, continuing: 0 (340 equal warnings were left out)"
    ]
