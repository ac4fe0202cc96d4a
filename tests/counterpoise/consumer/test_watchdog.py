"""The watchdog, in virtual time."""

import pytest

from counterpoise.consumer.watchdog import Watchdog


@pytest.fixture
def dog():
    return Watchdog(lease_seconds=10.0, max_processing_seconds=30.0, now=1000.0)


def watch(dog, start, end, renewed=True):
    """Check every second; returns the worker that was found stuck."""
    found = [
        dog.look(float(now), float(now) - 0.1 if renewed else None) for now in range(start, end)
    ]
    return next((activity for activity in found if activity is not None), None)


def test_all_is_well_while_messages_get_done(dog):
    activity = dog.activity()
    for now in range(1000, 1100):
        activity.since = float(now - now % 20)
        assert dog.look(float(now), float(now)) is None
        assert dog.may_renew(now)
        assert dog.may_work(now)


def test_a_stuck_hand_stops_the_renewing_and_all_work_and_is_told_once(dog):
    activity = dog.activity()
    dog.activity()
    activity.since = 1000.0
    assert watch(dog, 1000, 1031) is None
    assert dog.may_renew(1030.0)
    assert watch(dog, 1031, 1040) is activity
    assert watch(dog, 1040, 1050) is None
    assert dog.stuck
    assert not dog.may_renew(1049.0)
    assert not dog.may_work(1049.0)


def test_a_stuck_consumer_works_again_after_the_service_has_answered(dog):
    activity = dog.activity()
    activity.since = 1000.0
    watch(dog, 1000, 1050)
    activity.since = 0.0
    assert dog.may_renew(1050.0)
    dog.look(1050.0, 1031.0)
    dog.look(1051.0, 1049.9)
    assert not dog.may_work(1051.0)  # Sent before, so its answer misses later losses.
    dog.look(1052.0, 1050.5)
    assert dog.may_work(1052.0)


def test_a_suspended_process_begins_nothing_before_the_service_has_answered(dog):
    watch(dog, 1000, 1010)
    assert not dog.may_work(1020.0)
    assert not dog.may_work(1021.0)
    dog.look(1021.0, 1009.0)
    assert not dog.may_work(1021.0)
    dog.look(1022.0, 1021.5)
    assert dog.may_work(1022.0)


def test_a_lost_connection_is_not_a_suspension(dog):
    for now in range(1000, 1100):
        dog.look(float(now), 1000.0)
        assert dog.may_work(now)
        assert dog.may_renew(now)


def test_without_a_limit_no_consumer_counts_as_stuck():
    dog = Watchdog(10.0, None, 0.0)
    dog.activity().since = 1.0
    assert dog.may_renew(1e9)
