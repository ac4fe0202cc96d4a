"""Readers of a log in Redis that wait: what they ask of the server, and when it does not answer."""

import select
from urllib.parse import quote

import pytest

from counterpoise.logs import LogUnavailable, open_log
from counterpoise.logs.port import Rest
from counterpoise.logs.redis import watching
from tests.counterpoise.logs.test_contract_watching import is_woken, rest_of, waits
from tests.log_support import append
from tests.managed_logs import made
from tests.redis_server import RedisServer

ENDS = {0: "0", 1: "0"}


@pytest.fixture
def log(redis_server, request):
    log = made(redis_server.log(f"watching-{request.node.name[:60]}"), seconds=15)
    yield log
    log.close()


@pytest.fixture
def clock(log):
    """Moves the time of the log's reader."""

    def move(seconds):
        moved[0] += seconds

    moved, monotonic = [0.0], log._watching._monotonic
    log._watching._monotonic = lambda: monotonic() + moved[0]
    return move


def is_deaf(log):
    """Whether a reader is told that it cannot be woken."""
    rest = log.watch(ENDS)
    for _ in range(9):
        if rest is None or not rest.seconds:
            break
        select.select(rest.descriptors, [], [], 60)
        rest = log.watch(ENDS)
    return rest is None and log.watch(ENDS) is None


def test_a_reader_that_waits_asks_once(log, redis_server):
    with redis_server.client() as admin:
        admin.config_resetstat()
        for _ in range(100):
            assert waits(log, ENDS)
        asked = admin.info("commandstats")
        assert asked["cmdstat_xread"]["calls"] <= 1
        assert sum(one["calls"] for one in asked.values()) < 10


def test_a_reader_that_finds_messages_by_itself_keeps_its_connection(log, redis_server):
    with redis_server.client() as admin:
        ends = {0: "0", 1: "0"}
        assert waits(log, ends)
        before = admin.info("stats")["total_connections_received"]
        for number in range(1, 20):
            append(log, "a", first=number - 1)
            ends[0] = str(number)
            assert waits(log, ends)
        append(log, "b", partition=1, first=19)
        assert is_woken(log, ends)
        assert admin.info("stats")["total_connections_received"] - before <= 1


def test_a_reader_that_rests_now_and_then_keeps_its_connection(log, redis_server):
    """While it reads a partition it looks at the others, and then rests at all."""
    with redis_server.client() as admin:
        assert waits(log, ENDS)
        before = admin.info("stats")["total_connections_received"]
        for number in range(20):
            append(log, "a", first=number)
            assert is_woken(log, {0: str(number), 1: "0"})
            assert log.glance({1: "0"}).seconds > 0
            assert waits(log, {0: str(number + 1), 1: "0"})
        assert admin.info("stats")["total_connections_received"] == before
        append(log, "b", partition=1, first=20)
        assert log.glance({1: "0"}) == Rest(0.0, moved={1: None})
        assert log.first({1: ("0", "1")}, max_messages=1, max_bytes=99)[1][1] == "1"
        assert is_woken(log, {0: "20", 1: "0"})


def test_it_may_wait_for_other_partitions_any_number_of_times(log):
    for number in range(150):
        assert waits(log, {number % 2: "0"})
    append(log, "a")
    assert is_woken(log, ENDS)


def test_a_server_that_does_not_answer_any_more_is_asked_for_the_ends(log, clock):
    assert waits(log, ENDS)
    clock(watching.BLOCK_SECONDS + watching.LATE_SECONDS)
    assert log.watch(ENDS).seconds == 0
    assert waits(log, ENDS)
    append(log, "a")
    assert is_woken(log, ENDS)


def test_a_user_without_the_right_asks_now_and_then(log, redis_server, clock):
    name = log.name
    with redis_server.client() as admin:
        admin.execute_command("ACL", "SETUSER", name, "on", ">secret", "~*", "+@all", "-xread")
        user = f"redis://{quote(name)}:secret@{redis_server.address}"
        reader = open_log(redis_server.log(name), user)
        try:
            assert reader.glance(ENDS) is None
            assert is_deaf(reader)
            assert reader.bounds([0]).ends == {0: "0"}
        finally:
            reader.close()
            admin.execute_command("ACL", "DELUSER", name)


def test_a_reader_of_a_server_without_the_command_asks_now_and_then(tmp_path):
    """As of one behind a proxy."""
    with RedisServer(tmp_path, rename_command='XREAD ""') as server:
        log = made(server.log("q"))
        assert log.glance(ENDS) is None
        assert is_deaf(log)
        assert log.bounds([0]).ends == {0: "0"}
        log.close()


def test_a_server_that_ends_calls_the_reader_who_then_finds_it_away(tmp_path):
    with RedisServer(tmp_path) as server:
        log = made(server.log("q"))
        descriptors = rest_of(log, ENDS).descriptors
        server.kill()
        assert select.select(descriptors, [], [], 60)[0]
        assert not waits(log, ENDS)
        with pytest.raises(LogUnavailable):
            log.bounds([0])
        with pytest.raises(LogUnavailable):
            log.watch(ENDS)
        log.close()
