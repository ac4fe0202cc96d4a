"""Questions about a topic while its partitions change their leaders, and while brokers are lost."""

import time
from concurrent.futures import Future
from math import inf
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from counterpoise.logs import LogAccessRefused, LogNotFound, LogUnavailable
from counterpoise.logs.kafka.access import Failures, parse_access
from counterpoise.logs.kafka.answers import Attempt, Questions
from counterpoise.logs.kafka.cluster import Awaited, AwaitedBounds, Shape, Topic


class Moving:
    """An admin client whose brokers refuse the first questions about offsets."""

    def __init__(self, error, refusals):
        self.error, self.refusals = error, refusals

    def list_offsets(self, wanted, **_):
        return {place: self.answer() for place in wanted}

    def describe_topics(self, topics, **_):
        return {"orders": self.answer()}

    def answer(self):
        future: Future[SimpleNamespace] = Future()
        if self.refusals > 0:
            self.refusals -= 1
            future.set_exception(KafkaException(KafkaError(self.error)))
        else:
            future.set_result(SimpleNamespace(offset=7, **vars(described(2))))
        return future

    def poll(self, _seconds):
        pass


def topic(error, refusals):
    admin = Moving(error, refusals)
    return asked_through([admin])


def asked_through(admins):
    """The topic, asked through the first of these clients until that is replaced."""
    trouble = Failures(parse_access("kafka://h/orders", None), "orders")
    return Topic("orders", Questions(lambda: admins[0], admins.remove, trouble))


@pytest.mark.parametrize(
    "error", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE]
)
def test_a_question_is_repeated_while_a_leader_changes(error):
    assert topic(error, 3).bounds([0, 1], float("inf")) == ({0: 7, 1: 7}, {0: 7, 1: 7})
    assert topic(error, 3).offsets_at([0], 0, float("inf")) == {0: 7}


def test_a_partition_without_a_leader_is_an_error_at_the_deadline():
    with pytest.raises(LogUnavailable, match="Leader not available"):
        topic(KafkaError.LEADER_NOT_AVAILABLE, 99).bounds([0], 0.0)


def test_other_errors_are_not_repeated():
    with pytest.raises(LogUnavailable):
        topic(KafkaError.NOT_ENOUGH_REPLICAS, 1).bounds([0], float("inf"))


class Misled:
    """An admin client that waits for a lost broker, and says so in one of librdkafka's ways."""

    def __init__(self, error):
        self.error = error

    def list_offsets(self, wanted, **_):
        return {place: self.answer() for place in wanted}

    def describe_topics(self, topics, **_):
        return {"orders": self.answer()}

    def answer(self):
        future: Future[SimpleNamespace] = Future()
        if self.error is None:
            future.set_result(SimpleNamespace(offset=-1001, partitions=[], topic_id="id"))
        else:
            future.set_exception(KafkaException(KafkaError(self.error)))
        return future

    def poll(self, _seconds):
        pass


@pytest.mark.parametrize(
    "error", [KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._TIMED_OUT_QUEUE]
)
def test_a_client_that_waits_for_a_lost_broker_is_replaced(error):
    clients = [Misled(error), Misled(error), Moving(error, 0), Moving(error, 0)]
    orders = asked_through(clients)
    assert orders.shape(float("inf")).partition_count == 2
    assert len(clients) == 2
    assert orders.bounds([0, 1], float("inf")) == ({0: 7, 1: 7}, {0: 7, 1: 7})
    assert len(clients) == 2


def test_a_missing_offset_is_asked_for_through_another_client():
    clients = [Misled(None), Moving(None, 0)]
    assert asked_through(clients).offsets_at([0], 0, float("inf")) == {0: 7}
    assert len(clients) == 1


def test_a_client_whose_access_is_refused_is_kept():
    clients = [Misled(KafkaError.TOPIC_AUTHORIZATION_FAILED), Moving(None, 0)]
    with pytest.raises(LogAccessRefused):
        asked_through(clients).shape(float("inf"))
    assert len(clients) == 2


@pytest.mark.parametrize("error", [KafkaError._TIMED_OUT, None])
def test_without_an_answer_the_deadline_is_an_error_and_no_offset(error):
    clients = [Misled(error), Moving(None, 0)]
    with pytest.raises(LogUnavailable):
        asked_through(clients).bounds([0], 0.0)
    assert len(clients) == 2


