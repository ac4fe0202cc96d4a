"""`counterpoise publish` and `counterpoise consume`: messages as lines of text or as JSON.

The progress of a publish is on stderr. On a terminal it is one line that changes. Elsewhere (a
pipe, a log of a scheduler) a publish says nothing until its end.
"""

from __future__ import annotations

import json
import logging
import queue as queue_module
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import click
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from counterpoise.cli.options import finite, json_option, queue_argument, service_options
from counterpoise.cli.output import counted, print_json, ranges, say
from counterpoise.cli.reading import named_value
from counterpoise.cli.tables import PlainConsole
from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError, ServiceUnavailable, reached_before
from counterpoise.plain import plain, plain_json, plain_line

if TYPE_CHECKING:
    from counterpoise.consumer import Consumer

# How often to ask the service whether more partitions will be granted.
POLL_SECONDS = 0.5
# When to ask a second time for what was not answered.
AGAIN_SECONDS = 0.2
# How often the line of progress changes.
REFRESH_SECONDS = 0.1

key_separator_option = click.option(
    "--key-separator", help=r"The separator between key and value; \t is a tab."
)


@click.command("publish")
@queue_argument
@click.option(
    "--file",
    "-f",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    show_default="standard input",
    help="Read from this file.",
)
@click.option("--key", help="The key of every message.")
@key_separator_option
@click.option("--quiet", "-q", is_flag=True, help="Do not print the number of messages.")
@service_options
@json_option
def publish(
    queue: str,
    file: Path | None,
    key: str | None,
    key_separator: str | None,
    quiet: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Publish each line as a message; messages without a key are spread over the partitions.

    The end of a line, LF or CR LF, is not part of its message.
    """
    from counterpoise.publisher import Publisher

    if key is not None and key_separator is not None:
        raise click.BadParameter("give either --key or --key-separator")
    separator = _separator(key_separator)
    count = 0
    _check_access(queue, url)
    publisher = Publisher(queue, url=url)
    try:
        size_bytes = file.stat().st_size if file is not None and file.is_file() else None
        with PublishProgress(queue, size_bytes, not quiet) as progress:
            with publisher, _input(file) as lines:
                for number, line in enumerate(lines, 1):
                    value = line.removesuffix(b"\n").removesuffix(b"\r")
                    publisher.publish(*_split(number, value, separator, key))
                    count = number
                    progress.took(len(line))
    except (KeyboardInterrupt, SystemExit):
        # Closing may have failed or been interrupted.
        lacking = publisher.unconfirmed
        fate = f"{lacking} of them not known to be in the log" if lacking else "which are published"
        say(f"counterpoise: interrupted after {count} messages, {fate}")
        raise
    except Exception as error:
        # The publisher's own note counts the messages that it could not deliver.
        if not publisher.unconfirmed:
            there = count - publisher.refused
            said = "of the others" if publisher.refused else "before it"
            error.add_note(f"{counted(there, 'message')} {said} {_were(there)} published")
        raise
    if as_json:
        print_json({"queue": queue, "published": count})
    elif not quiet:
        say(f"published {counted(count, 'message')} to {queue}")


def _check_access(queue: str, url: str | None) -> None:
    """A publisher waits for a service that is away; a command that cannot begin says so at once.

    One answer may get lost on its way.
    """
    with Client(url) as client:
        try:
            client.log_access(queue, "publish")
        except ServiceUnavailable:
            time.sleep(AGAIN_SECONDS)
            client.log_access(queue, "publish")


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


@contextmanager
def _input(file: Path | None) -> Iterator[BinaryIO]:
    if file is None:
        yield sys.stdin.buffer
        return
    with file.open("rb") as opened:
        yield opened


def _separator(text: str | None) -> bytes | None:
    if text is None:
        return None
    separator = text.replace(r"\t", "\t").encode()
    if not separator:
        raise click.BadParameter("--key-separator must not be empty")
    return separator


def _split(
    number: int, line: bytes, separator: bytes | None, key: str | None
) -> tuple[bytes, str | None]:
    """Value and key of a line."""
    if separator is None:
        return line, key
    name, found, value = line.partition(separator)
    if not found:
        raise CounterpoiseError(
            f"line {number} has no {separator.decode()!r} between key and value"
        )
    try:
        return value, name.decode()
    except UnicodeDecodeError:
        raise CounterpoiseError(f"line {number}: the key is not UTF-8") from None


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


@click.command("consume")
@queue_argument
@click.option("--json", "as_json", is_flag=True, help="Print each message as a line of JSON.")
@key_separator_option
@click.option(
    "--max-messages", "-n", type=click.IntRange(min=1), help="End after this many messages."
)
@click.option(
    "--idle",
    type=click.FloatRange(min=0.0),
    callback=finite,
    help="End after this many seconds without a message (a holddown does not count).",
)
@click.option(
    "--client-name", show_default="host:pid", help="The name under which this consumer is shown."
)
@click.option(
    "--instance-id",
    show_default="random",
    help="With the same id, a restarted consumer gets its partitions back at once.",
)
@click.option(
    "--lease",
    type=click.FloatRange(min=1.0, max=3600.0),
    default=10.0,
    callback=finite,
    help="The lease: partitions are lost after this many seconds without renewal.",
)
@click.option("--quiet", "-q", is_flag=True, help="Do not report granted and revoked partitions.")
@service_options
def consume(
    queue: str,
    as_json: bool,
    key_separator: str | None,
    max_messages: int | None,
    idle: float | None,
    client_name: str | None,
    instance_id: str | None,
    lease: float,
    quiet: bool,
    url: str | None,
) -> None:
    """Print the messages of the partitions that this consumer owns, and commit them.

    The first interrupt (or SIGTERM, or the end of its terminal) hands its partitions over in order;
    the second ends it at once.

    A message is committed once it is written, whether or not the reader of a pipe uses it. So
    'counterpoise consume QUEUE | head -3' commits more than three messages, and --max-messages 3
    commits three. 'counterpoise peek' commits none.

    --json prints one line for each message, with "value", or "value_base64" for a
    value that is not text. Without it a value with line ends is several lines in a
    pipe.
    """
    from counterpoise.consumer import Consumer, stop_on_signals
    from counterpoise.consumer.work import OfRows

    output = _Output(as_json, _separator(key_separator))
    notices = _Notices()
    consumer = Consumer(
        queue,
        OfRows(output.write),
        url=url,
        limit=max_messages,
        client_name=client_name,
        instance_id=instance_id,
        lease_seconds=lease,
        **({} if quiet else notices.callbacks()),
    )
    _log_to_stderr()
    logging.getLogger("httpx").setLevel(logging.WARNING)

    _say_if_away(queue, url)
    waiting = _Waiting(consumer, url)

    def until() -> bool:
        notices.tell()
        return idle is not None and min(output.idle_seconds, waiting.over_seconds()) >= idle

    try:
        with stop_on_signals(consumer):
            consumer.run(until)
    except BrokenPipeError:
        given = counted(consumer.handled, "message")
        say(
            f"counterpoise: the reader of the output ended; {given} of {queue} that it was given "
            "are committed; --max-messages ends after a number"
        )
        raise
    notices.tell()
    if not quiet:
        say(f"consumed {counted(consumer.handled, 'message')} of {queue}")
    if consumer.flow.gone_reason == "queue_not_found":
        raise click.exceptions.Exit(1)


def _say_if_away(queue: str, url: str | None) -> None:
    """A consumer waits for its service, because it may be started before it; a person is told."""
    try:
        with Client(url, timeout_seconds=5.0) as client:
            client.rebalance_status(queue)
    except ServiceUnavailable as error:
        say(f"counterpoise: {error}; waiting for it")


class _PlainFormatter(logging.Formatter):
    """Messages of errors quote what the service and the log have said."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return plain_line(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_PlainFormatter("counterpoise: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


class _Notices:
    """Reports granted and revoked partitions to the terminal, once in each pass."""

    def __init__(self) -> None:
        self._told: queue_module.SimpleQueue[tuple[str, int]] = queue_module.SimpleQueue()

    def callbacks(self) -> dict[str, Any]:
        """Callbacks for the flow; they run on a separate thread."""

        def note(text: str) -> Any:
            return lambda owned, *_: self._told.put((text, owned.partition))

        return {
            "on_granted": lambda owned: note(f"granted ({owned.handed_over})")(owned),
            "on_revoking": note("being handed off"),
            "on_retiring": note("retiring"),
            "on_lost": note("lost"),
        }

    def tell(self) -> None:
        """Report the changes since the last call, equal ones in one line."""
        groups: list[tuple[str, list[int]]] = []
        while not self._told.empty():
            text, number = self._told.get()
            if not groups or groups[-1][0] != text:
                groups.append((text, []))
            groups[-1][1].append(number)
        for text, numbers in groups:
            say(f"partitions {ranges(numbers)}: {text}")


class _Waiting:
    """Distinguishes a lack of messages from a lack of partitions during a rebalance."""

    def __init__(self, consumer: Consumer, url: str | None) -> None:
        self._consumer = consumer
        self._url = url
        self._waited_at = self._next_poll = time.monotonic()
        self._unsettled = True

    def over_seconds(self) -> float:
        """For how long there has been no holddown or rebalance."""
        now = time.monotonic()
        if not self._consumer.flow.active:
            if now >= self._next_poll:
                self._next_poll = now + POLL_SECONDS
                self._unsettled = self._is_unsettled()
            if self._unsettled:
                self._waited_at = now
        return now - self._waited_at

    def _is_unsettled(self) -> bool:
        try:
            with reached_before(), Client(self._url) as client:
                return client.rebalance_status(self._consumer.queue).status != "Ready"
        except ServiceUnavailable:
            return True


class _Output:
    """Messages on standard output, flushed before they are committed.

    A program gets their bytes. On a terminal each is one line, with escapes for control characters
    in it, line ends among them.
    """

    def __init__(self, as_json: bool, separator: bytes | None) -> None:
        """Raises OSError if standard output was closed from the beginning."""
        if sys.__stdout__ is None:
            # What takes its place (`mend_streams`) loses what is written to it.
            raise OSError("standard output is closed; messages would be committed and lost")
        self._as_json = as_json
        self._separator = separator
        self._wrote_at = time.monotonic()
        self._out = sys.stdout.buffer
        self._for_people = sys.stdout.isatty()

    @property
    def idle_seconds(self) -> float:
        return time.monotonic() - self._wrote_at

    def write(self, owned: Any, rows: Any) -> None:
        for message in rows.to_pylist():
            line = self._json(owned, message) if self._as_json else self._plain(message)
            self._out.write(line + b"\n")
        self._out.flush()
        self._wrote_at = time.monotonic()

    def _plain(self, message: dict[str, Any]) -> bytes:
        line: bytes = message["value"]
        if self._separator is not None:
            line = (message["key"] or "").encode() + self._separator + line
        if self._for_people:
            return plain_line(line.decode(errors="replace")).encode()
        return line

    def _json(self, owned: Any, message: dict[str, Any]) -> bytes:
        name, value = named_value(message["value"])
        document = {
            "partition": message["partition"],
            "position": message["position"],
            "epoch": owned.epoch,
            "key": message["key"],
            name: value,
            "headers": dict(message["headers"] or ()),
            "published_at": message["published_at"].isoformat(),
        }
        return plain_json(json.dumps(document, ensure_ascii=False)).encode()
