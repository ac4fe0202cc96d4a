"""Progress on stderr: what a command that takes a while is doing.

On a terminal it is one line that changes. Elsewhere (a pipe, a log of a scheduler) a publish says
nothing until its end, and a drain prints a line for each change.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from counterpoise.cli.common import PlainConsole, say

REFRESH_SECONDS = 0.1


class PublishProgress:
    """How many messages are taken, and how fast; of a file also how much of it is left."""

    def __init__(self, queue: str, size_bytes: int | None, shown: bool = True) -> None:
        console = PlainConsole(stderr=True)
        columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False)]
        if size_bytes:
            columns += [BarColumn(), DownloadColumn(), TimeRemainingColumn()]
        self._progress = Progress(
            *columns,
            console=console,
            transient=True,
            auto_refresh=False,
            disable=not (shown and console.is_terminal),
        )
        self._queue = queue
        self._task = self._progress.add_task(queue, total=size_bytes)
        self._started = self._told = time.monotonic()
        self._messages = self._bytes = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def took(self, size_bytes: int) -> None:
        """One more message, of a line of this size."""
        self._messages += 1
        self._bytes += size_bytes
        now = time.monotonic()
        if now - self._told < REFRESH_SECONDS:
            return
        self._told = now
        rate = self._messages / (now - self._started)
        said = f"{self._queue}: {self._messages:,} messages, {rate:,.0f}/s"
        self._progress.update(self._task, completed=self._bytes, description=said, refresh=True)


class Steps:
    """One line that says how far something is. `tell` may be called again and again."""

    def __init__(self, shown: bool = True) -> None:
        self._console = PlainConsole(stderr=True)
        self._shown = shown
        self._status = self._console.status("") if shown and self._console.is_terminal else None
        self._told: str | None = None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self, said: str, passing: Callable[[], str] = lambda: "") -> None:
        """`said` is news when it differs from the last call's; `passing` is for a terminal only."""
        if self._status is not None:
            self._status.update(Text(said + passing()))
        elif self._shown and said != self._told:
            say(said)
        self._told = said