class Several:
    """An admin client for topics: so many partitions, or an error."""

    def __init__(self, topics):
        self.topics = topics
        self.asked = []

    def describe_topics(self, topics, **_):
        self.asked.append(len(self.topics))
        return {name: self.answer(found) for name, found in self.topics.items()}

    def answer(self, found):
        future: Future[SimpleNamespace] = Future()
        if isinstance(found, int):
            future.set_result(SimpleNamespace(partitions=[*range(found)]))
        else:
            future.set_exception(KafkaException(found))
        return future

    def poll(self, _seconds):
        pass


def test_counts_of_topics_are_one_question_and_leave_out_what_is_gone_or_refused():
    topics = {
        "orders": 3,
        "gone": KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART),
        "secret": KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED),
        "invoices": 5,
    }
    admin = Several(topics)
    found = asked_through([admin]).partition_counts([*topics], float("inf"))
    assert found == {"orders": 3, "invoices": 5}
    assert admin.asked == [4]


def test_counts_are_asked_again_through_another_client_if_a_broker_is_lost():
    lost = Several({"orders": KafkaError(KafkaError._TRANSPORT)})
    assert asked_through([lost, Several({"orders": 3})]).partition_counts(
        ["orders"], float("inf")
    ) == {"orders": 3}


# ------------------------------------------------------------------ what was asked a moment ago


def test_the_shape_of_a_moment_ago_will_do_unless_a_partition_is_missing_in_it():
    now, took = [0.0], [0.0]
    trouble = Failures(parse_access("kafka://h/orders", None), "orders")
    admins = [Moving(KafkaError._TRANSPORT, 0)]
    asked = []

    def admin():
        asked.append(now[0])
        now[0] += took[0]
        return admins[0]

    one = Topic("orders", Questions(admin, admins.remove, trouble), lambda: now[0])
    for at, partitions in ((0.0, [0]), (0.9, [0, 1]), (1.0, []), (1.5, [2]), (1.9, [1])):
        now[0] = at
        assert one.recent_shape(partitions, float("inf")).partition_count == 2
    assert asked == [0.0, 1.0, 1.5]
    one.shape(float("inf"))
    now[0] = 2.8
    assert one.recent_shape([0], float("inf")).partition_count == 2
    assert asked[3:] == [1.9]
    # A question that takes long is asked less often.
    took[0] = 0.5
    for at in (3.0, 7.9, 8.1):
        now[0] = at
        one.recent_shape([0], float("inf"))
    assert asked[4:] == [3.0, 8.1]


def described(count, *leaderless):
    return SimpleNamespace(
        topic_id="id",
        partitions=[
            SimpleNamespace(id=one, leader=None if one in leaderless else 1) for one in range(count)
        ],
    )


class Slow:
    """A client that answers when the test says: how many partitions the topic has, or an error.

    A question for which an answer is `ready` has it at once.
    """

    def __init__(self, *ready):
        self.asked = []
        self.ready = list(ready)

    def describe_topics(self, _names, **_):
        self.asked.append(Future())
        if self.ready:
            self.answer(self.ready.pop())
        return {"orders": self.asked[-1]}

    def answer(self, what):
        if isinstance(what, KafkaError):
            self.asked[-1].set_exception(KafkaException(what))
        else:
            self.asked[-1].set_result(described(what))

    def poll(self, _seconds):
        pass


def slow_topic():
    """A topic that had two partitions, its client, the clients that were given up, and the time."""
    now, admin = [0.0], Slow(2)
    given_up: list[Slow] = []
    trouble = Failures(parse_access("kafka://h/orders", None), "orders")
    topic = Topic("orders", Questions(lambda: admin, given_up.append, trouble), lambda: now[0])
    assert topic.last_shape([0], float("inf")) == (Shape(2, "id"), True), "it was waited for"
    return topic, admin, given_up, now


def test_the_last_shape_will_do_while_the_topic_is_asked_again():
    topic, admin, _, now = slow_topic()
    now[0] = 9.0
    for _ in range(3):
        assert topic.last_shape([0, 7], float("inf")) == (Shape(2, "id"), False)
    assert len(admin.asked) == 2
    admin.answer(9)
    assert topic.last_shape([0, 7], float("inf")) == (Shape(9, "id"), True)
    assert len(admin.asked) == 2


def test_a_shape_that_is_much_older_is_waited_for():
    topic, admin, _, now = slow_topic()
    now[0] = 20.0
    admin.ready.append(3)
    assert topic.last_shape([0], float("inf")) == (Shape(3, "id"), True)


def test_how_long_an_answer_will_do_is_not_said_by_how_late_it_is_taken():
    topic, admin, _, now = slow_topic()
    now[0] = 5.0
    topic.last_shape([0], float("inf"))
    admin.answer(3)
    now[0] = 5.8
    assert topic.last_shape([0], float("inf")) == (Shape(3, "id"), True)
    now[0] = 6.1
    assert topic.last_shape([0], float("inf")) == (Shape(3, "id"), False)


