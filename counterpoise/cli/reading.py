"""`counterpoise peek`: messages of a queue's log, without owning a partition.

Nothing is bound, committed or moved. It reads the log with the access of a consumer, so on a
service with keys it needs the key of a consumer.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import click

from counterpoise.cli.options import json_option, partitions_option, queue_argument, service_options
from counterpoise.cli.output import counted, no_partition, say
from counterpoise.client import Client
from counterpoise.logs import Log, LogError, open_log
from counterpoise.logs.address import environment_access, kind_of
from counterpoise.plain import plain_json, plain_line
from counterpoise.wire import LogView

TIMEOUT_SECONDS = 10.0
# One read returns at most so much.
READ_MESSAGES = 1000
READ_BYTES = 8 * 1024 * 1024
# A search for a key ends after so many messages.
MOST_SEARCHED = 1_000_000
_WORD = re.compile(r'[^\s"=]+')


@click.command("peek")
@queue_argument
@partitions_option
@click.option(
    "--position",
    show_default="the oldest message in the log",
    help="Begin at this position of the one --partition.",
)
@click.option("--key", help="Only messages with this key.")
@click.option(
    "--max-messages",
    "-n",
    type=click.IntRange(min=1),
    default=20,
    help="The most messages to show.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=0),
    default=1000,
    help="The most bytes to show of each value, key and headers.",
)
@service_options
@json_option
def peek(
    queue: str,
    partitions: tuple[int, ...],
    position: str | None,
    key: str | None,
    max_messages: int,
    max_bytes: int,
    url: str | None,
    as_json: bool,
) -> None:
    """Show messages of a queue, partition by partition, and leave all as it is.

    A value that is not text is shown in base64. Each message is two lines; control
    characters are shown as escapes, line ends among them. --json prints one line
    for each message, with "value" or "value_base64", and "size_bytes" of the whole
    value. Keys are cut, and headers that are longer in all are left out.
    """
    if position is not None and len(partitions) != 1:
        raise click.BadParameter("--position needs one --partition", param_hint="--position")
    with Client(url, timeout_seconds=TIMEOUT_SECONDS) as client:
        view = client.log_access(queue, "read")
        numbers = [one.partition for one in client.partitions(queue)]
    shown = searched = 0
    with opened(view) as log:
        for message in messages_of(
            log, dict.fromkeys(sorted({*(partitions or numbers)}), position)
        ):
            searched += 1
            if key is None or message["key"] == key:
                shown += 1
                click.echo(_line(message, max_bytes) if as_json else text_of(message, max_bytes))
            if shown == max_messages:
                break
            if searched == MOST_SEARCHED:
                say(f"the search ended after {counted(searched, 'message')}")
                break
    # The log may still have messages of a partition that was removed.
    if not shown and (unknown := sorted({*partitions} - {*numbers})):
        raise click.BadParameter(no_partition(unknown), param_hint="--partition")
    if not shown:
        say(f"{queue}: no such message in {view.log}")


@contextmanager
def opened(view: LogView) -> Iterator[Log]:
    """The log, with the environment's access to it or the service's. Raises LogError."""
    if kind_of(view.log) is None:
        raise LogError(f"the log {view.log} is of a kind that this version cannot read")
    access = environment_access(view.log) or view.access
    with closing(open_log(view.log, access, timeout_seconds=TIMEOUT_SECONDS)) as log:
        yield log


def messages_of(log: Log, positions: Mapping[int, str | None]) -> Iterator[Any]:
    """The messages that are in the log now, as rows of MESSAGE_SCHEMA, partition by partition.

    `positions`: where to begin in each; None: at the oldest message.
    """
    bounds = log.bounds([*positions])
    for number, position in positions.items():
        start, end = position or bounds.starts[number], bounds.ends[number]
        while start != end:
            planned = log.limit({number: start}, READ_MESSAGES, bounds, max_bytes=READ_BYTES)
            for rows in log.rows(number, start, planned[number], max_messages=READ_MESSAGES):
                yield from rows.to_pylist()
            start = planned[number]


def named_value(value: bytes, max_bytes: int | None = None) -> tuple[str, str]:
    """`value` and its text, or `value_base64`; of the first bytes, not cut within a character."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return "value_base64", base64.b64encode(value[:max_bytes]).decode()
    return "value", value[:max_bytes].decode(errors="ignore")


def document(message: dict[str, Any], max_bytes: int) -> dict[str, Any]:
    """A row of MESSAGE_SCHEMA for JSON, cut as the API cuts it: to so many bytes of the value and
    characters of the key, and without headers that are longer in all (null).
    """
    name, value = named_value(message["value"], max_bytes)
    key, headers = message["key"], dict(message["headers"] or ())
    return {
        "partition": message["partition"],
        "position": message["position"],
        "key": None if key is None else key[:max_bytes],
        "headers": headers if _header_bytes(headers) <= max_bytes else None,
        "published_at": message["published_at"].isoformat(),
        "size_bytes": len(message["value"]),
        name: value,
    }


def _header_bytes(headers: Mapping[str, str]) -> int:
    return sum(len(name.encode()) + len(text.encode()) for name, text in headers.items())


def _line(message: dict[str, Any], max_bytes: int) -> str:
    return plain_json(json.dumps(document(message, max_bytes), ensure_ascii=False))


def text_of(message: dict[str, Any], max_bytes: int) -> str:
    """Two lines: where it is, and its value. Cut as by `document`."""
    name, value = named_value(message["value"], max_bytes)
    size, key = len(message["value"]), message["key"]
    headers = dict(message["headers"] or ())
    where = [
        f"partition {message['partition']} position {message['position']}",
        f"{message['published_at']:%Y-%m-%d %H:%M:%S} UTC",
    ]
    if key is not None:
        where.append(f"key {_word(key[:max_bytes])}{_more(len(key), max_bytes)}")
    if (header_bytes := _header_bytes(headers)) <= max_bytes:
        where += [f"{_word(header)}={_word(content)}" for header, content in headers.items()]
    else:
        where.append(f"headers of {counted(header_bytes, 'byte')}")
    where.append(counted(size, "byte"))
    kind = "base64 " if name == "value_base64" else ""
    shown = plain_line(f"{kind}{value}{_more(size, max_bytes)}")
    return f"{plain_line('  '.join(where))}\n  {shown}"


def _word(text: str) -> str:
    """A text of strangers among ours: in quotes where it could be taken for more than one."""
    return text if _WORD.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _more(size: int, shown: int) -> str:
    return " …" if size > shown else ""
