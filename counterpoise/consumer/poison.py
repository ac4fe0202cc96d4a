"""What becomes of a message that cannot be handled: the poison policies.

A handler that raises has failed the message. It is tried `attempts` times, with growing pauses in
which the other partitions go on; the messages behind it wait, since their order counts. Then:

- **halt**: the consumer ends and raises what the handler raised, with a note that names the place.
  The message and all behind it stay uncommitted.
- **quarantine**: this consumer begins no message of that partition any more; all others go on. It
  keeps the partition, and the position stays before the message. The next owner, be it after a
  handoff or a restart, tries again; so does this one after `Consumer.resume`. It is an alarm for
  people: it is logged as an error, shown by `status`, and told to `on_quarantined`.
- **dead-letter**: the message is put elsewhere *durably, before* the position passes it; then the
  work goes on. A crash in between puts it there again, so a dead letter is delivered at least once.
  With a queue for a target it is there once nevertheless: each dead letter is published under an
  id made of its origin (log, incarnation, partition, position), and a log takes a sequence of a
  publisher once.

What cannot be stored as a dead letter is not passed. If that may pass by itself (the service or the
log is away) it is tried again, as long as the partition is ours; else the consumer halts, with a
note that names the place and what the handler raised.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from counterpoise.client import Client
from counterpoise.consumer.lane import Failure
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
    """Where a dead letter comes from: the queue, and which log it is in which life."""

    queue: str
    log: str
    incarnation: str


Store: TypeAlias = Callable[[Message, Failure], Any]


class DeadLetter:
    """Put poison messages elsewhere and go on.

    `to`: the name of a queue, or a function called as `to(message, failure)`, which must return
    only when the message is stored durably; what it raises halts the consumer, unless it is a
    `ServiceUnavailable` or `LogUnavailable`. `url`, `token`, `log_url`: of that queue's service
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
        """Find out before anything is handled whether there is such a queue.

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
        """Return when the message is where it belongs. Raises what prevented it."""
        if not isinstance(self.to, str):
            self.to(message, failure)
            return
        # In use: another consumer has stored this very letter since we looked.
        with (
            contextlib.suppress(PublisherIdInUse),
            Publisher(
                self.to,
                url=self._url,
                token=self._token,
                log_url=self._log_url,
                publisher_id=letter_id(message, origin),
                timeout_seconds=STORE_SECONDS,
            ) as publisher,
        ):
            if publisher.next_sequence == 0:
                publisher.publish(message.value, message.key, headers(message, failure, origin))
                publisher.flush()

    def __repr__(self) -> str:
        return f"DeadLetter({self.to!r})"


Policy: TypeAlias = str | DeadLetter
POLICIES = ("halt", "quarantine")


def checked(policy: Policy) -> Policy:
    """The policy, or ValueError if it is none."""
    if isinstance(policy, DeadLetter) or policy in POLICIES:
        return policy
    raise ValueError(
        f'on_poison must be "halt", "quarantine" or DeadLetter("queue"), not {policy!r}'
    )


def letter_id(message: Message, origin: Origin) -> str:
    """The publisher's id of a dead letter: the same for the same message, whoever stores it."""
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