def test_partitions_that_the_topic_does_not_have_are_asked_for_once():
    topic, admin, _, _ = slow_topic()
    assert topic.last_shape([0, 7], float("inf")) == (Shape(2, "id"), False)
    admin.answer(3)
    for _ in range(2):
        assert topic.last_shape([0, 7], float("inf")) == (Shape(3, "id"), True)
    assert topic.last_shape([0, 7, 8], float("inf")) == (Shape(3, "id"), False)


def test_if_the_topic_is_gone_that_is_said_and_the_next_answer_waited_for():
    topic, admin, _, now = slow_topic()
    now[0] = 9.0
    topic.last_shape([0], float("inf"))
    admin.answer(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    admin.ready.append(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    with pytest.raises(LogNotFound):
        topic.last_shape([0], float("inf"))


def test_without_an_answer_another_client_is_asked():
    topic, admin, given_up, now = slow_topic()
    now[0] = 9.0
    topic.last_shape([0], float("inf"))
    admin.answer(KafkaError(KafkaError._TRANSPORT))
    admin.ready.append(4)
    assert topic.last_shape([0], float("inf")) == (Shape(4, "id"), True)
    assert given_up == [admin]


def test_a_partition_without_a_leader_is_asked_for_until_it_has_one():
    topic, admin, _, _ = slow_topic()
    assert topic.last_shape([0, 2], float("inf")) == (Shape(2, "id"), False)
    admin.asked[-1].set_result(described(4, 2, 3))
    for _ in range(2):
        assert topic.last_shape([0, 2], float("inf"))[0].leaderless == {2, 3}
    assert len(admin.asked) == 3
    admin.answer(4)
    assert topic.last_shape([0, 2], float("inf")) == (Shape(4, "id"), True)
    assert len(admin.asked) == 3


# ------------------------------------------------------------------ nobody waits for the answers


class AskedLate:
    """Questions that end when they are asked, at the time `until`."""

    def __init__(self):
        self.until = 0.0
        self.asked: list[tuple[float, ...]] = []
        self.given_up: list[Attempt] = []
        self.futures: dict[int, tuple[Future[SimpleNamespace], Future[SimpleNamespace]]] = {}
        self.awaited = AwaitedBounds(self.begin, self.given_up.append)

    def begin(self, partitions, seconds):
        trouble = Failures(parse_access("kafka://h/orders", None), "orders")
        attempt = Attempt(Moving(None, 0), self.until, trouble)
        self.asked.append((*partitions, seconds))
        self.futures.update({one: (Future(), Future()) for one in partitions})
        return {one: Awaited(attempt, *self.futures[one]) for one in partitions}

    def answer(self, partition, start, end):
        for future, offset in zip(self.futures[partition], (start, end), strict=True):
            future.set_result(SimpleNamespace(offset=offset))

    def __call__(self, *partitions):
        self.awaited.ask(partitions)
        return self.awaited.answers(partitions)


def test_questions_without_an_answer_have_longer_each_time_and_another_client():
    log = AskedLate()
    for _ in range(3):
        assert log(0, 1) == {}
    assert log.asked == [(0, 1, 2.0), (0, 1, 3.0), (0, 1, 4.5)]
    assert len(log.given_up) == 2, "once for each question"
    log.until = inf
    log(0, 1)
    log.answer(0, 3, 4)
    assert log(0, 1) == {0: (3, 4)}
    log.answer(1, 3, 4)
    assert log(1) == {1: (3, 4)}
    log(1)
    assert log.asked[-1] == (1, 2.0)


def test_what_a_lost_broker_held_up_is_taken_and_its_own_partitions_are_asked_for_again():
    """librdkafka gives all answers at the end then, and an offset that is none."""
    log = AskedLate()
    log.until = time.monotonic() - 0.1
    assert log(0, 1) == {}
    log.answer(0, 3, 4)
    log.answer(1, -1001, -1001)
    assert log(0, 1) == {0: (3, 4)}
    assert len(log.given_up) == 1
    log(1)
    assert log.asked == [(0, 1, 2.0), (1, 3.0)]


def test_an_answer_that_was_not_taken_for_long_is_not_taken_any_more():
    log = AskedLate()
    log.until = time.monotonic() - 100
    log(0)
    log.answer(0, 3, 4)
    assert log(0) == {}
    assert log.asked == [(0, 2.0)] * 2
