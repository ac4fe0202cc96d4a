"""The publisher against a real log, and a service that is available, away, or behind the log."""

import itertools
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any, cast

import psycopg
import pytest

from counterpoise.client import Client
from counterpoise.consumer.message import Ownership, messages_of
from counterpoise.errors import (
    NotCounterpoise,
    QueueNotFound,
    ServiceUnavailable,
)
from counterpoise.flow.view import Owned
from counterpoise.keys import partition_of
from counterpoise.logs import AppendResult, InvalidMessage, Log, LogUnavailable, Message, open_log
from counterpoise.publisher import BufferFull, Publisher, PublisherClosed, PublisherIdInUse
from counterpoise.publisher.buffer import Batch
from counterpoise.publisher.delivery import Delivery
from counterpoise.wire import LogView
from tests.counterpoise.log_access import service
from tests.databases import end_other_sessions
from tests.log_support import append, log, log_url, texts, until, with_logs

__all__ = ["log", "log_url", "service"]


@pytest.fixture
def publisher(service):
    with Publisher("flights", url=service.url, timeout_seconds=60) as publisher:
        yield publisher


def resize(url, count):
    with_logs(url, lambda logs: logs.set_partition_count("builtin:flights", count))


def publish_numbers(publisher, count):
    for number in range(count):
        publisher.publish(str(number).encode(), key="k")


def everything(log, partitions=8):
    return [text for partition in range(partitions) for text in texts(log, partition)]


# ------------------------------------------------------------------ normal operation


def test_messages_go_to_the_partition_of_their_key_in_order(publisher, log):
    for number in range(3000):
        publisher.publish(f"k{number % 7}:{number}".encode(), key=f"k{number % 7}")
    publisher.flush()
    for partition in range(4):
        seen = texts(log, partition)
        for key in (f"k{n}" for n in range(7)):
            own = [int(text.split(":")[1]) for text in seen if text.startswith(f"{key}:")]
            if partition_of(key, 4) == partition:
                assert own == list(range(int(key[1:]), 3000, 7))
            else:
                assert own == []


def test_a_message_without_a_value_is_not_one_with_an_empty_value(publisher, log):
    owned = Ownership(Owned(0, 1, "owned", None, "initial"), dict)
    publisher.publish(None, key="k", headers={"n": "1"})
    publisher.publish(b"", key="k")
    publisher.flush()
    number = partition_of("k", 4)
    rows = next(log.rows(number, "0", None, max_messages=9))
    first, second = messages_of(rows, owned)
    assert (first.value, first.is_tombstone) == (b"", True)
    assert first.headers == {"n": "1", "counterpoise-tombstone": "true"}
    assert (second.value, second.is_tombstone) == (b"", False)


def test_keyless_messages_spread_over_the_partitions(service, log):
    with Publisher("flights", url=service.url, batch_messages=10) as publisher:
        for number in range(400):
            publisher.publish(str(number).encode())
    assert all(len(texts(log, partition)) == 100 for partition in range(4))


def test_a_message_alone_is_sent_after_the_linger(publisher, log):
    publisher.publish(b"a", key="k")
    until(lambda: everything(log) == ["a"])


def test_a_flush_does_not_wait_for_the_linger(service, log):
    with Publisher("flights", url=service.url, linger_seconds=3600) as publisher:
        publisher.publish(b"a")
        publisher.flush()
        assert everything(log) == ["a"]
        publisher.publish(b"b")
    assert sorted(everything(log)) == ["a", "b"]


def test_a_client_of_one_s_own_stays_open(service, log):
    with Client(service.url) as client:
        for value in (b"a", b"b"):
            with Publisher("flights", client=client) as publisher:
                publisher.publish(value)
    assert sorted(everything(log)) == ["a", "b"]


def test_closing_without_having_published_connects_to_nothing(service):
    Publisher("flights", url=service.url).close()
    assert service.asked == 0


