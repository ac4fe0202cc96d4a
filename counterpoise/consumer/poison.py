"""Poison policies: what happens to a message that cannot be handled.

If the handler raises, the message has failed. It is tried `attempts` times, with growing pauses in
which other partitions continue; later messages of its partition wait, because their order counts.
Then:

- **halt**: the consumer ends and raises the handler's exception, with a note that names the
  position. The message and all after it stay uncommitted.
- **quarantine**: this consumer begins no message of that partition any more; all others continue.
  It keeps the partition, and the position stays before the message. The next owner, after a handoff
  or a restart, tries again, and so does this one after `Consumer.resume`. Quarantine is an alarm
  for people: it is logged as an error, shown by `status`, and passed to `on_quarantined`.
- **dead-letter**: the message is stored elsewhere *durably, before* the position passes it. Then
  the work continues. A crash in between stores it again, so a dead letter is delivered at least
  once. A queue as the target gets it only once: each dead letter is published under an id made of
  its origin (log, incarnation, partition, position), and a log accepts each sequence of a publisher
  once.

- **retry**: the message is set aside and tried again after each of some delays, while the other
  keys of its partition continue, and later messages of its key wait behind it. After the last
  delay one of the policies above decides (`counterpoise.consumer.redelivery`). In key order it
  stays in its window instead (`counterpoise.consumer.key_order`), and needs no retry queue.

A message that cannot be stored as a dead letter is not passed. If the error can be temporary (the
service or the log is unavailable), storing is tried again as long as the partition is owned.
Otherwise the consumer halts, with a note that names the position and the handler's exception.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from copy import copy
from typing import Any, Literal, NamedTuple, TypeAlias

from counterpoise.calls import base_url, check_queue
from counterpoise.client import Client
from counterpoise.consumer.letters import Origin, headers, letter_id
from counterpoise.consumer.message import Failure, Message
from counterpoise.errors import CounterpoiseError, reached_before
from counterpoise.logs.address import kind_of, parse_log
from counterpoise.options import check_seconds
from counterpoise.publisher import Publisher, PublisherIdInUse
from counterpoise.reading import checked_token

STORE_SECONDS = 10.0


class WrongQueue(CounterpoiseError):
    """A queue of `DeadLetter` or `Retry` is the one that is read, or has messages of others."""

    code = "wrong_queue"


class QueueAt(NamedTuple):
    """A queue of the service at `url`, and the key that may see it."""

    queue: str
    url: str | None
    token: str | None


def refuse_same(message: str, target: QueueAt, source: QueueAt) -> None:
    """Raise WrongQueue with this message if what goes into `target` is read from `source`: they are
    one queue, whatever the address of its service, or two with a log in common.

    Raises QueueNotFound if there is no target, and other errors of the service.
    """
    names = _names(target)
    if not names.isdisjoint(_names(source)):
        raise WrongQueue(message)


def _names(place: QueueAt) -> Set[tuple[str, str]]:
    """The queue and its logs; built-in logs are those of their service."""
    with Client(place.url, token=place.token) as client:
        queue = client.queue(place.queue)
    logs = parse_log(queue.log).parts
    return {
        ("queue", queue.id),
        *((client.url if kind_of(log) == "builtin" else "log", log) for log in logs),
    }


def _check_place(url: str | None, token: str | None) -> None:
    """Raise InvalidSettings for what no client could use; None is the consumer's."""
    if url is not None:
        base_url(url)
    checked_token(token)


Store: TypeAlias = Callable[[Message, Failure], Any]


class DeadLetter:
    """Store poison messages elsewhere and continue.

    `to`: the name of a queue, or a function called as `to(message, failure)`, which must return
    only when the message is stored durably. Its exceptions halt the consumer, except
    `ServiceUnavailable` and `LogUnavailable`. `url`, `token`, `log_url`: of that queue's service
    and log, by default the consumer's.

    The letter has the message's key, value and headers, and headers `counterpoise-dead-letter-…`:
    `queue`, `partition`, `epoch`, `position`, `published-at`, `attempts`, `error`. Others who
    publish to that queue can write such headers, too.
    """

    def __init__(
        self,
        to: str | Store,
        *,
        url: str | None = None,
        token: str | None = None,
        log_url: str | None = None,
    ) -> None:
        if not callable(to):
            check_queue(to)
        _check_place(url, token)
        self.to = to
        self._url, self._token, self._log_url = url, token, log_url

    def check(self, queue: str, url: str | None, token: str | None) -> DeadLetter:
        """Check that the target queue exists, before any message is handled. Returns the policy for
        the consumer of `queue`, whose `url` and `token` these are.

        Raises `WrongQueue`, `QueueNotFound`, `ServiceUnavailable`.
        """
        bound = copy(self)
        bound._url, bound._token = self._url or url, self._token or token
        if isinstance(self.to, str):
            refuse_same(
                f"dead letters of {queue!r} would come back to it: name another queue",
                QueueAt(self.to, bound._url, bound._token),
                QueueAt(queue, url, token),
            )
        return bound

    def store(self, message: Message, failure: Failure, origin: Origin) -> None:
        """Return when the message is in the queue. Raises the error that prevented it, and
        TypeError if `to` is a function.
        """
        if not isinstance(self.to, str):
            raise TypeError("these dead letters go to a function and not to a queue")
        with reached_before():  # by `check`
            publish_once(
                self.to,
                letter_id(origin, message.partition, message.position),
                message.value,
                message.key,
                headers(message, failure, origin),
                url=self._url,
                token=self._token,
                log_url=self._log_url,
            )

    def __repr__(self) -> str:
        return f"DeadLetter({self.to!r})"


