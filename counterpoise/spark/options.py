"""The options of the source: their names, defaults and what they may be."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from counterpoise.calls import base_url
from counterpoise.errors import InvalidUrl
from counterpoise.spark.errors import InvalidOption
from counterpoise.spark.warmup.floor import EARLIEST, Floor, floor_of

# What a micro-batch may hold unless the user says otherwise: about a second's work of two cores, so
# that it fits into a handoff whatever the backlog.
DEFAULT_MESSAGES_PER_TRIGGER = 20_000

# name -> what it is, for the message that lists them
NAMES: Mapping[str, str] = {
    "queue": "the queue to read (required)",
    "url": "the service, default COUNTERPOISE_URL or http://127.0.0.1:8640",
    "instanceId": "the same over restarts: a restarted query gets its partitions back at once",
    "clientName": "what people see this consumer as",
    "leaseSeconds": "how long the partitions outlive a dead application, 1..3600",
    "maxMessagesPerTrigger": "the most a micro-batch reads, or 'unlimited'",
    "maxBatchSeconds": "a query stuck for longer loses its lease",
    "maxInputPartitions": "the most tasks a micro-batch is read with, default the cores",
    "logUrl": "how to reach the log, default what the service says; a secret",
    "onTrimmed": "fail or earliest: when messages were trimmed before they were read",
    "warmup": "true: be told of partitions before they come, and restore their state",
    "warmupFrom": "earliest, messages (50000) or time (2h) of history, or snapshot",
    "startTimeoutSeconds": "how long a starting query tries to reach service and log",
    "readTimeoutSeconds": "how long a task tries to read from a log that is away",
}
_BY_LOWER = {name.lower(): name for name in NAMES}


@dataclass(frozen=True)
class SourceOptions:
    """The options, checked. Times in seconds. `log_url` is a secret and not shown."""

    queue: str
    url: str | None = None
    instance_id: str | None = None
    client_name: str | None = None
    lease_seconds: float = 10.0
    max_messages_per_trigger: int | None = DEFAULT_MESSAGES_PER_TRIGGER
    max_batch_seconds: float = 600.0
    max_input_partitions: int | None = None
    log_url: str | None = field(default=None, repr=False)
    on_trimmed: str = "fail"
    warmup: bool = False
    warmup_from: Floor = EARLIEST
    start_timeout_seconds: float = 30.0
    read_timeout_seconds: float = 120.0

    def for_tasks(self) -> SourceOptions:
        """The options without the secret: a task gets its access with its slices."""
        return replace(self, log_url=None)


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """The options as Spark gives them, all names in lower case. Raises InvalidOption."""
    options: dict[str, str] = {}
    for key, value in given.items():
        name = _BY_LOWER.get(key.lower())
        if name is None:
            raise InvalidOption(_unknown(key))
        options[name] = value.strip()
    defaults = SourceOptions(queue="")
    queue = options.get("queue", "")
    if not queue:
        raise InvalidOption("the option 'queue' is missing: name the queue to read")
    url = options.get("url") or None
    if url is not None:
        try:
            base_url(url)
        except InvalidUrl as error:
            raise InvalidOption(f"the option 'url': {error}") from None
    return SourceOptions(
        queue=queue,
        url=url,
        instance_id=options.get("instanceId") or None,
        client_name=options.get("clientName") or None,
        lease_seconds=_seconds(options, "leaseSeconds", defaults.lease_seconds, 1, 3600),
        max_messages_per_trigger=_messages(options),
        max_batch_seconds=_seconds(options, "maxBatchSeconds", defaults.max_batch_seconds, 0.1),
        max_input_partitions=_count(options, "maxInputPartitions"),
        log_url=options.get("logUrl") or None,
        on_trimmed=_choice(options, "onTrimmed", ("fail", "earliest")),
        warmup=_choice(options, "warmup", ("false", "true")) == "true",
        warmup_from=_floor(options, "warmupFrom"),
        start_timeout_seconds=_seconds(
            options, "startTimeoutSeconds", defaults.start_timeout_seconds, 0
        ),
        read_timeout_seconds=_seconds(
            options, "readTimeoutSeconds", defaults.read_timeout_seconds, 0
        ),
    )


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key.lower(), _BY_LOWER, n=1, cutoff=0.6)
    if near:
        return f"unknown option {key!r}: did you mean {_BY_LOWER[near[0]]!r}?"
    if key.lower() == "path":
        return "the source takes no path: name the queue with .option('queue', ...)"
    return f"unknown option {key!r}: the options are {', '.join(NAMES)}"


def _seconds(
    options: Mapping[str, str], name: str, default: float, least: float, most: float | None = None
) -> float:
    text = options.get(name)
    if text is None:
        return default
    span = f"{least}..{most}" if most is not None else f"at least {least}"
    try:
        value = float(text)
    except ValueError:
        raise InvalidOption(f"the option {name!r} is seconds ({span}), not {text!r}") from None
    if not least <= value <= (most if most is not None else 1e9):
        raise InvalidOption(f"the option {name!r} is seconds ({span}), not {text!r}")
    return value


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise InvalidOption(f"the option {name!r} is a number of at least 1, not {text!r}")
    return int(text)


def _messages(options: Mapping[str, str]) -> int | None:
    name = "maxMessagesPerTrigger"
    if options.get(name, "").lower() == "unlimited":
        return None
    return _count(options, name) or DEFAULT_MESSAGES_PER_TRIGGER


def _floor(options: Mapping[str, str], name: str) -> Floor:
    text = options.get(name)
    if text is None:
        return EARLIEST
    try:
        return floor_of(text)
    except ValueError as error:
        raise InvalidOption(f"the option {name!r} {error}, not {text!r}") from None


def _choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = options.get(name, choices[0]).lower()
    if text not in choices:
        raise InvalidOption(f"the option {name!r} is one of {', '.join(choices)}, not {text!r}")
    return text
