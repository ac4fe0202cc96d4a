"""What every log says about the age of messages: of the next one, by the time it was published."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from counterpoise.logs import AppendBatch, InvalidPosition, Log, Message
from tests.counterpoise.logs.kits import LogKit, needs
from tests.log_support import append

HOUR = 3600.0


@pytest.fixture
def aged(kit: LogKit) -> Log:
    """The kit's log, with four partitions and time enough for any machine."""
    kit.make(4)
    return kit.open(timeout_seconds=150)


class Clock:
    """The present, and what passes until an answer has come."""

    def __init__(self) -> None:
        self.began = time.time()

    def ago(self, seconds: float) -> datetime:
        return datetime.fromtimestamp(self.began, UTC) - timedelta(seconds=seconds)

    def is_age(self, age: float, seconds: float) -> bool:
        """Whether it is that of a message which was published so many seconds ago."""
        # Kafka's times are in milliseconds.
        return seconds - 0.002 <= age <= seconds + (time.time() - self.began) + 0.002


def publish(log: Log, *times: datetime, partition: int = 0) -> None:
    """One message for each time, all in a batch of their own publisher."""
    messages = [Message(b"v", published_at=at) for at in times]
    numbers = [partition] * len(times)
    log.append(AppendBatch(f"p{partition}", 0, 4, numbers, messages))


def test_it_is_the_age_of_the_message_at_the_position(aged: Log) -> None:
    clock = Clock()
    publish(aged, clock.ago(3 * HOUR), clock.ago(2 * HOUR), clock.ago(HOUR))
    publish(aged, clock.ago(5 * HOUR), partition=2)
    ages = aged.ages({0: "0", 2: "0"})
    assert clock.is_age(ages[0], 3 * HOUR)
    assert clock.is_age(ages[2], 5 * HOUR)
    # Of a call for others nothing stays.
    later = aged.ages({0: "2"})
    assert set(later) == {0}
    assert clock.is_age(later[0], HOUR)
    assert clock.is_age(aged.ages({0: "1", 2: "0"})[0], 2 * HOUR)


def test_a_message_without_a_time_of_its_own_ages_from_its_append(aged: Log) -> None:
    clock = Clock()
    append(aged, "v")
    assert clock.is_age(aged.ages({0: "0"})[0], 0.0)


def test_no_age_is_negative(aged: Log) -> None:
    publish(aged, Clock().ago(-HOUR))
    assert aged.ages({0: "0"}) == {0: 0.0}


def test_a_partition_without_a_message_there_is_left_out(aged: Log) -> None:
    append(aged, "v")
    assert aged.ages({0: "1", 1: "0", 3: "7"}) == {}
    assert set(aged.ages({0: "0", 1: "0"})) == {0}
    assert aged.ages({}) == {}


def test_what_is_no_position_has_no_age(aged: Log) -> None:
    with pytest.raises(InvalidPosition):
        aged.ages({0: "x"})


@needs("trimming")
def test_trimmed_messages_have_no_age(kit) -> None:
    kit.make(4)
    log = kit.open(timeout_seconds=150)
    clock = Clock()
    publish(log, clock.ago(2 * HOUR), clock.ago(HOUR))
    kit.trim({0: "1"})
    assert all(clock.is_age(age, HOUR) for age in log.ages({0: "0"}).values())
    assert clock.is_age(log.ages({0: "1"})[0], HOUR)
