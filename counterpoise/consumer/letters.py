"""The headers of what is put aside: dead letters, and records of the retry queue.

A letter has headers `counterpoise-dead-letter-…` (`NAMES`) that say where it comes from and why it
is there. They are a publisher's word: whoever may publish to a queue of letters can write the same.
So what is read here has a form that one of us could have written, and no more is known of it.
`counterpoise.cli.letters` asks the log of the origin before a letter goes back there.

A message may come with such headers, too. What is put aside gets its own instead of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from counterpoise.calls import check_queue
from counterpoise.conditions import text_of
from counterpoise.consumer.message import Failure, Message
from counterpoise.errors import Invalid
from counterpoise.logs.numbered import position_number
from counterpoise.logs.port import ASIDE_HEADERS
from counterpoise.logs.rows import SHOWN_FROM, SHOWN_TO

HEADER, RETRY_HEADER = ASIDE_HEADERS
NAMES = ("queue", "partition", "epoch", "position", "published-at", "attempts", "error")
"""Of the headers of a letter, after `HEADER`."""
LONGEST_ERROR_CHARACTERS = 1000


@dataclass(frozen=True)
class Origin:
    """The origin of a dead letter: the queue, and its log with the log's incarnation. `queue_id`:
    of the queue, if the service says it.
    """

    queue: str
    log: str
    incarnation: str
    queue_id: str = ""


def letter_id(origin: Origin, partition: int, position: str) -> str:
    """The publisher id of a dead letter: the same for the same message, whoever stores it."""
    place = "\0".join((origin.queue, origin.log, origin.incarnation, str(partition), position))
    return f"dead-letter-{hashlib.sha256(place.encode()).hexdigest()}"


def headers(message: Message, failure: Failure, origin: Origin) -> dict[str, str]:
    """The headers of a dead letter."""
    return letter_headers(
        message.headers,
        origin.queue,
        message.partition,
        message.epoch,
        message.position,
        message.published_at,
        failure.attempts,
        error_text(failure.error),
    )


def letter_headers(
    own: Mapping[str, str],
    queue: str,
    partition: int,
    epoch: int,
    position: str,
    published_at: datetime,
    attempts: int,
    error: str,
) -> dict[str, str]:
    """The headers of a dead letter; `own`: those of the message."""
    at = published_at.isoformat()
    said = (queue, str(partition), str(epoch), position, at, str(attempts), error)
    ours = {HEADER + name: text for name, text in zip(NAMES, said, strict=True)}
    return {**without_ours(own), **ours}


def without_ours(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a message without those of what is put aside, which a stranger may have
    written.
    """
    return {name: text for name, text in headers.items() if not name.startswith(ASIDE_HEADERS)}


class Claim(NamedTuple):
    """Where a letter says that it comes from, and when the message was published there."""

    queue: str
    partition: int
    position: str
    published_at: datetime


def said_of(headers: Mapping[str, str]) -> dict[str, str]:
    """What a letter says of itself, by `NAMES`, each text cut; empty: it says nothing."""
    return {
        name: headers[HEADER + name][:LONGEST_ERROR_CHARACTERS]
        for name in NAMES
        if HEADER + name in headers
    }


def claim_of(headers: Mapping[str, str]) -> Claim | None:
    """None: the message is no letter. Any publisher may have written what is claimed."""
    said = said_of(headers)
    try:
        check_queue(said["queue"])
        return Claim(
            said["queue"],
            number_in(said["partition"]),
            said["position"],
            time_in(said["published-at"]),
        )
    except (KeyError, ValueError, Invalid):
        return None


def number_in(text: str) -> int:
    """A number in a header of ours. Raises ValueError for any other text."""
    number = position_number(text, 2**63)
    if number is None:
        raise ValueError(f"{text[:40]!r} is no number")
    return number


def time_in(text: str) -> datetime:
    """A time in a header of ours. Raises ValueError for any other text."""
    at = datetime.fromisoformat(text)
    if at.utcoffset() is None or not SHOWN_FROM <= at <= SHOWN_TO:
        raise ValueError(f"{text[:40]!r} is no time of a message")
    return at


def redrive_origin(incarnation: str) -> Origin:
    """In place of a queue, for ids of letters that are sent back. It is of the log with this
    incarnation, because several queues may read the same letters.
    """
    return Origin("", "redrive", incarnation)


def content_of(
    key: str | None, value: bytes, headers: Mapping[str, str], published_at: datetime | None
) -> tuple[object, ...]:
    """What a letter has of its message, and nothing of what we add to either."""
    return key, value, without_ours(headers), published_at


def error_text(error: BaseException) -> str:
    """An error as a header can hold it."""
    text = text_of(error).replace("\0", "")
    return text.encode(errors="replace").decode()[:LONGEST_ERROR_CHARACTERS]
