"""Helpers send batches at the same time under load; what they cannot send, the sender sends."""

import itertools
import threading
from collections import defaultdict
from datetime import UTC, datetime

import pytest

from counterpoise.client import Client
from counterpoise.keys import partition_of
from counterpoise.logs import InvalidMessage, LogError, LogUnavailable
from counterpoise.logs.memory import MemoryLog, MemoryLogs
from counterpoise.publisher import Publisher, sending
from counterpoise.publisher.delivery import Delivery
from counterpoise.wire import LogView
from tests.counterpoise.log_access import service
from tests.databases import end_other_sessions
from tests.interrupting import interrupted_when
from tests.log_support import log, log_url, texts, until, with_logs

__all__ = ["log", "log_url", "service"]

PARTITIONS = 4
SECONDS = 60


class Service(Client):
    """A client whose service says that the queue has PARTITIONS partitions."""

    def __init__(self):
        super().__init__("http://127.0.0.1:1")

    def log_access(self, *_, **__):
        return LogView("memory:flights", PARTITIONS, None, None)


class Stage:
    """A log in memory that takes several appends at once, and holds or fails them as told."""

    def __init__(self):
        self.logs = MemoryLogs(lambda: datetime.now(UTC).timestamp())
        self.logs.ensure("flights", PARTITIONS)
        self.changed = threading.Condition()
        self.held, self.waiting, self.opened, self.closed = True, [], 0, 0
        self.passes = 0
        self.trouble = None
        self.log = MemoryLog(self.logs, "flights")

    def open(self, name, access, *, timeout_seconds):
        with self.changed:
            self.opened += 1
        return StagedLog(self, "flights")

    def let_go(self):
        with self.changed:
            self.held = False
            self.changed.notify_all()

    def let_one_go(self):
        with self.changed:
            self.passes += 1
            self.changed.notify_all()

    def may_go(self):
        if self.held and self.passes:
            self.passes -= 1
            return True
        return not self.held

    def await_waiting(self, count):
        """Until so many appends wait at once."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.waiting) >= count, SECONDS)

    def texts(self, partition):
        return texts(self.log, partition)


class StagedLog(MemoryLog):
    appends_in_parallel = True

    def __init__(self, stage, name):
        super().__init__(stage.logs, name)
        self.stage = stage

    def append(self, batch):
        with self.stage.changed:
            self.stage.waiting.append(batch)
            self.stage.changed.notify_all()
            assert self.stage.changed.wait_for(self.stage.may_go, SECONDS)
            self.stage.waiting.remove(batch)
            trouble = self.stage.trouble
        if trouble is not None:
            return trouble(super().append, batch)
        return super().append(batch)

    def close(self):
        with self.stage.changed:
            self.stage.closed += 1


@pytest.fixture
def stage():
    return Stage()


@pytest.fixture
def publisher(stage):
    """One whose helper starts with the second batch that leaves a full one waiting."""
    with Publisher(
        "flights", client=Service(), open_log=stage.open, batch_messages=10, timeout_seconds=SECONDS
    ) as publisher:
        yield publisher
        stage.trouble = None
        stage.let_go()


def publish(publisher, count, first=0):
    for number in range(first, first + count):
        publisher.publish(str(number).encode(), f"k{number % 7}")


def under_load(stage, publisher, monkeypatch):
    """A helper has started, and it and the sender have a batch in an append that is held."""
    monkeypatch.setattr(sending, "BATCHES_BEFORE_HELP", 1)
    # The first batch makes the log known.
    stage.held = False
    publish(publisher, 1)
    publisher.flush()
    stage.held = True
    publish(publisher, 99, first=1)
    # The sender sees that full batches wait when it takes its next one.
    stage.await_waiting(1)
    stage.let_one_go()
    stage.await_waiting(2)


def check(stage, count, without=()):
    """Each message is in the log once, and each key's in order."""
    found = defaultdict(list)
    for partition in range(PARTITIONS):
        for text in stage.texts(partition):
            key = f"k{int(text) % 7}"
            assert partition_of(key, PARTITIONS) == partition
            found[key].append(int(text))
    assert {key: sorted(numbers) for key, numbers in found.items()} == found
    there = sorted(number for numbers in found.values() for number in numbers)
    assert there == [one for one in range(count) if one not in without]


def test_under_load_two_batches_of_different_partitions_are_on_their_way(
    stage, publisher, monkeypatch
):
    under_load(stage, publisher, monkeypatch)
    first, second = stage.waiting
    assert {*first.partitions}.isdisjoint(second.partitions)
    assert first.publisher != second.publisher
    stage.let_go()
    publisher.flush()
    check(stage, 100)
    assert publisher.unconfirmed == 0


def test_without_load_there_is_one_connection(stage, publisher):
    stage.let_go()
    for first in range(0, 200, 20):
        publish(publisher, 20, first)
        publisher.flush()
    check(stage, 200)
    assert stage.opened == 1


