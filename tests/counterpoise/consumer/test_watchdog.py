"""The watchdog, in virtual time."""

import pytest

from counterpoise.consumer.watchdog import Watchdog


class View:
    """What the flow knows of its partitions."""

    in_doubt = False


@pytest.fixture
def view():
    return View()


@pytest.fixture
def dog(view):
    return Watchdog(lambda: view.in_doubt, max_processing_seconds=30.0)


def watch(dog, start, end):
    """Check every second; returns the worker that was found stuck."""
    found = [dog.look(float(now)) for now in range(start, end)]
    return next((activity for activity in found if activity is not None), None)


def test_all_is_well_while_messages_get_done(dog):
    activity = dog.activity()
    for now in range(1000, 1100):
        activity.since = float(now - now % 20)
        assert dog.look(float(now)) is None
        assert dog.may_renew(now)
        assert dog.may_work()


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
    assert not dog.may_work()


def test_a_stuck_consumer_works_again_when_its_partitions_are_certain(dog, view):
    activity = dog.activity()
    activity.since = 1000.0
    watch(dog, 1000, 1050)
    view.in_doubt = True  # Nothing was sent meanwhile.
    assert not dog.doubtful  # To ask the service would renew the lease.
    activity.since = 0.0
    assert dog.may_renew(1050.0)
    dog.look(1050.0)
    assert dog.doubtful
    assert not dog.may_work()
    view.in_doubt = False
    assert dog.may_work()


def test_a_consumer_that_has_paused_begins_nothing_whether_or_not_anybody_looks(dog, view):
    watch(dog, 1000, 1010)
    view.in_doubt = True
    assert not dog.may_work()
    assert dog.doubtful
    assert dog.may_renew(1010.0)


def test_without_a_limit_no_consumer_counts_as_stuck():
    dog = Watchdog(lambda: False, None)
    dog.activity().since = 1.0
    assert dog.may_renew(1e9)
