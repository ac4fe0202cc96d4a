"""A consumer reaches its log before it binds: it takes no partition that it cannot read."""

import logging

import pytest

from counterpoise.client import Client
from counterpoise.consumer import Consumer, opening
from counterpoise.logs import LogAccessRefused, LogError, open_log
from counterpoise.testing import MemoryService
from tests.counterpoise.consumer.conftest import Running
from tests.service import eventually

NOT_THERE = "postgresql://reader:secret@127.0.0.1:9/postgres"


@pytest.fixture
def undisturbed(client):
    """`undisturbed()`: no flow has been bound to the queue since the test began."""
    before = client.rebalance_status("flights")
    return lambda: client.rebalance_status("flights") == before


def test_a_consumer_that_cannot_reach_its_log_takes_no_partition(
    service, undisturbed, caplog, monkeypatch
):
    """And goes on to say why: it has no flow yet that could report it."""
    monkeypatch.setattr("counterpoise.consumer.throttling.EQUAL_SECONDS", 0)
    with (
        caplog.at_level(logging.WARNING, "counterpoise.consumer"),
        Running(service.url, log_url=NOT_THERE) as one,
    ):
        eventually(lambda: caplog.text.count("the log is unreachable, waiting") > 1)
        assert one.consumer.status().log_away
        one.stop()  # also while it waits, and without a bind
        assert one.consumer.flow.status == "new"
    assert undisturbed()
    assert "secret" not in caplog.text


def test_refused_credentials_take_no_partition(service, client, undisturbed):
    url = client.log_access("flights", "read").access.url
    place = url.rpartition("@")[2]
    with Running(service.url, log_url=f"postgresql://reader:wrong@{place}") as one:
        eventually(lambda: one.consumer.status().log_away)
    assert undisturbed()


def test_it_binds_when_the_log_is_reachable(service, client, publish, undisturbed, postgres_of):
    publish(range(3))
    postgres_of("UPDATE counterpoise_log.logs SET name = 'elsewhere' WHERE name = 'flights'")
    with Running(service.url) as one:
        eventually(lambda: one.consumer.status().log_away)
        assert undisturbed()
        postgres_of("UPDATE counterpoise_log.logs SET name = 'flights' WHERE name = 'elsewhere'")
        eventually(lambda: len(one.seen) == 3)


def test_it_asks_for_other_credentials_once_the_log_has_refused_the_first(monkeypatch):
    """A crash of Postgres, a failover or a restore may leave a role as it was before."""
    asked, real = [], Client.log_access

    def asking(client, queue, purpose, *, refused=False):
        asked.append(refused)
        return real(client, queue, purpose, refused=refused)

    def opening_log(*arguments, **options):
        if len(asked) < 3:
            raise LogAccessRefused("no such role")
        return open_log(*arguments, **options)

    monkeypatch.setattr(Client, "log_access", asking)
    monkeypatch.setattr(opening, "open_log", opening_log)
    with MemoryService() as service:
        service.create_queue("flights", 1)
        consumer = Consumer("flights", print, url=service.url, at_once=True)
        consumer.run(lambda: consumer.flow.status == "bound")
    assert asked == [False, True, True]


def test_permanent_errors_are_raised_before_the_bind(service, undisturbed):
    with pytest.raises(LogError, match="not one to a log of this kind"):
        Consumer("flights", print, url=service.url, log_url="redis://127.0.0.1:9").run()
    assert undisturbed()


def test_the_programs_own_condition_ends_the_waiting(service, undisturbed):
    asked = []

    def until():
        asked.append(True)
        return len(asked) > 2

    Consumer("flights", print, url=service.url, log_url=NOT_THERE).run(until)
    assert len(asked) == 3
    assert undisturbed()


def test_a_loop_waits_and_stops_alike(service, undisturbed):
    consumer = Consumer("flights", url=service.url, log_url=NOT_THERE)
    consumer.stop()
    assert list(consumer) == []
    assert undisturbed()
