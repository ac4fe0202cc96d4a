"""The options of the source: names, defaults and allowed values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from counterpoise.calls import base_url
from counterpoise.errors import InvalidUrl
from counterpoise.spark.errors import InvalidOption
from counterpoise.spark.plan.edges import Edge, ending_edge, starting_edge
from counterpoise.spark.plan.floor import EARLIEST, Floor, floor_of

# The limits of a query's first micro-batches. They grow while micro-batches are short
# (`counterpoise.spark.run.batch_limit`), so that a micro-batch fits into a handoff, however large
# the backlog is.
DEFAULT_MESSAGES_PER_TRIGGER = 20_000
DEFAULT_BYTES_PER_TRIGGER = 64 * 1024 * 1024
MOST_FLOWS = 64

# name -> description, for the message that lists the options
NAMES: Mapping[str, str] = {
    "queue": "the queue to read (required)",
    "url": "the service, default COUNTERPOISE_URL or http://127.0.0.1:8640",
    "instanceId": "the same over restarts: a restarted query gets its partitions back at once",
    "clientName": "the name that people see",
    "leaseSeconds": "how long the partitions outlive a dead application, 1..3600",
    "flows": "a larger share: how many flows the query binds, 1..64",
    "maxMessagesPerTrigger": "the most a micro-batch reads, or 'unlimited'; default: for a second",
    "maxBytesPerTrigger": "about the most bytes of values it reads (64m), or 'unlimited'",
    "maxBatchSeconds": "a query stuck for longer loses its lease",
    "maxInputPartitions": "the most tasks a micro-batch is read with, default the cores",
    "logUrl": "the URL of the log, default from the service; a secret",
    "onTrimmed": "fail or earliest: when messages were trimmed before they were read",
    "warmup": "true: learn of partitions before they come, and restore their state",
    "warmupFrom": "earliest, messages (50000) or time (2h) of history, or snapshot",
    "startTimeoutSeconds": "how long a starting query tries to reach service and log",
    "readTimeoutSeconds": "how long a task tries to read from a log that is away",
    "startingPositions": "batch: earliest, committed, or positions as JSON",
    "endingPositions": "batch: latest, committed, or positions as JSON",
}
_BATCH_ONLY = frozenset({"startingPositions", "endingPositions"})
# Options that need a flow or micro-batches. A batch read has neither.
_STREAM_ONLY = frozenset(
    {
        "instanceId",
        "clientName",
        "leaseSeconds",
        "flows",
        "maxMessagesPerTrigger",
        "maxBytesPerTrigger",
        "maxBatchSeconds",
        "warmup",
        "warmupFrom",
    }
)
# Names of the same options in other Spark sources.
_ELSEWHERE: Mapping[str, str] = {
    "topic": "queue",
    "subscribe": "queue",
    "assign": "queue",
    "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "minpartitions": "maxInputPartitions",
    "failondataloss": "onTrimmed",
    "startingoffsets": "startingPositions",
    "endingoffsets": "endingPositions",
}
_BY_LOWER = {name.lower(): name for name in NAMES}


@dataclass(frozen=True)
class SourceOptions:
    """The checked options. Times in seconds. `log_url` is a secret and not shown."""

    queue: str
    url: str | None = None
    instance_id: str | None = None
    client_name: str | None = None
    lease_seconds: float = 10.0
    flows: int = 1
    max_messages_per_trigger: int | None = DEFAULT_MESSAGES_PER_TRIGGER
    max_bytes_per_trigger: int | None = DEFAULT_BYTES_PER_TRIGGER
    max_batch_seconds: float = 600.0
    max_input_partitions: int | None = None
    log_url: str | None = field(default=None, repr=False)
    on_trimmed: str = "fail"
    warmup: bool = False
    warmup_from: Floor = EARLIEST
    start_timeout_seconds: float = 30.0
    read_timeout_seconds: float = 3600.0
    starting: Edge = "earliest"
    ending: Edge = "latest"
    # The names of the options that the user has given.
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    @property
    def names_its_limit(self) -> bool:
        """Whether the user has said how many messages a micro-batch may have."""
        return (
            "maxMessagesPerTrigger" in self.given
            or self.max_messages_per_trigger != DEFAULT_MESSAGES_PER_TRIGGER
        )

    @property
    def names_its_bytes(self) -> bool:
        """Whether the user has said how many bytes a micro-batch may have."""
        return (
            "maxBytesPerTrigger" in self.given
            or self.max_bytes_per_trigger != DEFAULT_BYTES_PER_TRIGGER
        )

    def for_stream(self) -> SourceOptions:
        """Raises InvalidOption for options that only a batch read has."""
        self._refuse(_BATCH_ONLY, "a batch read (spark.read); a stream goes on from positions")
        return self

    def for_batch(self) -> SourceOptions:
        """Raises InvalidOption for options that only a stream has."""
        self._refuse(_STREAM_ONLY, "a stream (spark.readStream); a batch read binds no flow")
        return self

    def _refuse(self, names: frozenset[str], whose: str) -> None:
        wrong = sorted(self.given & names)
        if wrong:
            raise InvalidOption(f"the option {wrong[0]!r} belongs to {whose}: leave it out")

    def for_tasks(self) -> SourceOptions:
        """The options without the secret. A task gets its log access with its slices."""
        return replace(self, log_url=None)


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """The options as Spark passes them, with names in lower case. Raises InvalidOption."""
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
    if "warmupFrom" in options and options.get("warmup", "").lower() != "true":
        raise InvalidOption("the option 'warmupFrom' does nothing without 'warmup': set it to true")
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
        flows=_count(options, "flows", MOST_FLOWS) or 1,
        max_messages_per_trigger=_messages(options),
        max_bytes_per_trigger=_bytes(options),
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
        starting=starting_edge(options.get("startingPositions")),
        ending=ending_edge(options.get("endingPositions")),
        given=frozenset(options),
    )


def _unknown(key: str) -> str:
    if key.lower() in _ELSEWHERE:
        return f"unknown option {key!r}: did you mean {_ELSEWHERE[key.lower()]!r}?"
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


def _count(options: Mapping[str, str], name: str, most: int | None = None) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 16) or not (
        1 <= int(text) <= (most or int(text))
    ):
        span = "of at least 1" if most is None else f"in 1..{most}"
        raise InvalidOption(f"the option {name!r} is a number {span}, not {text!r}")
    return int(text)


def _messages(options: Mapping[str, str]) -> int | None:
    name = "maxMessagesPerTrigger"
    if options.get(name, "").lower() == "unlimited":
        return None
    return _count(options, name) or DEFAULT_MESSAGES_PER_TRIGGER


def _bytes(options: Mapping[str, str]) -> int | None:
    name = "maxBytesPerTrigger"
    text = options.get(name, "").lower()
    if text == "unlimited":
        return None
    if not text:
        return DEFAULT_BYTES_PER_TRIGGER
    match = re.fullmatch(r"([0-9]{1,15})([kmgt]?)b?", text)
    if match is None or int(match[1]) < 1:
        raise InvalidOption(
            f"the option {name!r} is bytes (at least 1; 65536, 512k, 64m, 1g) or 'unlimited', "
            f"not {options[name]!r}"
        )
    return int(match[1]) << (10 * " kmgt".index(match[2] or " "))


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
