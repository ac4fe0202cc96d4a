"""What the service does to a log in Redis: making, repairing, trimming and dropping it."""

import time

import pytest

from broker.logs import redis_upkeep as upkeep
from broker.logs.external import open_managed
from broker.logs.peeking import Peek, peek_at
from broker.logs.ports import LogOwner
from counterpoise.logs import (
    AppendBatch,
    AppendResult,
    InvalidPosition,
    LogError,
    LogNotFound,
    LogRefused,
    Message,
    PositionTrimmed,
)
from tests.log_support import append, texts
from tests.managed_logs import OWNER, at, made
from tests.redis_server import RedisServer, redis_server

__all__ = ["redis_server"]


@pytest.fixture
def log(redis_server, request):
    log = made(redis_server.log(f"redis-{request.node.name[:60]}"), seconds=15)
    yield log
    log.close()


def test_a_server_that_lost_its_data_has_no_log_until_it_is_made_anew_behind_what_was_read(
    tmp_path,
):
    with RedisServer(tmp_path) as server:
        log = made(server.log("q"))
        append(log, *"abcde")
        before = log.bounds([0]).incarnation
        server.kill()
        server.start()
        for call in (
            lambda: log.bounds([0]),
            lambda: texts(log, 0, "3", "5"),
            lambda: append(log, "f", first=5),
            lambda: log.next_sequence("p"),
        ):
            with pytest.raises(LogNotFound):
                call()
        assert log.ensure(4, OWNER, {0: "4"}) != before
        append(log, "f", first=5)
        assert texts(log, 0, "4") == ["f"]
        # A known position never gets another message.
        with pytest.raises(PositionTrimmed):
            texts(log, 0, "3")


def test_a_log_that_lost_its_last_messages_goes_on_behind_what_was_read(log):
    append(log, "a", "b")
    incarnation = log.bounds([]).incarnation
    assert log.ensure(4, OWNER, {0: "5", 1: "1"}) == incarnation
    bounds = log.bounds([0, 1, 2])
    assert bounds.ends == {0: "5", 1: "1", 2: "0"}
    append(log, "f", first=2)
    assert texts(log, 0, "5") == ["f"]
    with pytest.raises(PositionTrimmed):
        texts(log, 0, "4")


def test_a_log_can_be_read_up_to_its_lost_messages(log):
    append(log, "a", "b", "c")
    log.ensure(4, OWNER, {0: "1000"})
    append(log, "d", first=3)
    assert log.bounds([0]).starts == {0: "0"}
    reading = log.read(0, "0", None, max_messages=100)
    assert next(reading)["value"].to_pylist() == [b"a", b"b", b"c"]
    # No reader passes over lost messages without being told where the log continues.
    with pytest.raises(PositionTrimmed) as gone:
        next(reading)
    assert (gone.value.position, gone.value.first) == ("3", "1000")
    assert texts(log, 0, "1000") == ["d"]
    assert log.limit({0: "0"}, 100, max_bytes=2) == {0: "2"}
    assert log.position_at(time.time() + 60)[0] == "1001"


def test_a_time_is_found_behind_what_a_log_lost(log):
    log.append(AppendBatch("p", 0, 4, [0], [Message(b"a", published_at=at(10))]))
    log.ensure(4, OWNER, {0: "5000"})
    assert log.position_at(20.0)[0] == "5000"
    log.append(AppendBatch("p", 1, 4, [0], [Message(b"b", published_at=at(30))]))
    assert log.position_at(5.0)[0] == "0"
    assert log.position_at(20.0)[0] == "5000"


def test_a_log_that_lost_everything_also_fails_new_readers(log, redis_server):
    log.ensure(4, OWNER, {0: "5"})
    append(log, "f")
    with pytest.raises(PositionTrimmed):
        texts(log, 0, log.bounds([0]).starts[0])
    # Once every queue is past the loss, no reader looks for the lost messages any more.
    log.trim({0: "3"})
    assert log.bounds([0]).starts == {0: "5"}
    assert texts(log, 0, "5") == ["f"]


