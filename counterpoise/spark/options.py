"""The options of the source: names, defaults and allowed values.

Two of them have a form of their own.

An *edge* is the start or the end of a batch read (startingPositions, endingPositions): a word, or
positions of the partitions to read. So JSON names both the partitions and the positions; partitions
that it does not name are left out. Or it is a time (startingTimestamp, endingTimestamp): the place
in each partition where the messages begin that were published at this time or later.

| edge | start | end |
|---|---|---|
| `earliest` | the first message that the log still has | |
| `latest` | | the end of the log when the read is planned |
| `committed` | the committed position: what is unprocessed | the same: what is processed |
| a time | what was published since | what was published before |

A *floor* is the start of the history from which state is restored (warmupFrom). It is resolved once
(`find_floor`), when a chain of replays begins. After that it is a position in the offset. So it
does not move with the clock while history is replayed.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from counterpoise.calls import base_url
from counterpoise.durations import duration_seconds
from counterpoise.errors import InvalidSettings
from counterpoise.spark.errors import InvalidOption
from counterpoise.spark.kafka_options import refuse_kafkas
from counterpoise.wire import MOST_PARTITIONS, MOST_WEIGHT, QUEUE_NAME_PATTERN

if TYPE_CHECKING:
    from counterpoise.logs import Log


Edge = str | datetime | Mapping[int, str]

_START_WORDS = ("earliest", "committed")
_END_WORDS = ("latest", "committed")


def starting_edge(text: str | None) -> Edge:
    """The option `startingPositions`. Raises InvalidOption."""
    return _edge("startingPositions", text or "earliest", _START_WORDS)


def ending_edge(text: str | None) -> Edge:
    """The option `endingPositions`. Raises InvalidOption."""
    return _edge("endingPositions", text or "latest", _END_WORDS)


def _edges(options: Mapping[str, str], at: datetime) -> tuple[Edge, Edge]:
    """The start and the end of a batch read; `at`: the present time. Raises InvalidOption."""
    for side in ("starting", "ending"):
        if {f"{side}Positions", f"{side}Timestamp"} <= options.keys():
            raise InvalidOption(
                f"'{side}Positions' and '{side}Timestamp' both say the same edge: leave one out"
            )
    since = _moment(options, "startingTimestamp", at)
    until = _moment(options, "endingTimestamp", at)
    if since is not None and until is not None and since > until:
        raise InvalidOption(
            f"'startingTimestamp' ({since}) is later than 'endingTimestamp' ({until})"
        )
    return (
        since or starting_edge(options.get("startingPositions")),
        until or ending_edge(options.get("endingPositions")),
    )


def _moment(options: Mapping[str, str], name: str, at: datetime) -> datetime | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        if re.fullmatch("[0-9]{1,15}", text, re.ASCII):
            return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=int(text))
        if (ago := duration_seconds(text.lower())) is not None:
            return at - timedelta(seconds=ago)
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise InvalidOption(
        f"the option {name!r} is milliseconds since 1970, a time with its zone "
        f"(2026-11-29T14:00:00Z) or a time before now (90s, 30m, 2h, 7d), not {text!r}"
    )


def _edge(name: str, text: str, words: tuple[str, ...]) -> Edge:
    if text.lower() in words:
        return text.lower()
    wanted = f"is {', '.join(words)}, or JSON that names the partitions to read"
    example = f'{{"0": "12", "1": "{words[0]}"}}'
    refusal = InvalidOption(f"the option {name!r} {wanted} ({example}), not {text!r}")
    try:
        document = json.loads(text, object_pairs_hook=_without_repetition)
    except ValueError as error:
        raise refusal from error
    if not isinstance(document, dict) or not document:
        raise refusal
    positions: dict[int, str] = {}
    for key, value in document.items():
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise refusal
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise refusal
        word = str(value).strip().lower()
        if word in {"earliest", "latest", "committed"} - set(words):
            raise refusal
        positions[int(key)] = word if word in words else str(value).strip()
    return positions


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a partition is named twice")
    return document


def is_word(edge: Edge, number: int) -> bool:
    """Whether the edge of this partition is a word or a time."""
    return not isinstance(edge, Mapping) or edge[number] in (*_START_WORDS, *_END_WORDS)


# No log reaches further back, and subtracting a longer time would overflow the calendar.
_LONGEST_SECONDS = 36_500 * 86400


@dataclass(frozen=True, slots=True)
class Floor:
    """At most so many messages before the end of the replay, or so many seconds before now.

    With neither it is the log's start. `snapshot`: there is no replay, the driver restores state
    itself.
    """

    messages: int | None = None
    seconds: float | None = None
    snapshot: bool = False


EARLIEST = Floor()


def floor_of(text: str) -> Floor:
    """The floor that an option names. A time of more than a century is `earliest`.

    Raises ValueError, whose text lists what is allowed.
    """
    lowered = text.strip().lower()
    if lowered == "earliest":
        return EARLIEST
    if lowered == "snapshot":
        return Floor(snapshot=True)
    if (seconds := duration_seconds(lowered)) is not None:
        return Floor(seconds=seconds) if seconds <= _LONGEST_SECONDS else EARLIEST
    if re.fullmatch("[0-9]{1,18}", lowered):
        return Floor(messages=int(lowered))
    raise ValueError(
        "is earliest, a number of messages (50000), a time (90s, 30m, 2h, 7d) or snapshot"
    )


def find_floor(
    floor: Floor,
    log: Log,
    partition: int,
    first: str,
    target: str,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> str:
    """The position in [first, target] where the history of `partition` begins.

    `first` is where the log's partition starts. If positions are not numbers, the result is
    `first`. If the floor is a time, the log is asked (`Log.first_since`). Raises LogError.
    """
    if log.compare(first, target) >= 0 or not (first.isdecimal() and target.isdecimal()):
        return first
    if floor.messages is not None:
        return str(max(int(first), int(target) - floor.messages))
    if floor.seconds is None:
        return first
    return log.first_since(partition, first, target, now() - timedelta(seconds=floor.seconds))


# The limit of a query's first micro-batches. It follows what micro-batches take
# (`counterpoise.spark.source.cycles`), so that one fits into a handoff, however large the backlog
# and however slow the sink is.
DEFAULT_MESSAGES_PER_TRIGGER = 2_000
DEFAULT_BYTES_PER_TRIGGER = 64 * 1024 * 1024
# More tasks of one micro-batch cost Spark more than they bring.
MOST_TASKS = 100_000

# name -> description, for the message that lists the options
NAMES: Mapping[str, str] = {
    "queue": "the queue to read (required)",
    "url": "the service, default COUNTERPOISE_URL or http://127.0.0.1:8640",
    "instanceId": "the same over restarts: a restarted query gets its partitions back at once",
    "clientName": "the name that people see",
    "leaseSeconds": "how long the partitions outlive a dead application, 1..3600",
    "weight": "a larger share: 1..1000, compared with the weights of other consumers",
    "maxPartitions": "the query gets no more partitions than this",
    "maxMessagesPerTrigger": "the most a micro-batch reads, or 'unlimited'; default: for a second",
    "maxBytesPerTrigger": "about the most bytes of values it reads (64m), or 'unlimited'",
    "minOffsetsPerTrigger": "a micro-batch waits for so many messages, up to maxTriggerDelay",
    "maxTriggerDelay": "how long it waits for minOffsetsPerTrigger at most (90s, 15m, 2h)",
    "maxBatchSeconds": "a query stuck for longer loses its lease",
    "maxInputPartitions": "the most tasks a micro-batch is read with, default the cores",
    "minPartitions": "at least so many tasks: partitions are divided, without order among tasks",
    "maxRecordsPerPartition": "the most messages of a task: partitions are divided likewise",
    "logUrl": "the URL of the log, default from the service; a secret",
    "onTrimmed": "fail or earliest: when messages were trimmed before they were read",
    "warmup": "true: learn of partitions before they come, and restore their state",
    "warmupFrom": "earliest, messages (50000) or time (2h) of history, or snapshot",
    "stateOnHandoff": "refuse or lose: a query whose state Spark keeps, on a shared queue",
    "startTimeoutSeconds": "how long a starting query tries to reach service and log",
    "readTimeoutSeconds": "how long a task tries to read from a log that is away",
    "startingPositions": "batch: earliest, committed, or positions as JSON",
    "endingPositions": "batch: latest, committed, or positions as JSON",
    "startingTimestamp": "batch: what was published since (milliseconds, 2026-11-29T14:00Z, 2h)",
    "endingTimestamp": "batch: what was published before (the same)",
}
# With one of them a partition of the queue may be read by several tasks.
DIVIDING = ("minPartitions", "maxRecordsPerPartition")
_BATCH_ONLY = frozenset(
    {"startingPositions", "endingPositions", "startingTimestamp", "endingTimestamp"}
)
# Options that need a flow or micro-batches. A batch read has neither.
_STREAM_ONLY = frozenset(
    {
        "instanceId",
        "clientName",
        "leaseSeconds",
        "weight",
        "maxPartitions",
        "maxMessagesPerTrigger",
        "maxBytesPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "maxBatchSeconds",
        "warmup",
        "warmupFrom",
        "stateOnHandoff",
    }
)


@dataclass(frozen=True)
class SourceOptions:
    """The checked options. Times in seconds. `log_url` is a secret and not shown."""

    queue: str
    url: str | None = None
    instance_id: str | None = None
    client_name: str | None = None
    lease_seconds: float = 10.0
    weight: int = 1
    max_partitions: int | None = None
    max_messages_per_trigger: int | None = DEFAULT_MESSAGES_PER_TRIGGER
    max_bytes_per_trigger: int | None = DEFAULT_BYTES_PER_TRIGGER
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_seconds: float = 900.0
    max_batch_seconds: float = 600.0
    max_input_partitions: int | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    log_url: str | None = field(default=None, repr=False)
    on_trimmed: str = "fail"
    warmup: bool = False
    warmup_from: Floor = EARLIEST
    state_on_handoff: str = "refuse"
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
        self._refuse(_BATCH_ONLY, _A_BATCH_READ)
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


_A_BATCH_READ = (
    "a batch read (spark.read); a stream goes on from the queue's committed positions, which "
    "'counterpoise positions set QUEUE 2h' changes"
)


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """The options as Spark passes them, with names in lower case. Raises InvalidOption."""
    options = known_options(given, NAMES)
    defaults = SourceOptions(queue="")
    starting, ending = _edges(options, datetime.now(UTC))
    queue = options.get("queue", "")
    if not queue:
        raise InvalidOption("the option 'queue' is missing: name the queue to read")
    if not re.fullmatch(QUEUE_NAME_PATTERN, queue):
        raise InvalidOption(
            f"the option 'queue' is the name of one queue, not {queue!r}. Several queues, or a "
            "pattern: counterpoise.spark.read_queues(spark, ['orders', 'trips-*'])"
        )
    if "warmupFrom" in options and options.get("warmup", "").lower() != "true":
        raise InvalidOption("the option 'warmupFrom' does nothing without 'warmup': set it to true")
    _check_together(options)
    return SourceOptions(
        queue=queue,
        url=service_url(options),
        instance_id=options.get("instanceId") or None,
        client_name=options.get("clientName") or None,
        lease_seconds=seconds_of(options, "leaseSeconds", defaults.lease_seconds, 1, 3600),
        weight=_count(options, "weight", MOST_WEIGHT) or 1,
        max_partitions=_count(options, "maxPartitions", MOST_PARTITIONS),
        max_messages_per_trigger=_messages(options),
        max_bytes_per_trigger=_bytes(options),
        min_offsets_per_trigger=_count(options, "minOffsetsPerTrigger"),
        max_trigger_delay_seconds=_delay(options, defaults.max_trigger_delay_seconds),
        max_batch_seconds=seconds_of(options, "maxBatchSeconds", defaults.max_batch_seconds, 0.1),
        max_input_partitions=_count(options, "maxInputPartitions"),
        min_partitions=_count(options, "minPartitions", MOST_TASKS),
        max_records_per_partition=_count(options, "maxRecordsPerPartition"),
        log_url=options.get("logUrl") or None,
        on_trimmed=choice_of(options, "onTrimmed", ("fail", "earliest")),
        warmup=choice_of(options, "warmup", ("false", "true")) == "true",
        warmup_from=_floor(options, "warmupFrom"),
        state_on_handoff=choice_of(options, "stateOnHandoff", ("refuse", "lose")),
        start_timeout_seconds=seconds_of(
            options, "startTimeoutSeconds", defaults.start_timeout_seconds, 0
        ),
        read_timeout_seconds=seconds_of(
            options, "readTimeoutSeconds", defaults.read_timeout_seconds, 0
        ),
        starting=starting,
        ending=ending,
        given=frozenset(options),
    )


def _check_together(options: Mapping[str, str]) -> None:
    for name in DIVIDING:
        if name in options and "maxInputPartitions" in options:
            raise InvalidOption(
                f"the option {name!r} makes more tasks than 'maxInputPartitions' allows: leave one "
                "of them out"
            )
    if "maxTriggerDelay" in options and "minOffsetsPerTrigger" not in options:
        raise InvalidOption(
            "the option 'maxTriggerDelay' does nothing without 'minOffsetsPerTrigger': name how "
            "many messages to wait for, or leave it out"
        )
    least = _count(options, "minOffsetsPerTrigger")
    if least is not None and "maxMessagesPerTrigger" in options:
        most = _messages(options)
        if most is not None and least > most:
            raise InvalidOption(
                f"the option 'minOffsetsPerTrigger' ({least}) is above 'maxMessagesPerTrigger' "
                f"({most}): lower it, or raise the other"
            )


def known_options(given: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """The options under the names of `names`, whose case is ignored. Raises InvalidOption."""
    by_lower = {name.lower(): name for name in names}
    options: dict[str, str] = {}
    for key, value in given.items():
        name = by_lower.get(key.lower())
        if name is None:
            refuse_kafkas(key)
            raise InvalidOption(_unknown(key, by_lower))
        options[name] = value.strip()
    return options


# What people may call an option whose name has other letters.
_ALSO_CALLED = {"flows": "weight"}


def _unknown(key: str, by_lower: Mapping[str, str]) -> str:
    called = _ALSO_CALLED.get(key.lower(), key.lower())
    near = difflib.get_close_matches(called, by_lower, n=1, cutoff=0.6)
    if near:
        return f"unknown option {key!r}: did you mean {by_lower[near[0]]!r}?"
    if key.lower() == "path":
        return "the source takes no path: name the queue with .option('queue', ...)"
    return f"unknown option {key!r}: the options are {', '.join(by_lower.values())}"


def service_url(options: Mapping[str, str]) -> str | None:
    """The option `url`. Raises InvalidOption."""
    url = options.get("url") or None
    if url is not None:
        try:
            base_url(url)
        except InvalidSettings as error:
            raise InvalidOption(f"the option 'url': {error}") from None
    return url


def seconds_of(
    options: Mapping[str, str], name: str, default: float, least: float, most: float | None = None
) -> float:
    """An option in seconds. Raises InvalidOption."""
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


def _delay(options: Mapping[str, str], default: float) -> float:
    text = options.get("maxTriggerDelay")
    if text is None:
        return default
    seconds = duration_seconds(text.lower())
    if seconds is None or not 0 < seconds <= _LONGEST_SECONDS:
        raise InvalidOption(
            f"the option 'maxTriggerDelay' is a time with its unit (500ms, 90s, 15m, 2h, 1d), not "
            f"{text!r}"
        )
    return seconds


def _floor(options: Mapping[str, str], name: str) -> Floor:
    text = options.get(name)
    if text is None:
        return EARLIEST
    try:
        return floor_of(text)
    except ValueError as error:
        raise InvalidOption(f"the option {name!r} {error}, not {text!r}") from None


def choice_of(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """An option with these values, the first of which is the default. Raises InvalidOption."""
    text = options.get(name, choices[0]).lower()
    if text not in choices:
        raise InvalidOption(f"the option {name!r} is one of {', '.join(choices)}, not {text!r}")
    return text
