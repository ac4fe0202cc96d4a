"""The options of a write: names, defaults and allowed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from counterpoise.spark.errors import InvalidOption
from counterpoise.spark.options import choice_of, known_options, seconds_of, service_url

NAMES: Mapping[str, str] = {
    "queue": "the queue to write to (required)",
    "url": "the service, default COUNTERPOISE_URL or http://127.0.0.1:8640",
    "logUrl": "the URL of the log, default from the service; a secret",
    "name": "the name of what is written: rows written under it are not written again",
    "repeatable": "true: a task that is repeated has the same rows in the same order",
    "writeTimeoutSeconds": "how long a task tries to write to a log that is away",
}
# Of Spark's own; it passes them on.
_OF_SPARK = frozenset({"checkpointlocation", "queryname"})
DEFAULT_NAME = "spark"
MOST_NAME_BYTES = 80
"""With the ids of a queue and its log it fits into a publisher's 200 bytes."""
WRITE_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class WriteOptions:
    """The checked options. `log_url` is a secret and not shown."""

    queue: str
    url: str | None = None
    log_url: str | None = field(default=None, repr=False)
    name: str | None = None
    repeatable: bool = False
    write_timeout_seconds: float = WRITE_TIMEOUT_SECONDS


def is_for_writing(given: Mapping[str, str]) -> bool:
    """Whether there are options that only a write has."""
    only = {"name", "repeatable", "writetimeoutseconds", *_OF_SPARK}
    return any(name.lower() in only for name in given)


def check_name(name: str) -> str:
    """The name of what is written. Raises ValueError, whose text says what is allowed."""
    if not 1 <= len(name.encode()) <= MOST_NAME_BYTES or not name.isprintable():
        raise ValueError(f"has 1 to {MOST_NAME_BYTES} bytes of printable characters, not {name!r}")
    return name


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options as Spark passes them. Raises InvalidOption."""
    options = known_options(
        {name: text for name, text in given.items() if name.lower() not in _OF_SPARK}, NAMES
    )
    queue = options.get("queue", "")
    if not queue:
        raise InvalidOption("the option 'queue' is missing: name the queue to write to")
    name = options.get("name")
    if name is not None:
        try:
            check_name(name)
        except ValueError as error:
            raise InvalidOption(f"the option 'name' {error}") from None
    return WriteOptions(
        queue=queue,
        url=service_url(options),
        log_url=options.get("logUrl") or None,
        name=name,
        repeatable=choice_of(options, "repeatable", ("false", "true")) == "true",
        write_timeout_seconds=seconds_of(
            options, "writeTimeoutSeconds", WRITE_TIMEOUT_SECONDS, 0.1
        ),
    )
