"""Answers of a cluster of Kafka, and how they are got while its brokers fail.

Every question is bounded by a deadline. While a partition changes its leader, or a broker does not
know a new partition yet, librdkafka returns that as an error of a question about offsets. So it is
while a consumer group gets another coordinator. Such a question is repeated.

A client for questions learns which broker is the controller and which ones lead only when it has
to. It sends a question to the broker that it knows, and if that one was killed, it goes on
connecting to it until the question's time limit: for 30 s, though the cluster has recovered after
three. Its interval of refreshing does not help, since it refreshes only topics that it works with.
A new client asks any broker first. So a question is asked in attempts, and an attempt without an
answer, or whose connection was lost, is followed by one of a new client. Even that client may be
sent to the killed broker, because the cluster notices a death only after some seconds
(`broker.session.timeout.ms`, 9 s), hence more attempts. Each may take half as long again as the one
before it, so that there are few, and a cluster that is only slow has enough time in the last ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from counterpoise.logs.errors import LogError, LogUnavailable
from counterpoise.logs.kafka.access import Failures

T = TypeVar("T")

# The time limits for a question that librdkafka accepts.
_LEAST_SECONDS = 0.1
_MOST_SECONDS = 3600.0
# How often a call that waits for an answer takes events.
_EVENTS_EVERY_SECONDS = 0.1
# How long the first attempt may take at least: a new client has to connect to two brokers, perhaps
# far away and with TLS. Of a longer time limit it has a share, and the next ones grow.
_FIRST_SECONDS = 2.0
_FIRST_SHARE = 1 / 20
_GROWTH = 1.5
# The pause before a question is repeated.
_PAUSE_SECONDS = 0.1
_PASSING = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)
# What librdkafka returns when the broker asked was lost, or never there.
_NO_ANSWER = frozenset(
    {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._DESTROY}
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a question: its client, and its end (monotonic)."""

    admin: AdminClient
    until: float
    trouble: Failures

    @property
    def seconds(self) -> float:
        """How long the attempt may still take, as librdkafka accepts it."""
        return min(_MOST_SECONDS, max(_LEAST_SECONDS, self.until - time.monotonic()))

    @property
    def is_late(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() >= self.until

    def answer(self, future: Future[Any]) -> Any:
        """What the cluster answers. Raises LogError, by the end of the attempt at the latest."""
        # librdkafka answers by the end; a little after it, no answer will come.
        given_up_at = time.monotonic() + self.seconds + 1.0
        while True:
            try:
                answer = future.result(_EVENTS_EVERY_SECONDS)
            except KafkaException as failed:
                raise self.told(failed.args[0]) from None
            except TimeoutError:
                # The errors of connections come as events. librdkafka tries refused credentials
                # again until the deadline.
                self.admin.poll(0)
                late = self.trouble.too_late("an answer about the topic")
                if self.trouble.refused():
                    raise late from None
                if time.monotonic() >= given_up_at:
                    raise NoAnswer(str(late)) from None
            else:
                self.trouble.clear()
                return answer

    def told(self, error: KafkaError) -> LogError:
        """The exception for an error, also for one within an answer."""
        self.admin.poll(0)
        told = self.trouble.told(error)
        if error.code() in _PASSING:
            return _Passing(str(told))
        if error.code() in _NO_ANSWER and not self.trouble.refused():
            return NoAnswer(str(told))
        return told


def has_passing_error(future: Future[Any]) -> bool:
    """Whether this answer, which has come, is that a partition has no leader at this moment.

    `Attempt.answer` takes the events of the client, too. For each of hundreds of answers that would
    be a wait for the other threads of the process.
    """
    failed = future.exception()
    return isinstance(failed, KafkaException) and failed.args[0].code() in _PASSING


class NoAnswer(LogUnavailable):
    """The broker asked was lost, or there was no answer in the time of an attempt."""


class _Passing(LogUnavailable):
    """At this moment the partition has no leader, or the group no coordinator, or another one."""


class Questions:
    """Asks a cluster. Thread-safe."""

    def __init__(
        self,
        admin: Callable[[], AdminClient],
        replace: Callable[[AdminClient], None],
        trouble: Failures,
    ) -> None:
        """`admin` returns the client for questions. After `replace(client)` it is another one."""
        self._admin = admin
        self._replace = replace
        self._trouble = trouble

    def attempt(self, seconds: float) -> Attempt:
        """For a question that the caller asks, and repeats, itself."""
        return Attempt(self._admin(), time.monotonic() + seconds, self._trouble)

    def give_up(self, attempt: Attempt) -> None:
        """It had no answer: the next one has another client."""
        self._replace(attempt.admin)

    def ask(self, question: Callable[[Attempt], T], deadline: float) -> T:
        """What `question(attempt)` returns, in as many attempts as there is time for.

        Raises what an attempt raises: LogUnavailable only at the deadline (monotonic).
        """
        seconds = max(_FIRST_SECONDS, (deadline - time.monotonic()) * _FIRST_SHARE)
        while True:
            admin = self._admin()
            try:
                until = min(deadline, time.monotonic() + seconds)
                return question(Attempt(admin, until, self._trouble))
            except _Passing:
                if time.monotonic() + _PAUSE_SECONDS >= deadline:
                    raise
            except NoAnswer:
                if time.monotonic() + _PAUSE_SECONDS >= deadline:
                    raise
                self._replace(admin)
                seconds *= _GROWTH
            time.sleep(_PAUSE_SECONDS)