@pytest.mark.parametrize("settings", [{"connections": 1}, {"publisher_id": "import"}])
def test_one_connection_if_told_so_or_with_an_id_of_one_s_own(stage, monkeypatch, settings):
    monkeypatch.setattr(sending, "BATCHES_BEFORE_HELP", 1)
    stage.let_go()
    with Publisher(
        "flights", client=Service(), open_log=stage.open, batch_messages=10, **settings
    ) as publisher:
        publish(publisher, 500)
    check(stage, 500)
    assert stage.opened == 1


def test_one_connection_to_a_log_that_takes_one_batch_at_a_time(stage, publisher, monkeypatch):
    monkeypatch.setattr(sending, "BATCHES_BEFORE_HELP", 1)
    monkeypatch.setattr(StagedLog, "appends_in_parallel", False)
    stage.let_go()
    publish(publisher, 500)
    publisher.flush()
    check(stage, 500)
    assert stage.opened == 1


@pytest.mark.long
@pytest.mark.parametrize("takes_effect", [False, True])
@pytest.mark.parametrize("pause_seconds", [3600.0, 0.0])
def test_what_a_helper_cannot_send_the_sender_sends(
    stage, publisher, monkeypatch, takes_effect, pause_seconds
):
    """Also if the helper's append took effect, and only its answer was lost."""
    monkeypatch.setattr(sending, "HELPER_PAUSE_SECONDS", pause_seconds)
    monkeypatch.setattr(sending, "HELPER_IDLE_SECONDS", 0.01)

    def fail(append, batch):
        if threading.current_thread() is not sender:
            if takes_effect:
                append(batch)
            raise LogUnavailable("too many connections for role")
        return append(batch)

    under_load(stage, publisher, monkeypatch)
    (sender,) = [
        one for one in threading.enumerate() if one.name == "counterpoise-publisher-flights"
    ]
    stage.trouble = fail
    stage.let_go()
    publish(publisher, 300, first=100)
    publisher.flush()
    check(stage, 400)
    until(lambda: stage.closed == stage.opened - 1)
    # A pause keeps the next helper from meeting the same.
    assert (stage.opened > 2) == (pause_seconds == 0)


@pytest.mark.parametrize("lacking", ["thread", "connection"])
def test_what_a_helper_lacks_does_not_harm(stage, publisher, monkeypatch, lacking):
    def lack(*_, **__):
        lacks.append(True)
        raise RuntimeError("there is no other one")

    lacks: list[bool] = []
    monkeypatch.setattr(sending, "BATCHES_BEFORE_HELP", 1)
    stage.let_go()
    publish(publisher, 1)
    publisher.flush()
    if lacking == "thread":
        monkeypatch.setattr(threading.Thread, "start", lack)
    else:
        monkeypatch.setattr(Delivery, "another", lack)
    publish(publisher, 500, first=1)
    publisher.flush()
    # The helper may still be about to end.
    until(lambda: lacks and publisher._buffer.stripes == 1)
    monkeypatch.undo()
    check(stage, 501)
    assert len(lacks) == 1
    assert stage.opened == 1
    assert publisher._buffer.stripes == 1


def test_an_error_that_a_helper_meets_is_the_sender_s_to_report(stage, publisher, monkeypatch):
    def refuse(append, batch):
        if any(message.value == b"99" for message in batch.messages):
            raise LogError("not this one")
        return append(batch)

    under_load(stage, publisher, monkeypatch)
    stage.trouble = refuse
    stage.let_go()
    with pytest.raises(LogError, match="not this one"):
        publisher.flush()
    assert publisher.unconfirmed >= 1
    stage.trouble = None
    publisher.flush()
    check(stage, 100)


def never(*values):
    """A trouble: the log can never hold these messages."""

    def refuse(append, batch):
        if found := [one.value for one in batch.messages if int(one.value) in values]:
            raise InvalidMessage(f"not {found[0].decode()}")
        return append(batch)

    return refuse


@pytest.mark.parametrize("loaded", [False, True], ids=["sender", "with a helper"])
def test_a_message_that_the_log_can_never_hold_holds_up_no_other(
    stage, publisher, monkeypatch, loaded
):
    values = (60, 77, 78, 99)
    if loaded:
        under_load(stage, publisher, monkeypatch)
    else:
        publish(publisher, 100)
    stage.trouble = never(*values)
    stage.let_go()
    told = {}
    for _ in values:
        with pytest.raises(InvalidMessage) as refusal:
            publisher.flush()
        told[str(refusal.value)] = refusal.value.__notes__[0]
    publisher.flush()
    assert told == {
        f"not {value}": f"it is message {value + 1} of this publisher to flights, which goes on "
        "without it"
        for value in values
    }
    assert (publisher.unconfirmed, publisher.refused) == (0, 4)
    publish(publisher, 1, first=100)
    publisher.flush()
    check(stage, 101, without=values)


def test_who_closes_is_told_of_messages_that_the_log_can_never_hold(stage):
    publisher = Publisher("flights", client=Service(), open_log=stage.open, batch_messages=10)
    publish(publisher, 20)
    stage.trouble = never(3, 19)
    stage.let_go()
    with pytest.raises(InvalidMessage, match="not 3") as refusal:
        publisher.close()
    assert refusal.value.__notes__[1:] == ["it has refused 1 more"]
    check(stage, 20, without=(3, 19))