LastPolicy: TypeAlias = Literal["halt", "quarantine"] | DeadLetter
LAST_POLICIES = ("halt", "quarantine")
LONGEST_DELAY_SECONDS = 30 * 86400.0


class Retry:
    """Set a failed message aside in `queue`, try it again after each delay, then decide by `then`.

    `queue`: the retry queue, for all consumers with this policy and nobody else, on any log but
    theirs. Without one, for consumers with `order="key"`: the message stays uncommitted in its
    partition. `after_seconds`: the delays, each from the failure before. `then`: a policy for a
    message that fails after the last one, "quarantine" by default. `url`: of the retry queue's
    service, by default the consumer's. `token`: the key that publishes to it, by default the
    consumer's; binding and reading use the consumer's. `log_url` replaces the access to its log
    that the service gives.
    """

    def __init__(
        self,
        queue: str | None = None,
        *,
        after_seconds: Sequence[float],
        then: LastPolicy = "quarantine",
        url: str | None = None,
        token: str | None = None,
        log_url: str | None = None,
    ) -> None:
        if isinstance(after_seconds, str | bytes) or not isinstance(after_seconds, Iterable):
            raise TypeError(f"after_seconds must be a list of seconds, not {after_seconds!r}")
        delays = tuple(after_seconds)
        if not delays:
            raise ValueError("after_seconds must have at least one delay")
        for delay in delays:
            check_seconds(0, LONGEST_DELAY_SECONDS, after_seconds=delay)
        if not _is_last(then):
            raise ValueError(
                f'then must be "halt", "quarantine" or DeadLetter("queue"), not {then!r}'
            )
        if queue is not None:
            check_queue(queue)
        elif (url, token, log_url) != (None, None, None):
            raise ValueError(
                "url, token and log_url are of a retry queue: name it, or none of them"
            )
        _check_place(url, token)
        self.queue = queue
        self.after_seconds = tuple(map(float, delays))
        self.then: LastPolicy = then
        self.url, self.token, self.log_url = url, token, log_url

    def check(self, queue: str, url: str | None, token: str | None) -> Retry:
        """As `DeadLetter.check`, of the retry queue and of `then`; also that the retry queue has a
        log of its own and may be published to (`Forbidden`).
        """
        retries = self.queue and QueueAt(self.queue, self.url or url, token)
        if retries:
            refuse_same(
                f"what {queue!r} sets aside would come back to it: name another queue",
                retries,
                QueueAt(queue, url, token),
            )
            with Client(retries.url, token=self.token or token) as client:
                client.log_access(retries.queue, "publish")
        then = self.then
        if isinstance(then, DeadLetter):
            then = then.check(queue, url, token)
            if retries and isinstance(then.to, str):
                refuse_same(
                    f"{self.queue!r} has what is set aside: name another queue for letters",
                    QueueAt(then.to, then._url, then._token),
                    retries,
                )
        bound = copy(self)
        bound.then = then
        return bound

    def __repr__(self) -> str:
        queue = "" if self.queue is None else f"{self.queue!r}, "
        return f"Retry({queue}after_seconds={self.after_seconds}, then={self.then!r})"


Policy: TypeAlias = LastPolicy | Retry


def _is_last(policy: object) -> bool:
    return isinstance(policy, DeadLetter) or policy in LAST_POLICIES


def checked(policy: Policy) -> Policy:
    """The policy; raises ValueError if it is invalid."""
    if isinstance(policy, Retry) or _is_last(policy):
        return policy
    raise ValueError(
        'on_poison must be "halt", "quarantine", DeadLetter("queue") or '
        f'Retry("queue", after_seconds=[…]), not {policy!r}'
    )


def publish_once(
    queue: str,
    publisher_id: str,
    value: bytes,
    key: str | None,
    headers: Mapping[str, str],
    *,
    url: str | None,
    token: str | None = None,
    log_url: str | None = None,
) -> None:
    """Return when the message is in the queue's log, also if it was published under this id before.

    `url`, `token` and `log_url` as for `Publisher`. Raises its errors.
    """
    # In use: another process publishes the same message.
    with (
        contextlib.suppress(PublisherIdInUse),
        Publisher(
            queue,
            url=url,
            token=token,
            log_url=log_url,
            publisher_id=publisher_id,
            timeout_seconds=STORE_SECONDS,
        ) as publisher,
    ):
        if publisher.next_sequence == 0:
            publisher.publish(value, key, headers)
            publisher.flush()
