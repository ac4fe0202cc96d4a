"""The parts of delayed redelivery alone: lanes, a worker, the keeper, beside stand-ins."""

from contextlib import nullcontext
from math import inf
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from counterpoise.consumer import opening, poison, retry_queue
from counterpoise.consumer.lanes import Chunk, Due, Piece
from counterpoise.consumer.message import Failure
from counterpoise.consumer.poison import Retry
from counterpoise.consumer.redelivery import Redelivery
from counterpoise.consumer.retry_queue import Keeper, Records, RetryQueue
from counterpoise.consumer.work import Worker
from counterpoise.errors import Forbidden
from counterpoise.flow.view import Owned
from counterpoise.logs import LogAccessRefused, LogNotFound, LogUnavailable, PositionTrimmed
from counterpoise.logs.rows import Columns, Rows
from counterpoise.waking import Waking
from tests.counterpoise.consumer.test_lanes import View, fill, make
from tests.counterpoise.consumer.test_retry_queue import ORIGIN, compare, one_of, row, told

LONG = 3600.0
POLICY = Retry("retries", after_seconds=[LONG])


def table_of(*found):
    return Redelivery("q", "i", compare, found)


def loaded(view, *found, elsewhere=None, **options):
    """Lanes with one lane, of which this is set aside."""
    lanes = make(view, wake_keeper=lambda: None, **options)
    ((lane, loads),) = lanes.loading()
    lanes.loaded(lane, loads, table_of(*found), elsewhere or {})
    return lanes, lane


def resized(view, **more):
    """The view of an ordered resize."""
    owned = Owned(0, 1, "owned", "0", "initial", resize=1, **more)
    view.partitions = MappingProxyType({0: owned})


# ------------------------------------------------------------------ the table


def test_a_message_at_the_committed_position_is_read_again_and_not_tried():
    """The partition is done up to the position, which names the next message to read."""
    table = table_of(one_of("5"), one_of("6", key="other"))
    table.plan(done="6")
    assert table.due(LONG).place.position == "5"
    table.remove(table.due(LONG))
    assert table.due(LONG) is None
    assert not table.has_passed()
    table.plan(done="7")
    assert table.due(LONG).place.position == "6"


# ------------------------------------------------------------------ lanes


def test_a_full_table_takes_more_while_nothing_of_it_is_tried():
    """Else the partition would stay where it is: what is set aside is to be read again first."""
    lanes, lane = loaded(View(0), one_of("5"), one_of("6", key=None), max_messages=2)
    assert lanes.may_set_aside(lane, 1)
    lane.grant.done = "6"
    assert not lanes.may_set_aside(lane, 1)


def test_a_lane_loads_again_only_when_a_barrier_has_moved():
    view = View()
    resized(view, waits_for=(1, 2))
    lanes, lane = loaded(view)
    resized(view, waits_for=(1, 2), revision=1)
    lanes.follow()
    assert lanes.loading() == []
    resized(view, waits_for=(2,), revision=2)
    lanes.follow()
    fill(lanes)
    assert lanes.take(None, 0) is None
    assert lanes.loading() == [(lane, 2)]
    assert lanes.must_load()


def test_a_lane_goes_on_while_it_is_asked_which_keys_are_held_elsewhere():
    view = View()
    resized(view)
    lanes, lane = loaded(view, one_of("5", era=1), elsewhere={"k": 0})
    ((_, loads),) = lanes.loading()
    assert not lanes.must_load()
    fill(lanes)
    piece = lanes.take(None, 0)
    assert isinstance(piece, Piece)
    lane.grant.done = "6"
    lanes.loaded(lane, loads, lane.redelivery, {})
    assert lane.redelivery.held_elsewhere == {}
    lanes.put_back(piece, 6)
    # It is planned again.
    assert lane.redelivery.next_due == 0.0
    assert lanes.loading() == []


def test_the_settler_wakes_only_for_what_is_due_at_another_time():
    woken = []
    lanes, lane = loaded(View(0), one_of("5", due=50.0), wake_settler=lambda: woken.append(1))
    lane.grant.done = "6"
    lane.redelivery.plan("6")
    assert lanes.call_due(0.0) == 50.0
    fill(lanes)
    for position, due, wakes in (("3", 60.0, 0), ("4", 40.0, 1)):
        woken.clear()
        piece = lanes.take(1, 0)
        lane.redelivery.add(one_of(position, key=None, due=due))
        lanes.put_back(piece, 0)
        assert len(woken) == wakes
    lanes.call_due(50.0)
    due = lanes.take(1, 0)
    assert isinstance(due, Due)
    woken.clear()
    lanes.give_back(due)
    assert woken