def test_a_closed_publisher_refuses(service):
    publisher = Publisher("flights", url=service.url)
    publisher.close()
    publisher.close()
    with pytest.raises(PublisherClosed, match="make another Publisher"):
        publisher.publish(b"a")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_cannot_use_it_nor_end_it(publisher, log):
    publisher.publish(b"a")
    publisher.flush()
    child = os.fork()
    if child == 0:
        try:
            publisher.close()
            publisher.publish(b"b")
        except PublisherClosed as error:
            os._exit(0 if "forked process" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    publisher.publish(b"c")
    publisher.flush()
    assert sorted(everything(log)) == ["a", "c"]


def test_a_message_that_no_log_can_hold_is_refused_at_once(publisher, log):
    with pytest.raises(InvalidMessage):
        publisher.publish(b"a", key="a\0b")
    publisher.publish(b"b")
    publisher.flush()
    assert everything(log) == ["b"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("text",), "value must be bytes, not str"),
        ((b"a", b"key"), "key must be a str, not bytes"),
        ((b"a", "key", [("name", "text")]), "headers must be a mapping, not list"),
        ((b"a", "key", "name"), "headers must be a mapping, not str"),
        ((b"a", "key", 0), "headers must be a mapping, not int"),
        ((b"a", "key", {"name": 5}), "header 'name' must be a str, not int"),
        ((b"a", "key", None, "today"), "published_at must be a datetime, not str"),
    ],
)
def test_what_is_no_message_is_refused_at_once(wrong, said):
    with Publisher("flights", url="http://service.invalid") as publisher:
        with pytest.raises(InvalidMessage, match=said):
            publisher.publish(*wrong)
        assert publisher.unconfirmed == 0


def test_many_threads_may_publish(publisher, log):
    def publish(name):
        for number in range(200):
            publisher.publish(f"{name}-{number}".encode(), key=str(name))

    threads = [threading.Thread(target=publish, args=[name]) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    publisher.flush()
    assert sorted(everything(log)) == sorted(f"{n}-{m}" for n in range(6) for m in range(200))


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_messages": 0},
        {"linger_seconds": -1},
        {"timeout_seconds": 0},
        {"publisher_id": ""},
        {"publisher_id": "x" * 201},
        {"connections": 0},
        {"connections": 2, "publisher_id": "import"},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="must"):
        Publisher("flights", **wrong)


# ------------------------------------------------------------------ resize


@pytest.mark.long
def test_a_resize_is_followed_without_loss_or_repetition(publisher, service, log, log_url):
    sent = []
    for count in (4, 8, 2, 6):
        resize(log_url, count)
        for number in range(500):
            sent.append(f"{count}-{number}")
            publisher.publish(sent[-1].encode(), key=f"k{number}")
        publisher.flush()
    # The service said 4 all the while: the log's count is decisive.
    assert Counter(everything(log)) == Counter(sent)
    assert all(
        text in texts(log, partition_of(f"k{text.split('-')[1]}", 6))
        for text in sent
        if text.startswith("6-")
    )


# ------------------------------------------------------------------ away


def test_a_service_that_is_away_does_not_stop_a_publisher_that_knows_the_log(
    publisher, service, log
):
    publisher.publish(b"a")
    publisher.flush()
    service.stop()
    publisher.publish(b"b")
    publisher.flush()
    assert sorted(everything(log)) == ["a", "b"]
    service.start()


def test_a_proxy_in_the_service_s_place_ends_no_publisher_that_knows_the_log():
    view = LogView("builtin:flights", 1, None, "flights")
    appended: list[Any] = []

    def ask(_refused):
        if asked:
            raise NotCounterpoise("default backend - 404")
        asked.append(view)
        return view

    class Appending:
        def append(self, batch):
            if not appended:
                appended.append("cut")
                raise LogUnavailable("cut")
            appended.extend(message.value for message in batch.messages)
            return AppendResult(1, 0)

    def deliver():
        delivery = Delivery(
            ask,
            lambda *_, **__: cast(Log, Appending()),
            log_url=None,
            timeout_seconds=9,
            pause=lambda _: None,
        )
        delivery.deliver(Batch([Message(b"a")], [0], publisher="p", first_sequence=0))

    asked: list[LogView] = []
    deliver()
    assert appended == ["cut", b"a"]
    with pytest.raises(NotCounterpoise):
        deliver()


