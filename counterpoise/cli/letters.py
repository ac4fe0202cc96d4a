"""Where a dead letter goes back to.

What a letter says of its origin is the word of whoever published it (`counterpoise.consumer
.letters`), and a redrive has the rights of whoever runs it. So a letter goes back only if the log
of its origin confirms it: the message at the position that the letter names has its key, its value,
its headers and its time. A log that has trimmed this message, or has another one there, confirms
nothing. Then a person decides, and names the queue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from counterpoise.cli.reading import opened
from counterpoise.client import Client
from counterpoise.consumer.letters import Claim, claim_of, content_of
from counterpoise.errors import CounterpoiseError, Refused
from counterpoise.logs import (
    Log,
    LogError,
    LogUnavailable,
    PositionTrimmed,
)


class Origins:
    """The origins of the letters of one queue. A context manager: it keeps their logs open."""

    def __init__(self, queue: str, client: Client, to: str | None, trusted: Collection[str]):
        """All letters go `to` this queue. None: to their origins; those in `trusted` need not
        confirm it.
        """
        self._queue = queue
        self._client = client
        self._to = to
        self._trusted = trusted
        self._logs: dict[str, Log] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def target(self, row: Mapping[str, Any]) -> str:
        """The queue to which a letter goes, a row of MESSAGE_SCHEMA.

        Raises CounterpoiseError, and LogUnavailable while the origin's log is away.
        """
        if self._to is not None:
            return self._to
        claim = claim_of(dict(row["headers"] or ()))
        place = f"position {row['position']} of partition {row['partition']} of {self._queue}"
        if claim is None:
            raise CounterpoiseError(
                f"the message at {place} is no dead letter: it does not say where it comes from. "
                "Give --to, or pass it with 'counterpoise consume' or 'counterpoise positions set'",
            )
        why = None if claim.queue in self._trusted else self._objection(row, claim)
        if why is not None:
            raise CounterpoiseError(
                f"the letter at {place} says that it comes from position {claim.position} of "
                f"partition {claim.partition} of {claim.queue}, but {why}. Nothing was sent: see "
                f"'counterpoise dead-letters show {self._queue} -p {row['partition']} --position "
                f"{row['position']}'. --trust {claim.queue} sends such letters there all the same, "
                "--to QUEUE sends all letters to one queue",
            )
        return claim.queue

    def _objection(self, row: Mapping[str, Any], claim: Claim) -> str | None:
        """What keeps the log of the origin from confirming it; None: it does."""
        try:
            log = self._log(claim.queue)
            parts = log.rows(claim.partition, claim.position, None, max_messages=1)
            found = [one for rows in parts for one in rows.to_pylist()]
        except LogUnavailable as error:
            error.add_note(f"so {claim.queue} cannot confirm its letters now: try again later")
            raise
        except PositionTrimmed:
            return "the log has that message no more"
        except (Refused, LogError) as error:
            return f"that cannot be seen there ({error})"
        if not found or found[0]["position"] != claim.position:
            return "there is no such message"
        if _content(found[0]) != _content({**row, "published_at": claim.published_at}):
            return "another message is there"
        return None

    def _log(self, queue: str) -> Log:
        log = self._logs.get(queue)
        if log is None:
            view = self._client.log_access(queue, "read")
            log = self._logs[queue] = self._stack.enter_context(opened(view))
        return log


def _content(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a letter has of its message, and nothing of what we add to either."""
    return content_of(row["key"], row["value"], dict(row["headers"] or ()), row["published_at"])
