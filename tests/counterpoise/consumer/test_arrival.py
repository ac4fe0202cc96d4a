"""A message reaches a consumer that waits because the log wakes it: no consumer here ever asks."""

from functools import partial

import pytest

from counterpoise.backoff import Backoff
from counterpoise.logs.builtin import watching
from counterpoise.logs.kafka import watching as kafka_watching
from counterpoise.logs.redis import watching as redis_watching
from tests.counterpoise.consumer.conftest import on_each_log
from tests.service import eventually

NEVER_SECONDS = 100_000.0


@pytest.fixture
def waiting(running, monkeypatch):
    """`waiting(…)`: a consumer that reads only when it is woken."""
    monkeypatch.setattr(watching, "LOOK", Backoff(NEVER_SECONDS, NEVER_SECONDS))
    monkeypatch.setattr(redis_watching, "BLOCK_SECONDS", NEVER_SECONDS)
    monkeypatch.setattr(kafka_watching, "LOOK_SECONDS", NEVER_SECONDS)

    def make(idle_seconds=NEVER_SECONDS):
        return running(idle_seconds=idle_seconds, lease_seconds=600)

    return make


def has_seen(one, count):
    return len(one.seen) == count


@on_each_log
def test_each_of_many_messages_wakes_it(waiting, publish):
    with waiting() as one:
        for number in range(30):
            publish([number])
            eventually(partial(has_seen, one, number + 1))
    assert one.numbers == [*range(30)]


@on_each_log
def test_messages_arrive_after_each_change_of_the_assignment(waiting, client, publish):
    with waiting() as first:
        publish(range(7))
        eventually(lambda: len(first.seen) == 7)
        with waiting() as second:
            eventually(lambda: len(second.partitions) == len(first.partitions) == 2)
            publish(range(7, 28))
            eventually(lambda: len(first.seen) + len(second.seen) == 28)
            second.stop()
        eventually(lambda: len(first.partitions) == 4)
        publish(range(28, 35))
        eventually(lambda: len(first.seen) + len(second.seen) == 35)
        # A consumer that waits leaves at once.
        first.stop()
    assert sorted(first.numbers + second.numbers) == [*range(35)]


@pytest.mark.long
@pytest.mark.parametrize("log_of", ["builtin", "redis"], indirect=True)
def test_messages_arrive_after_the_logs_server_has_dropped_those_who_wait(
    waiting, publish, postgres_of, request
):
    """As after its restart or a failover: it knows no reader any more.

    A reader that is dropped while it says where it waits asks now and then for a second.
    """
    with waiting(idle_seconds=0.2) as first, waiting(idle_seconds=0.2) as second:
        eventually(lambda: len(first.partitions) == len(second.partitions) == 2)
        publish(range(7))
        eventually(lambda: len(first.seen) + len(second.seen) == 7)
        if "redis" in request.node.callspec.params.values():
            with request.getfixturevalue("redis_server").client() as admin:
                admin.client_kill_filter(_type="normal", skipme=True)
        else:
            postgres_of("TRUNCATE counterpoise_log.watches")
            postgres_of(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'counterpoise-log' AND datname = current_database()"
            )
        publish(range(7, 28))
        eventually(lambda: len(first.seen) + len(second.seen) == 28)
    assert sorted(first.numbers + second.numbers) == [*range(28)]
