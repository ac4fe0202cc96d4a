"""Readers of the built-in log that wait: how they are woken, and what that asks of the server."""

import select
from contextlib import closing

import psycopg
import pytest

from counterpoise.logs import LogNotFound
from counterpoise.logs.builtin import connection as connections
from counterpoise.logs.builtin import log as logs
from counterpoise.logs.builtin import watching
from counterpoise.logs.builtin.log import PostgresLog
from tests.counterpoise.logs.test_contract_watching import (
    WAITS_SECONDS,
    call_of,
    is_woken,
    rest_of,
    waits,
)
from tests.databases import end_other_sessions
from tests.log_support import append, asked_of, with_logs

ENDS = {0: "0", 1: "0"}
OPEN_APPEND = """SELECT * FROM counterpoise_log.append(
    'flights', 4, 'p', %s, '{0}', ARRAY['x']::bytea[], NULL, NULL, NULL)"""


@pytest.fixture
def other(log_url):
    """Another client of the database."""
    with psycopg.connect(log_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def clock(log):
    """Moves the time of the log's reader."""

    def move(seconds):
        moved[0] += seconds

    moved, monotonic = [0.0], log._watching._monotonic
    log._watching._monotonic = lambda: monotonic() + moved[0]
    return move


@pytest.fixture
def publisher(log_url):
    with closing(PostgresLog("flights", log_url, timeout_seconds=10)) as publisher:
        yield publisher


# ------------------------------------------------------------------ no wake-up is lost


def test_an_append_that_looked_before_the_reader_said_so_is_waited_for(log, log_url, other):
    """And its publisher ends before it can wake anybody."""
    with psycopg.connect(log_url) as appending:
        appending.execute(OPEN_APPEND, [0])
        for _ in range(3):
            rest = log.watch(ENDS)
            assert 0 < rest.seconds < WAITS_SECONDS
            select.select(rest.descriptors, [], [], rest.seconds)
        # Another one that ends meanwhile is none to wait for.
        other.execute("UPDATE counterpoise_log.sequences SET appended_at = now()")
    assert not waits(log, ENDS)


def test_an_append_that_was_taken_back_is_not_waited_for(log, log_url):
    with psycopg.connect(log_url) as appending:
        appending.execute(OPEN_APPEND, [0])
        assert 0 < log.watch(ENDS).seconds < WAITS_SECONDS
        appending.rollback()
    assert waits(log, ENDS)


def test_an_append_finds_a_reader_that_said_so_after_it_had_begun(log, log_url):
    with psycopg.connect(log_url) as appending:
        appending.execute("SELECT 1")
        assert waits(log, ENDS)
        row = appending.execute(OPEN_APPEND, [0]).fetchone()
    assert row == (1, [0])


def test_a_lost_wake_up_costs_the_time_to_the_next_look(log, other, clock):
    assert waits(log, ENDS)
    other.execute(OPEN_APPEND, [0])  # and no `wake`
    assert log.watch(ENDS).seconds > 0
    clock(watching.LOOK.longest_seconds)
    assert log.watch(ENDS).seconds == 0


def test_an_append_whose_answer_was_lost_wakes_when_it_is_repeated(log, other, publisher):
    assert waits(log, ENDS)
    other.execute(OPEN_APPEND, [0])
    assert append(publisher, "x").duplicates == 1
    assert is_woken(log, ENDS)


def test_a_publisher_whose_connection_is_lost_after_its_append_wakes(
    log, other, publisher, monkeypatch
):
    def wake(connection, name, partitions):
        process = connection._connection.info.backend_pid
        other.execute("SELECT pg_terminate_backend(%s, 60000)", [process])
        watching.wake(connection, name, partitions)

    monkeypatch.setattr(logs, "wake", wake)
    assert waits(log, ENDS)
    append(publisher, "a")
    assert is_woken(log, ENDS)


def test_a_crash_of_the_server_forgets_who_waits(log, other, clock, publisher):
    assert waits(log, ENDS)
    other.execute("TRUNCATE counterpoise_log.watches")
    clock(watching.LOOK.longest_seconds)
    assert waits(log, ENDS)
    append(publisher, "a")
    assert is_woken(log, ENDS)


def test_a_reader_asks_now_and_then_while_another_keeps_what_a_crash_made_it_say_again(
    log, log_url, other, clock
):
    assert waits(log, ENDS)
    other.execute("TRUNCATE counterpoise_log.watches")
    with psycopg.connect(log_url) as blocking:
        blocking.execute("SELECT counterpoise_log.watch('flights', '{0}', '{0}')")
        clock(watching.LOOK.longest_seconds)
        assert log.watch(ENDS) is None


def test_a_reader_whose_connection_was_lost_listens_anew(log, log_url, publisher):
    descriptors = rest_of(log, ENDS).descriptors
    end_other_sessions(log_url)
    assert select.select(descriptors, [], [], 60)[0]
    assert waits(log, ENDS)
    append(publisher, "a")
    assert is_woken(log, ENDS)


def test_a_log_that_was_made_again_calls_by_another_name(log, log_url, clock, publisher):
    assert waits(log, ENDS)
    with_logs(log_url, lambda logs: logs.drop("builtin:flights"))
    clock(watching.LOOK.longest_seconds)
    assert log.watch(ENDS).seconds == 0
    with pytest.raises(LogNotFound):
        log.watch(ENDS)
    with_logs(log_url, lambda logs: logs.ensure("builtin:flights", 4))
    assert waits(log, ENDS)
    append(publisher, "a")
    assert is_woken(log, ENDS)


def test_a_resize_wakes_its_readers(log, log_url):
    descriptors = rest_of(log, ENDS).descriptors
    with_logs(log_url, lambda logs: logs.set_partition_count("builtin:flights", 2))
    assert select.select(descriptors, [], [], 60)[0]
    assert log.watch(ENDS).seconds == 0


@pytest.mark.parametrize("ends", [{0: "0", 5: "0"}, {5: "0"}], ids=["beside others", "alone"])
def test_a_partition_that_a_resize_will_make_is_waited_for(log, log_url, publisher, ends):
    """As in a log that is read beside one with more partitions."""
    descriptors = rest_of(log, ends).descriptors
    with_logs(log_url, lambda logs: logs.set_partition_count("builtin:flights", 8))
    assert select.select(descriptors, [], [], 60)[0]
    assert log.watch(ends).seconds == 0
    assert waits(log, ends)
    append(publisher, "a", partition=5, partition_count=8)
    assert is_woken(log, ends)


def test_a_resize_between_what_a_reader_said_and_its_look_is_found(
    log, log_url, publisher, monkeypatch
):
    def listen(channel):
        with_logs(log_url, lambda logs: logs.set_partition_count("builtin:flights", 8))
        heard(channel)

    heard = log._connection.listen
    monkeypatch.setattr(log._connection, "listen", listen)
    rest = log.watch({5: "0"})
    assert rest is None or rest.seconds == 0  # it asks the log, and waits anew
    assert log._watching._sure == {}


def test_a_resize_right_after_its_look_is_found(log, log_url, publisher, monkeypatch):
    def looked(statement, *parameters, **more):
        rows = query(statement, *parameters, **more)
        if statement == watching._STILL_WAITS and not resized:
            resized.append(True)
            with_logs(log_url, lambda logs: logs.set_partition_count("builtin:flights", 8))
            assert select.select([log._connection._connection.fileno()], [], [], 60)[0]
        return rows

    ends, resized, query = {0: "0", 5: "0"}, [], log._connection.query
    monkeypatch.setattr(log._connection, "query", looked)
    assert log.watch(ends).seconds == 0
    assert waits(log, ends)
    append(publisher, "a", partition=5, partition_count=8)
    assert is_woken(log, ends)


# ------------------------------------------------------------------ what it asks of the server


def test_a_reader_that_waits_hardly_asks(log, clock, monkeypatch):
    assert waits(log, dict.fromkeys(range(4), "0"))
    asked = asked_of(log, monkeypatch)
    for _ in range(600):
        clock(1)
        assert log.watch(dict.fromkeys(range(4), "0")).seconds > 0
    assert {*asked} == {watching._STILL_WAITS}
    assert len(asked) < 60


def test_of_many_appends_one_wakes(log, monkeypatch, publisher):
    assert waits(log, ENDS)
    asked = asked_of(publisher, monkeypatch)
    for number in range(5):
        append(publisher, "a", first=number, partition=1)
    assert asked.count(watching._WAKE) == 1
    assert is_woken(log, ENDS)


def test_an_append_wakes_nobody_where_nobody_waits(log, monkeypatch, publisher):
    assert waits(log, ENDS)
    asked = asked_of(publisher, monkeypatch)
    append(publisher, "a", partition=2)
    append(publisher, "a", "b", first=1, partition=3)
    assert watching._WAKE not in asked


def test_a_wake_up_of_others_costs_nothing_and_one_of_strangers_a_read(log, other, monkeypatch):
    descriptors = rest_of(log, ENDS).descriptors
    channel = log._watching._channel
    asked = asked_of(log, monkeypatch)
    for payload in ("2,3", "12", "x"):
        other.execute("SELECT pg_notify(%s, %s)", [channel, payload])
        assert select.select(descriptors, [], [], 60)[0]
        assert log.watch(ENDS).seconds >= WAITS_SECONDS
    for payload in ("0", "", "7,1"):
        other.execute("SELECT pg_notify(%s, %s)", [channel, payload])
        assert select.select(descriptors, [], [], 60)[0]
        # The reader asks for the ends, finds them as they were, and waits on.
        assert log.watch(ENDS).seconds == 0
        assert log.watch(ENDS).seconds >= WAITS_SECONDS
    # Without a number it may be a resize: one look more.
    assert asked == [watching._STILL_WAITS]


def test_a_reader_that_does_not_wait_keeps_few_of_the_wake_ups_of_others(
    log, log_url, other, monkeypatch
):
    """As one that has much to read, for days, while other readers of the log wait."""
    monkeypatch.setattr(connections, "MOST_HEARD", 5)
    assert waits(log, ENDS)
    for _ in range(30):
        other.execute("SELECT pg_notify(%s, '2')", [log._watching._channel])
        log.bounds([0])
        assert 1 <= len(log._connection._heard) <= 5
    assert log.watch(ENDS).seconds == 0
    # The same of a log that was made again.
    with_logs(log_url, lambda logs: logs.drop("builtin:flights"))
    with_logs(log_url, lambda logs: logs.ensure("builtin:flights", 4))
    assert log.watch(ENDS).seconds == 0
    assert waits(log, {0: "0"})
    assert len(log._connection._connection._notify_handlers) == 1


@pytest.fixture
def named(monkeypatch):
    """The partitions that each statement names, of readers and of publishers that wake them."""

    def sent(numbers):
        found.append([*numbers])
        return connections.integer_array(numbers)

    found: list[list[int]] = []
    monkeypatch.setattr(watching, "integer_array", sent)
    return found


def test_a_reader_of_many_partitions_says_and_looks_at_the_one_that_was_read(
    log, log_url, publisher, named
):
    with_logs(log_url, lambda logs: logs.set_partition_count("builtin:flights", 1000))
    ends = dict.fromkeys(range(1000), "0")
    assert waits(log, ends)
    named.clear()
    append(publisher, "a", partition=7, partition_count=1000)
    assert call_of(log, ends).moved == {7: None}
    assert waits(log, {**ends, 7: "1"})
    # The publisher that wakes, what the reader says, and where it looks.
    assert named == [[7], [7], [7]]


def test_so_it_does_when_it_finds_an_append_that_is_about_to_end(log, log_url, publisher, named):
    assert waits(log, dict.fromkeys(range(4), "0"))
    append(publisher, "a", partition=0)
    ends = {**dict.fromkeys(range(4), "0"), 0: "1"}
    named.clear()
    with psycopg.connect(log_url) as appending:
        appending.execute(OPEN_APPEND, [1])
        assert call_of(log, {**ends, 0: "0"}).moved == {0: None}
        assert log.watch(ends).seconds < WAITS_SECONDS
    assert rest_of(log, ends).moved == {0: None}  # and no `wake`
    assert waits(log, {**ends, 0: "2"})
    assert {*map(tuple, named)} == {(0,)}


def test_what_a_reader_writes_keeps_no_append_waiting(log, log_url, publisher):
    """Nor does it keep a reader waiting for long: that one asks now and then."""
    append(publisher, "a")
    ends = {**ENDS, 0: "1"}
    with psycopg.connect(log_url) as blocking:
        blocking.execute("SELECT counterpoise_log.watch('flights', '{0}', '{1}')")
        assert log.watch(ends) is None
        assert append(publisher, "b", first=1).appended == 1
    assert log.watch(ends) is None


@pytest.mark.usefixtures("log")
def test_only_an_end_can_be_waited_for(other):
    said = "SELECT partition, position FROM counterpoise_log.watches"
    other.execute("SELECT counterpoise_log.watch('flights', '{0,1,9}', '{1,0,0}')")
    assert other.execute(said).fetchall() == [(1, 0)]


# ------------------------------------------------------------------ where nobody can be woken


def test_behind_a_pooler_a_reader_asks_now_and_then(log, clock, monkeypatch):
    """A pooler tells its clients numbers of its own for the server's processes."""
    monkeypatch.setattr(connections, "_WHOSE", "SELECT 0, pg_is_in_recovery()")
    asked = asked_of(log, monkeypatch)
    for _ in range(50):
        assert log.watch(ENDS) is None
    assert len(asked) == 1
    monkeypatch.undo()
    clock(watching.DEAF_SECONDS)
    assert waits(log, ENDS)