def test_no_position_is_one_that_redis_cannot_count(log):
    too_large = str(2**53)
    with pytest.raises(InvalidPosition):
        log.ensure(4, OWNER, {0: too_large})
    with pytest.raises(InvalidPosition):
        texts(log, 0, too_large)
    keys = [log._meta, log._partitions]
    log._redis.script(upkeep._ENSURE, keys, 4, OWNER.queue_id, "", "", "", 0, too_large, retry=True)
    assert log.bounds([0]).ends == {0: "0"}


def test_a_late_call_of_a_queue_that_is_gone_touches_nothing(redis_server, log):
    """Its name belongs to another queue by now, and so does the log; revisions have begun anew."""
    append(log, "a", "b", "c")
    service = open_managed(redis_server.log(log.name), None, timeout_seconds=10)
    gone = LogOwner("gone", OWNER.queue, 0.0)
    assert not service.set_partition_count(1, 57, gone)
    assert service.partition_count() == 4
    assert service.set_partition_count(3, 1, OWNER)
    append(log, "x", partition=2, first=3, partition_count=3)
    assert service.set_partition_count(2, 2, OWNER)
    assert service.discard([2], gone) == frozenset()
    service.trim({0: "3"}, gone)
    assert texts(log, 0) == ["a", "b", "c"]
    assert texts(log, 2) == ["x"]
    assert service.discard([2], OWNER) == {2}
    service.trim({0: "2"}, OWNER)
    assert log.bounds([0]).starts == {0: "2"}
    service.close()


def test_a_server_that_evicts_is_refused(tmp_path):
    with RedisServer(tmp_path, maxmemory="50mb", maxmemory_policy="allkeys-lru") as server:
        with pytest.raises(LogError, match="noeviction"):
            made(server.log("q"))


def test_another_queues_log_is_left_alone(log):
    append(log, "a")
    other = LogOwner("other", "orders", 2.0)
    with pytest.raises(LogRefused, match="'flights'"):
        log.ensure(9, other)
    log.drop(other)
    assert texts(log, 0) == ["a"]
    assert log.bounds([]).partition_count == 4


def test_dropping_leaves_no_messages_behind(log, redis_server):
    append(log, "a")
    append(log, "b", partition=3, first=1)
    log.drop(OWNER)
    with redis_server.client() as admin:
        left = set(admin.scan_iter(f"counterpoise:{{{log.name}}}:*"))
    # Data on publishers expires by itself, and belongs to the other incarnation.
    assert {key.rpartition(b":")[0].rpartition(b":")[2] for key in left} == {b"publisher"}
    assert log.ensure(4, OWNER)
    assert append(log, "a") == AppendResult(1, 0)


def test_trimming_goes_in_steps_and_is_exact(log, redis_server, monkeypatch):
    monkeypatch.setattr("broker.logs.redis_upkeep.TRIM_MESSAGES", 7)
    append(log, *map(str, range(100)))
    log.trim({0: "55"})
    with redis_server.client() as admin:
        assert admin.xlen(f"counterpoise:{{{log.name}}}:stream:0") == 45
    assert texts(log, 0, "55")[0] == "55"


def test_people_look_at_what_is_left_after_a_trim_and_go_on_from_there(log):
    append(log, *"abcde")
    log.trim({0: "2"})

    def look(position, limit=10):
        found = peek_at(log, 0, position, limit, 1000)
        return "".join(one.value.decode() for one in found.messages), found.following

    assert look(None) == look("0") == ("cde", "5")
    assert look("3", limit=1) == ("d", "4")
    assert look("9") == ("", "5")
    [cut, *_] = peek_at(log, 0, None, 10, 0).messages
    assert (cut.value, cut.size_bytes, cut.position) == (b"", 1, "2")
    assert peek_at(log, 3, None, 10, 1000) == Peek("0", "0", (), "0")