def test_a_publisher_that_starts_before_the_service_waits_for_it(service, log):
    service.stop()
    with Publisher("flights", url=service.url, timeout_seconds=60) as publisher:
        failed = threading.Event()
        pause = publisher._delivery._pause

        def fail(seconds):
            failed.set()
            pause(seconds)

        publisher._delivery._pause = fail
        publisher.publish(b"a")
        assert failed.wait(240)
        service.start()
        publisher.flush()
    assert everything(log) == ["a"]


def test_a_log_that_moved_is_found_again(publisher, service, log, log_url):
    """The service was restarted and its log is at another address now."""
    service.log_url = "postgresql://u:p@127.0.0.1:1/d"
    publisher.publish(b"a")
    until(lambda: service.asked >= 2)
    service.log_url = log_url
    publisher.flush()
    assert everything(log) == ["a"]


def test_a_queue_that_does_not_exist_is_said_to_be_missing(service, log):
    service.status = 404
    publisher = Publisher("flights", url=service.url)
    publisher.publish(b"a")
    with pytest.raises(QueueNotFound):
        publisher.flush()
    service.status = 200
    until(lambda: _flushed(publisher))
    assert everything(log) == ["a"]
    publisher.close()


@pytest.mark.long
def test_connections_that_are_killed_lose_and_repeat_nothing(service, log, log_url):
    """Repeatedly during appends, so that some commit without an answer."""
    stop = threading.Event()
    kills = 0

    def kill():
        # More and more rarely, so that it ends however slow the machine is.
        nonlocal kills
        while not stop.wait(0.02 + 0.002 * kills):
            end_other_sessions(log_url)
            kills += 1

    killer = threading.Thread(target=kill)
    with Publisher(
        "flights", url=service.url, batch_messages=50, linger_seconds=0.001, timeout_seconds=60
    ) as publisher:
        killer.start()
        for number in range(5000):
            publisher.publish(str(number).encode(), key="k")
        enough = kills + 15
        until(lambda: kills >= enough)
        stop.set()
        killer.join()
    assert texts(log, partition_of("k", 4)) == [str(number) for number in range(5000)]


class Forgetful:
    """A log whose answers get lost: every second append takes effect and then fails."""

    def __init__(self, log):
        self.log = log
        self.calls = itertools.count()

    def append(self, batch):
        result = self.log.append(batch)
        if next(self.calls) % 2 == 0:
            raise LogUnavailable("the answer was lost")
        return result

    def __getattr__(self, name):
        return getattr(self.log, name)


def test_an_append_whose_answer_was_lost_is_repeated_without_a_trace(service, log):
    def forgetful(name, access, *, timeout_seconds):
        return Forgetful(open_log(name, access, timeout_seconds=timeout_seconds))

    with Publisher("flights", url=service.url, batch_messages=10, open_log=forgetful) as publisher:
        for number in range(100):
            publisher.publish(str(number).encode(), key="k")
    assert texts(log, partition_of("k", 4)) == [str(number) for number in range(100)]


# ------------------------------------------------------------------ giving up, and going on


def test_a_background_error_is_raised_by_the_next_call_and_then_retried(service, log):
    service.stop()
    publisher = Publisher("flights", url=service.url, timeout_seconds=0.3, linger_seconds=0)
    publisher.publish(b"a", key="k")
    until(lambda: publisher._sending.error is not None)
    with pytest.raises(ServiceUnavailable):
        publisher.publish(b"not taken", key="k")
    service.start()
    # It may have failed once more before that.
    until(lambda: _flushed(publisher))
    publisher.publish(b"b", key="k")
    until(lambda: _flushed(publisher))
    publisher.close()
    assert everything(log) == ["a", "b"]


def test_close_says_how_many_messages_are_not_known_to_be_in_the_log(service):
    service.stop()
    # It does not connect before it is closed.
    publisher = Publisher("flights", url=service.url, timeout_seconds=0.3, linger_seconds=3600)
    publisher.publish(b"a")
    publisher.publish(b"b")
    assert publisher.unconfirmed == 2
    with pytest.raises(ServiceUnavailable) as failure:
        publisher.close()
    assert "2 messages" in failure.value.__notes__[0]
    publisher.close()
    assert publisher.unconfirmed == 2
    service.start()


def test_appended_messages_are_confirmed(publisher):
    publisher.publish(b"a")
    publisher.flush()
    assert publisher.unconfirmed == 0