def test_so_is_the_log_of_a_program_that_ends_without(stage, caplog):
    publisher = Publisher("flights", client=Service(), open_log=stage.open)
    publish(publisher, 3)
    stage.trouble = never(1)
    stage.let_go()
    publisher._sending.end_with_program()
    assert "was not closed: not 1; it is message 2 of this publisher" in caplog.text
    check(stage, 3, without=(1,))
    publisher._sending.end()


def test_what_runs_later_at_the_exit_may_still_publish(stage, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    publisher = Publisher("flights", client=Service(), open_log=stage.open)
    stage.let_go()
    publish(publisher, 1)
    publisher._sending.end_with_program()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    publish(publisher, 1, first=1)
    publisher.close()
    check(stage, 2)


def test_a_close_that_was_interrupted_is_finished_by_another_or_at_the_exit(stage):
    def fail(append, batch):
        raise LogError("nothing")

    publisher = Publisher("flights", client=Service(), open_log=stage.open)
    publish(publisher, 3)
    stage.await_waiting(1)
    with (
        pytest.raises(KeyboardInterrupt),
        interrupted_when(lambda: publisher._sending._closing),
    ):
        publisher.close()
    assert publisher._sending in sending._open
    stage.trouble = fail
    threading.Timer(0.05, stage.let_go).start()
    with pytest.raises(LogError, match="nothing") as failure:
        publisher.close()
    assert failure.value.__notes__ == ["3 messages are not known to be in the log"]
    assert publisher._sending not in sending._open
    publisher.close()
    assert stage.closed == stage.opened == 1


def test_a_message_is_not_taken_if_no_thread_can_be_had(stage, publisher, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    stage.let_go()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            publish(publisher, 1)
    assert publisher.unconfirmed == 0
    publish(publisher, 1)
    publisher.flush()
    check(stage, 1)


def test_closing_amid_load_sends_everything(stage, monkeypatch):
    monkeypatch.setattr(sending, "HELPER_IDLE_SECONDS", 10 * SECONDS)
    with Publisher(
        "flights", client=Service(), open_log=stage.open, batch_messages=10
    ) as publisher:
        under_load(stage, publisher, monkeypatch)
        threading.Timer(0.05, stage.let_go).start()
    check(stage, 100)
    assert stage.closed == stage.opened == 2


def test_closing_ends_although_the_sender_has_failed(stage, monkeypatch):
    def fail(append, batch):
        raise LogError("nothing")

    def close():
        with pytest.raises(LogError, match="nothing") as failure:
            publisher.close()
        notes.extend(failure.value.__notes__)

    notes: list[str] = []
    monkeypatch.setattr(sending, "HELPER_IDLE_SECONDS", 10 * SECONDS)
    publisher = Publisher("flights", client=Service(), open_log=stage.open, batch_messages=10)
    under_load(stage, publisher, monkeypatch)
    stage.trouble = fail
    stage.let_go()
    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(SECONDS)
    assert notes == ["89 messages are not known to be in the log"]
    assert stage.closed == stage.opened == 2


def test_a_helper_without_work_ends(stage, publisher, monkeypatch):
    monkeypatch.setattr(sending, "HELPER_IDLE_SECONDS", 0.01)
    under_load(stage, publisher, monkeypatch)
    stage.let_go()
    publisher.flush()
    until(lambda: stage.closed == 1 and publisher._buffer.stripes == 1)
    check(stage, 100)
    stage.held = True
    publish(publisher, 100, first=100)
    stage.await_waiting(1)
    stage.let_one_go()
    stage.await_waiting(2)
    stage.let_go()
    publisher.flush()
    check(stage, 200)


@pytest.mark.long
def test_a_resize_amid_load_keeps_each_key_in_order(service, log, log_url):
    """Against the real log, with connections that are killed as well."""
    stop = threading.Event()
    counts = [8, 3, 6, 5, 16]

    def disturb():
        # More and more rarely, so that it ends however slow the machine is.
        for times in itertools.count():
            if stop.wait(0.1 + 0.01 * times):
                break
            counts.append(counts.pop(0))
            with_logs(log_url, lambda logs: logs.set_partition_count("builtin:flights", counts[0]))
            end_other_sessions(log_url)

    disturbing = threading.Thread(target=disturb)
    with Publisher(
        "flights", url=service.url, batch_messages=20, timeout_seconds=SECONDS, connections=3
    ) as publisher:
        disturbing.start()
        publish(publisher, 4_000)
        publisher.flush()
        stop.set()
        disturbing.join()
    everything: list[int] = []
    for partition in range(16):
        found = defaultdict(list)
        for text in texts(log, partition):
            found[f"k{int(text) % 7}"].append(int(text))
        assert {key: sorted(numbers) for key, numbers in found.items()} == found
        everything += itertools.chain(*found.values())
    assert sorted(everything) == [*range(4_000)]
