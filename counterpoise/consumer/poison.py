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

A message that cannot be stored as a dead letter is not passed. If the error can be temporary (the
service or the log is unavailable), storing is tried again as long as the partition is owned.
Otherwise the consumer halts, with a note that names the position and the handler's exception.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from counterpoise.client import Client
from counterpoise.consumer.lanes import Failure
from counterpoise.consumer.message import Message
from counterpoise.errors import CounterpoiseError
from counterpoise.publisher import Publisher, PublisherIdInUse

HEADER = "counterpoise-dead-letter-"
LONGEST_ERROR_CHARACTERS = 1000
STORE_SECONDS = 10.0


class SameQueue(CounterpoiseError):
    """Dead letters must not go to the queue that they come from."""

    code = "same_queue"


@dataclass(frozen=True)
class Origin:
    """The origin of a dead letter: the queue, and its log with the log's incarnation."""

    queue: str
    log: str
    incarnation: str


Store: TypeAlias = Callable[[Message, Failure], Any]


class DeadLetter:
    """Store poison messages elsewhere and continue.

    `to`: the name of a queue, or a function called as `to(message, failure)`, which must return
    only when the message is stored durably. Its exceptions halt the consumer, except
    `ServiceUnavailable` and `LogUnavailable`. `url`, `token`, `log_url`: of that queue's service
    and log, by default the consumer's own service.

    The letter has the message's key, value and headers, and headers `counterpoise-dead-letter-…`:
    `queue`, `partition`, `epoch`, `position`, `published-at`, `attempts`, `error`.
    """

    def __init__(
        self,
        to: str | Store,
        *,
        url: str | None = None,
        token: str | None = None,
        log_url: str | None = None,
    ) -> None:
        self.to = to
        self._url, self._token, self._log_url = url, token, log_url

    def check(self, queue: str, url: str | None, token: str | None) -> None:
        """Check that the target queue exists, before any message is handled.

        Raises `SameQueue`, `QueueNotFound`, `ServiceUnavailable`.
        """
        self._url, self._token = self._url or url, self._token or token
        if not isinstance(self.to, str):
            return
        if self.to == queue:
            raise SameQueue(f"dead letters of {queue!r} would come back to it: name another queue")
        with Client(self._url, token=self._token) as client:
            client.queue(self.to)

    def store(self, message: Message, failure: Failure, origin: Origin) -> None:
        """Return when the message is stored. Raises the error that prevented it."""
        if not isinstance(self.to, str):
            self.to(message, failure)
            return
        publish_once(
            self.to,
            letter_id(message, origin),
            message.value,
            message.key,
            headers(message, failure, origin),
            url=self._url,
            token=self._token,
            log_url=self._log_url,
        )

    def __repr__(self) -> str:
        return f"DeadLetter({self.to!r})"


Policy: TypeAlias = str | DeadLetter
POLICIES = ("halt", "quarantine")


def checked(policy: Policy) -> Policy:
    """The policy; raises ValueError if it is invalid."""
    if isinstance(policy, DeadLetter) or policy in POLICIES:
        return policy
    raise ValueError(
        f'on_poison must be "halt", "quarantine" or DeadLetter("queue"), not {policy!r}'
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


def letter_id(message: Message, origin: Origin) -> str:
    """The publisher id of a dead letter: the same for the same message, whichever consumer stores
    it.
    """
    place = "\0".join(
        (origin.queue, origin.log, origin.incarnation, str(message.partition), message.position)
    )
    return f"dead-letter-{hashlib.sha256(place.encode()).hexdigest()}"


def headers(message: Message, failure: Failure, origin: Origin) -> dict[str, str]:
    """The headers of a dead letter."""
    error = f"{type(failure.error).__name__}: {failure.error}"
    error = error.replace("\0", "").encode(errors="replace").decode()
    added = {
        "queue": origin.queue,
        "partition": str(message.partition),
        "epoch": str(message.epoch),
        "position": message.position,
        "published-at": message.published_at.isoformat(),
        "attempts": str(failure.attempts),
        "error": error[:LONGEST_ERROR_CHARACTERS],
    }
    return {**message.headers, **{HEADER + name: text for name, text in added.items()}}