def test_an_error_of_the_program_is_not_hidden_by_one_of_closing(service):
    service.stop()

    def fail():
        with Publisher(
            "flights", url=service.url, timeout_seconds=0.3, linger_seconds=3600
        ) as publisher:
            publisher.publish(b"a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as failure:
        fail()
    closing, unconfirmed = failure.value.__notes__
    assert "closing the publisher failed" in closing
    assert unconfirmed == "1 messages are not known to be in the log"
    service.start()


def test_a_full_buffer_blocks_and_then_gives_up(service, log, log_url):
    with Publisher(
        "flights",
        url=service.url,
        batch_messages=5,
        buffer_messages=5,
        linger_seconds=0,
        timeout_seconds=60,
    ) as publisher:
        publisher.publish(b"first")
        publisher.flush()
        publisher._timeout_seconds = 1
        with psycopg.connect(log_url) as holding:
            holding.execute("LOCK TABLE counterpoise_log.messages IN ACCESS EXCLUSIVE MODE")
            before = time.monotonic()
            with pytest.raises((BufferFull, LogUnavailable)):
                publish_numbers(publisher, 100)
            assert time.monotonic() - before > 0.5
        taken = publisher.next_sequence - 1
        assert 5 <= taken <= 10
        until(lambda: _flushed(publisher))
    assert texts(log, partition_of("k", 4))[-taken:] == [str(number) for number in range(taken)]


def _flushed(publisher):
    try:
        publisher.flush()
    except (LogUnavailable, QueueNotFound, ServiceUnavailable):
        return False
    return True


# ------------------------------------------------------------------ an id of one's own


def test_a_publisher_with_an_id_goes_on_where_the_last_one_stopped(service, log):
    for _ in range(3):
        with Publisher("flights", url=service.url, publisher_id="import") as publisher:
            start = publisher.next_sequence
            for number in range(start, start + 10):
                publisher.publish(str(number).encode(), key="k")
            assert publisher.next_sequence == start + 10
    assert texts(log, partition_of("k", 4)) == [str(number) for number in range(30)]


def test_an_id_without_asking_first_also_goes_on(service, log):
    for value in (b"a", b"b"):
        with Publisher("flights", url=service.url, publisher_id="import") as publisher:
            publisher.publish(value, key="k")
    assert texts(log, partition_of("k", 4)) == ["a", "b"]


def test_two_publishers_with_one_id_are_told_instead_of_losing_messages(service, log):
    publisher = Publisher("flights", url=service.url, publisher_id="import")
    assert publisher.next_sequence == 0
    append(log, "from elsewhere", publisher="import")
    publisher.publish(b"mine")
    with pytest.raises(PublisherIdInUse):
        publisher.flush()
    with pytest.raises(PublisherIdInUse):
        publisher.close()


# ------------------------------------------------------------------ access


def test_a_url_for_the_log_takes_the_place_of_the_service_s(service, log, log_url, monkeypatch):
    service.log_url = "postgresql://u:p@127.0.0.1:1/d"
    with Publisher("flights", url=service.url, log_url=log_url) as publisher:
        publisher.publish(b"a")
    monkeypatch.setenv("COUNTERPOISE_LOG_URL", log_url)
    with Publisher("flights", url=service.url) as publisher:
        publisher.publish(b"b")
    assert sorted(everything(log)) == ["a", "b"]


# ------------------------------------------------------------------ without close

UNCLOSED = """
import sys
from counterpoise.publisher import Publisher
url, timeout = sys.argv[1:]
publisher = Publisher("flights", url=url, linger_seconds=3600, timeout_seconds=float(timeout))
publisher.publish(b"last", key="k")
"""


def unclosed(url, timeout_seconds):
    """What a program writes to stderr that publishes one message and ends without `close`."""
    command = [sys.executable, "-c", UNCLOSED, url, str(timeout_seconds)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.long
def test_a_program_that_ends_without_close_delivers_its_messages(service, log):
    assert unclosed(service.url, 60) == ""
    assert everything(log) == ["last"]


@pytest.mark.long
def test_what_cannot_be_delivered_at_the_end_is_counted():
    said = unclosed("http://127.0.0.1:9", 0.3)
    assert "a publisher of flights was not closed: 1 of its messages" in said
    assert "no service answers" in said
