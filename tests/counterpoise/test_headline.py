"""What is said of a queue first. `tests/browser` holds the dashboard to the same cases."""

from datetime import UTC, datetime, timedelta

import pytest

from counterpoise.headline import Headline, Look, headline, lag_grows

WAITS = Look(lag=30_000, held=0, unowned=1000)
NOTHING = Look(lag=0, held=0, unowned=1000)
UNOWNED = "1,000 partitions without an owner"
CONDITIONS = {"log_away": 1, "from_later": 3, "quarantined": 2}
MANY = f"{UNOWNED}, 2 quarantined, 1 log away, 3 from later, 2 partitions paused"
# Status, consumers, look, conditions, paused: what is said, and whether it alarms.
CASES = [
    ("Ready", 1, None, {}, 0, "", False),
    ("Ready", 1, Look(30_000, 0, 0), {}, 0, "", False),
    ("Ready", 1, WAITS, {}, 0, UNOWNED, True),
    ("Ready", 1, Look(0, 0, 1), {}, 0, "1 partition without an owner", True),
    ("Holddown", 1, WAITS, {}, 0, "", False),
    ("Ready", 0, WAITS, {}, 0, "nobody consumes", True),
    ("Rebalancing", 0, WAITS, {}, 0, "nobody consumes", True),
    ("Ready", 0, Look(None, 0, 8), {}, 0, "nobody consumes", True),
    ("Ready", 0, NOTHING, {}, 0, "no consumer", False),
    ("Ready", 0, None, {}, 0, "no consumer", False),
    ("Ready", 0, Look(30_000, 30_000, 8), {}, True, "no consumer, paused", False),
    ("Ready", 0, Look(30_000, 29_999, 8), {}, 1, "nobody consumes, 1 partition paused", True),
    ("Ready", 1, NOTHING, CONDITIONS, 2, MANY, True),
    ("Ready", 1, None, {"pin_unmet": 1}, 0, "1 pin unmet", True),
    ("Ready", 1, Look(2000, 0, 0, grows=True), {}, 0, "lag grows", True),
    ("Ready", 0, Look(2000, 0, 0, grows=True), {}, 0, "nobody consumes", True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "consumers", "look", "conditions", "paused", "text", "alarming"), CASES
)
def test_the_worst_is_said_first_and_what_was_wanted_does_not_alarm(
    status: str,
    consumers: int,
    look: Look | None,
    conditions: dict[str, int],
    paused: int,
    text: str,
    alarming: bool,
) -> None:
    said = headline(status, consumers, look, conditions=conditions, paused=paused)
    assert said == Headline(text, alarming)
    assert said.with_status(status) == (f"{text} ({status})" if text else status)


def test_that_the_service_is_away_comes_before_all_else() -> None:
    said = headline("Ready", 0, WAITS, conditions={"quarantined": 1}, away=True)
    assert said.text == "service away, nobody consumes, 1 quarantined"


@pytest.mark.parametrize(
    ("waiting", "minutes", "lag", "grows"),
    [
        (1001, 14, 1000, True),
        (1000, 14, 0, False),  # these are few
        (5000, 14, 5000, False),
        (5000, 8, 0, False),  # it has only begun
        (5000, 16, 0, False),  # that is too old
        (5000, 14, None, False),
        (5000, None, 0, False),
    ],
)
def test_the_lag_grows_if_it_is_larger_than_a_while_ago(
    waiting: int, minutes: int | None, lag: int | None, grows: bool
) -> None:
    now = datetime.now(UTC)
    measured: list[tuple[datetime, int | None]] = [(now - timedelta(hours=1), 0)]
    if minutes is not None:
        measured += [(now - timedelta(minutes=minutes), lag)]
    for age in (None, 300.0):
        assert lag_grows(waiting, age, [*measured, (now, 0)]) == grows
    assert not lag_grows(waiting, 299.0, [*measured, (now, 0)]), "as in any busy queue"


def test_nothing_is_said_of_a_lag_that_was_never_measured() -> None:
    assert not lag_grows(5000, None, [])