def test_an_error_in_the_table_leaves_nothing_in_flight(monkeypatch):
    lanes, lane = loaded(View(0), one_of("5"))
    fill(lanes)
    piece = lanes.take(None, 0)
    monkeypatch.setattr(lane.redelivery, "plan", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        lanes.put_back(piece, 0)
    assert lanes.in_work() == 0


# ------------------------------------------------------------------ a worker


def worker_of(lanes, each, write, **handler):
    halted: list[BaseException] = []
    watchdog: Any = SimpleNamespace(activity=SimpleNamespace, may_work=lambda: True)
    rules: Any = SimpleNamespace(
        policy=POLICY,
        attempts=1,
        origin=lambda: ORIGIN,
        retries=SimpleNamespace(write=write),
        halt=halted.append,
    )
    return Worker(lanes, watchdog, rules, **(handler or {"each": each})), halted


def due_now(view, *found):
    """As `loaded`, with the position behind what is set aside."""
    lanes, lane = loaded(view, *found)
    lane.grant.done = "9"
    lane.redelivery.plan("9")
    lanes.call_due(0.0)
    return lanes, lane


def failing(_message):
    raise ValueError


def test_a_message_is_set_aside_only_while_its_partition_is_owned():
    """Asked when the record can be written, perhaps long after the message has failed."""
    view, may_write = View(0), []

    def write(_kind, _one, _epoch, may):
        may_write.append(may())
        view.lose(0)
        may_write.append(may())
        raise LogUnavailable("not owned any more")

    lanes, lane = loaded(view)
    fill(lanes)
    worker, halted = worker_of(lanes, failing, write)
    worker.turn(0)
    assert (may_write, lane.position, halted) == ([True, False], "0", [])


def test_what_is_set_aside_amid_batches_leaves_its_failure_to_no_other_message():
    """It has failed, and its key came to wait before it was tried again."""
    lanes, lane = loaded(View(0), one_of("5", key="k"))
    rows = Rows(Columns(0, range(9, 11), [0, 0], [b"k", b"l"], [b"v", b"v"], [None, None]))
    lanes.add(lane, "0", [Chunk(rows, "11")], "11", more=False)
    lane.failure = Failure("9", 1, ValueError())
    written = []
    worker, halted = worker_of(
        lanes,
        None,
        lambda _, one, *__: written.append((one.place.position, one.attempts)),
        handle=failing,
    )
    worker.turn(0)
    assert (written, lane.position, lane.failure, halted) == ([("9", 0)], "10", None, [])


def test_a_message_that_may_be_set_aside_already_is_set_aside_also_when_its_key_is_free():
    """Else the next owner would find the record, and handle the message once more."""
    handled, written = [], []

    def write(kind, one, *_):
        written.append((kind, one.place.position))
        if len(written) == 1:
            raise LogUnavailable("no answer, and the record is there")

    held = one_of("5", key="k")
    lanes, lane = loaded(View(0), held)
    rows = Rows(Columns(0, range(9, 11), [0, 0], [b"k", b"l"], [b"v", b"v"], [None, None]))
    lanes.add(lane, "0", [Chunk(rows, "11")], "11", more=False)
    worker, halted = worker_of(lanes, lambda message: handled.append(message.position), write)
    worker.turn(0)
    lane.redelivery.remove(held)
    for _ in range(2):
        lanes.call_due(inf)
        worker.turn(0)
    assert (handled, halted) == (["10", "9"], [])
    assert written == [("message", "9"), ("message", "9"), ("done", "9")]
    assert not lane.redelivery.holds_some


def test_a_failure_that_may_be_recorded_is_not_forgotten_when_the_lane_is_resumed():
    """Another message of the partition has come into quarantine, and out of it, meanwhile."""
    tried, written = [], []

    def each(message):
        tried.append(message.position)
        raise ValueError

    def write(_kind, one, *_):
        written.append((one.place.position, one.attempts))
        if len(written) == 1:
            raise LogUnavailable("no answer, and the record is there")

    lanes, lane = loaded(View(0))
    fill(lanes, most=1)
    worker, halted = worker_of(lanes, each, write)
    worker.turn(0)
    lanes.quarantine(lane)
    lanes.resume_lane(0)
    fill(lanes, most=1)
    worker.turn(0)
    assert (tried, written, halted) == (["0"], [("0", 1), ("0", 1)], [])


def test_a_retry_log_that_is_missing_now_ends_no_consumer():
    def missing(*_):
        raise LogNotFound("not now")

    lanes, lane = loaded(View(0))
    fill(lanes)
    worker, halted = worker_of(lanes, failing, missing)
    worker.turn(0)
    assert (lane.position, halted) == ("0", [])
    assert lane.not_before

    lanes, lane = due_now(View(0), one_of("5"))
    worker, halted = worker_of(lanes, lambda _: None, missing)
    worker.turn(0)
    assert (lane.redelivery.count, halted) == (1, [])
    assert lane.redelivery.next_due > 0


def test_nothing_more_is_tried_of_a_partition_that_is_lost():
    view, tried, written = View(0), [], []

    def lose(message):
        tried.append(message.position)
        view.lose(0)

    lanes, _ = due_now(view, one_of("5", key=None), one_of("6", key=None))
    worker, _ = worker_of(lanes, lose, lambda kind, *_: written.append(kind))
    worker.turn(0)
    # What was handled is said: the next owner need not repeat it.
    assert (tried, written) == (["5"], ["done"])


# ------------------------------------------------------------------ the retry queue


class Service:
    """Stands in for `Client`: the calls that it got."""

    url = "http://127.0.0.1"

    def __init__(self):
        self.calls: list[tuple[Any, ...]] = []
        self.logs: dict[str, str] = {}
        self.refuses: Exception | None = None

    def __call__(self, *_, **__):
        return nullcontext(self)

    def log_access(self, queue, access, refused=False):
        self.calls.append((queue, access, refused))
        if self.refuses is not None:
            raise self.refuses
        return SimpleNamespace(log="builtin:retries", access=None)

    def partitions(self, _queue):
        return []

    def queue(self, name):
        return SimpleNamespace(id=name, log=self.logs[name])


@pytest.fixture
def answers(monkeypatch):
    service = Service()
    monkeypatch.setattr(retry_queue, "Client", service)
    monkeypatch.setattr(poison, "Client", service)
    return service


@pytest.fixture
def retries(answers):
    return RetryQueue(POLICY, url=None, token=None)


def test_who_waits_to_write_waits_no_longer_than_who_writes(retries, monkeypatch):
    given = []
    retries._delivery = SimpleNamespace(
        deliver=lambda _, timeout_seconds: given.append(timeout_seconds)
    )
    now = [100.0]

    def may():
        now[0] += 4.0  # as if another one had written as long
        return True

    monkeypatch.setattr(retry_queue, "lease_time", lambda: now[0])
    retries.write("message", one_of(), 1, may)
    assert given == [retry_queue.WRITE_SECONDS - 4.0]
    with pytest.raises(LogUnavailable, match="not owned"):
        retries.write("message", one_of(), 1, lambda: False)
    monkeypatch.setattr(retry_queue, "WRITE_SECONDS", 0.01)
    with retries._lock, pytest.raises(LogUnavailable, match="took no record"):
        retries.write("message", one_of(), 1)
    assert len(given) == 1


def test_a_sweep_keeps_no_values_and_is_broken_off(retries, monkeypatch):
    some = [row(told("message", one_of(), 1))]

    def rows(_log, _positions, _bounds):
        yield some
        yield some

    monkeypatch.setattr(retry_queue, "rows", rows)
    log = SimpleNamespace(bounds=lambda _: "bounds", close=lambda: None)
    monkeypatch.setattr(opening, "open_log", lambda *_, **__: log)
    stops = iter([False, True])
    assert retries.read(stop=lambda: next(stops)) is None
    records, bounds = retries.read(lambda _: True)
    assert bounds == "bounds"
    assert [one.value for one in records.set_aside(0.0, 0.0)] == [b"value"]


def test_credentials_that_the_log_refuses_are_replaced(retries, answers, monkeypatch):
    def refuse(_numbers):
        raise LogAccessRefused("expired")

    log = SimpleNamespace(bounds=refuse, close=lambda: None)
    monkeypatch.setattr(opening, "open_log", lambda *_, **__: log)
    for _ in range(2):
        with pytest.raises(LogAccessRefused):
            retries.read()
    log.bounds = lambda _: None
    for _ in range(2):
        retries.read()
    assert [refused for *_, refused in answers.calls] == [False, True, True, False]


def test_the_keeper_reads_again_when_the_log_is_missing_or_trimmed(monkeypatch):
    monkeypatch.setattr(retry_queue, "AGAIN_SECONDS", 0.0)
    lanes = make(View(0), wake_keeper=lambda: None)
    errors = [LogNotFound("not now"), PositionTrimmed(0, "1", "2")]

    def read(_wanted):
        if errors:
            raise errors.pop()
        lanes.close()
        waking.wake()
        return Records("retries", lambda _: True), None

    flow = SimpleNamespace(
        open=lambda wait_seconds: None,
        check=lambda: None,
        close=lambda: None,
        partitions={},
        draining=False,
    )
    queue: Any = SimpleNamespace(flow=lambda **_: flow, read=read, close=lambda: None)
    waking = Waking()
    keeper = Keeper(
        lambda: ORIGIN, queue, lanes, waking, compare, client_name="one", lease_seconds=10.0
    )
    keeper.run()
    (lane,) = lanes.snapshot()
    assert not lane.loading
    assert not errors


def test_publishing_to_the_retry_queue_is_asked_for_at_the_start(answers):
    answers.logs = {"flights": "builtin:flights", "retries": "builtin:retries"}
    POLICY.check("flights", None, None)
    assert answers.calls == [("retries", "publish", False)]
    answers.refuses = Forbidden("no")
    with pytest.raises(Forbidden):
        POLICY.check("flights", None, None)


def test_delays_are_no_text():
    with pytest.raises(TypeError, match="after_seconds must be a list"):
        Retry("retries", after_seconds="60")  # type: ignore[arg-type]
