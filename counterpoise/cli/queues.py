"""`counterpoise queues …`: list, create, show, change, resize, delete."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Annotated, Any

import typer

from counterpoise.cli.consumer_groups import Transfer, offsets_of_group
from counterpoise.cli.output import (
    AsJson,
    QueueName,
    Url,
    console,
    counted,
    finite,
    print_json,
    table,
)
from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError, QueueUnreadable
from counterpoise.logs.address import kind_of
from counterpoise.wire import Queue

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Queues: list, create, show, change, resize, delete.",
)


# Queues whose logs are asked at the same time: one that is away takes a second and a half.
PARALLEL_CALLS = 8
# The log of a new queue is asked for the end of each partition at which a position is given.
CREATE_SECONDS = 60.0


class AccessChoice(StrEnum):
    EXCLUSIVE = "exclusive"
    NON_EXCLUSIVE = "non_exclusive"


class Consumers(StrEnum):
    PYTHON = "python"
    SPARK = "spark"


# A Spark application releases a partition between two micro-batches, so a handoff takes seconds. A
# plain consumer releases it after the message in hand, and the defaults of the service fit.
FITTING: Mapping[Consumers, Mapping[str, Any]] = {
    Consumers.PYTHON: {},
    Consumers.SPARK: {"max_handoff_time": 30.0},
}


class Start(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"


# Short metavars: with the values in them, the names of the options are cut off at 80 columns.
Access = Annotated[
    AccessChoice | None,
    typer.Option(
        metavar="TYPE",
        help="non_exclusive: the partitions are shared (default); exclusive: one flow owns all.",
    ),
]
RebalanceDelay = Annotated[
    float | None,
    typer.Option(callback=finite, help="The holddown before a rebalance, in seconds (default 5)."),
]
MaxHandoffTime = Annotated[
    float | None,
    typer.Option(
        callback=finite, help="How long an owner may take to finish, in seconds (default 3)."
    ),
]
MaxWarmupTime = Annotated[
    float | None,
    typer.Option(
        callback=finite, help="How long a successor may warm up, in seconds (default 600)."
    ),
]
MaxConcurrentHandoffs = Annotated[
    int | None, typer.Option(help="Handoffs at the same time (default: all).")
]
RetentionSeconds = Annotated[
    float | None,
    typer.Option(
        callback=finite,
        help="How long the built-in log keeps processed messages, in seconds (default 86400).",
        show_default=False,
    ),
]
RetentionBytes = Annotated[
    int | None,
    typer.Option(
        help="How many bytes of processed messages it keeps, about (default 1073741824).",
        show_default=False,
    ),
]
LogName = Annotated[
    str | None, typer.Option("--log", help="Where the messages are (default builtin:QUEUE).")
]
StartAt = Annotated[
    Start | None,
    typer.Option(
        "--start",
        metavar="WHERE",
        help="Where partitions without a position begin: earliest (default) or latest.",
    ),
]
ORDERED_RESIZE = "Keep the order of each key across resizes"
OrderedResize = Annotated[
    bool | None,
    typer.Option(
        "--ordered-resize/--no-ordered-resize",
        help=f"{ORDERED_RESIZE}, or not (fixed queues on the built-in log only).",
        show_default=False,
    ),
]
Mirror = Annotated[
    bool | None,
    typer.Option(
        "--mirror/--no-mirror",
        help="Mirror the positions into the consumer group counterpoise.QUEUE of Kafka, or not "
        "(logs in Kafka only).",
        show_default=False,
    ),
]
MirrorGroup = Annotated[
    str | None,
    typer.Option(
        "--mirror-group", metavar="GROUP", help="Mirror them into this group.", show_default=False
    ),
]
Dynamic = Annotated[
    bool,
    typer.Option(
        "--dynamic",
        help="Each partition takes a range of the key's hash, and can be split and merged "
        "(built-in log only).",
    ),
]
Discard = Annotated[
    bool,
    typer.Option("--discard", help="Remove surplus partitions at once, with their messages."),
]


class MessagesUnprocessed(CounterpoiseError):
    """The queue has messages that no consumer has processed."""

    code = "messages_unprocessed"


def _given(**settings: Any) -> dict[str, Any]:
    """The given settings; 0 is a given value, None is not."""
    return {name: value for name, value in settings.items() if value is not None}


def _mirrored(queue: str, mirror: bool | None, group: str | None) -> dict[str, str | None]:
    """The setting of the mirror, if it is given."""
    if group is not None:
        if mirror is False:
            raise typer.BadParameter("give either --mirror-group or --no-mirror")
        return {"mirror_group": group}
    if mirror is None:
        return {}
    return {"mirror_group": f"counterpoise.{queue}" if mirror else None}


@app.command("list")
def list_queues(
    lag: Annotated[
        bool, typer.Option(help="Ask the logs how many messages are not processed yet.")
    ] = True,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the queues, with their consumers and how far these are behind."""
    with Client(url) as client:
        queues = client.queues()
        lags = _lags(client, queues) if lag else {}
    if as_json:
        print_json([{**queue.raw, "lag": lags.get(queue.name)} for queue in queues])
        return
    shown = table(
        "QUEUE", "STATUS", "PARTITIONS", "CONSUMERS", *(["LAG"] if lag else []), "LOG",
        right=("PARTITIONS", "CONSUMERS", "LAG"),
    )  # fmt: skip
    for queue in queues:
        behind = lags.get(queue.name)
        shown.add_row(
            queue.name,
            _status(queue),
            _count(queue),
            _consumers(queue),
            *(["?" if behind is None else str(behind)] if lag else []),
            queue.log,
        )
    console.print(shown)
    if not queues and console.is_terminal:
        console.print("no queues yet: counterpoise queues create NAME --partitions N")


def _lags(client: Client, queues: list[Queue]) -> dict[str, int | None]:
    """How far each queue is behind, as its log tells the service; None where it does not say."""

    def lag(queue: Queue) -> int | None:
        try:
            lags = [one.lag for one in client.partitions(queue.name)]
        except CounterpoiseError:  # deleted meanwhile, for one
            return None
        known = [one for one in lags if one is not None]
        return sum(known) if len(known) == len(lags) else None

    with ThreadPoolExecutor(PARALLEL_CALLS) as pool:
        return dict(zip((queue.name for queue in queues), pool.map(lag, queues), strict=True))


def _status(queue: Queue) -> str:
    """`Ready`, or what is going on: `Rebalancing, ScalingDown`; and what consumers report."""
    states = [one for one in (queue.rebalance_status, queue.scale_status) if one != "Ready"]
    counts = queue.raw.get("conditions") or {}
    told = [f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(counts.items())]
    return ", ".join([*(states or ["Ready"]), *told])


def _consumers(queue: Queue) -> str:
    standbys = queue.flow_count - queue.active_flow_count
    return f"{queue.flow_count}" + (f" ({standbys} idle)" if standbys > 0 else "")


@app.command("create")
def create_queue(
    name: QueueName,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            help="The number of partitions; not needed for a log that has partitions already.",
            show_default=False,
        ),
    ] = None,
    consumers: Annotated[
        Consumers,
        typer.Option(
            "--for",
            help="Defaults that fit these consumers; with spark, --max-handoff-time is 30.",
        ),
    ] = Consumers.PYTHON,
    access_type: Access = None,
    rebalance_delay: RebalanceDelay = None,
    max_handoff_time: MaxHandoffTime = None,
    max_warmup_time: MaxWarmupTime = None,
    max_concurrent_handoffs: MaxConcurrentHandoffs = None,
    retention_seconds: RetentionSeconds = None,
    retention_bytes: RetentionBytes = None,
    log: LogName = None,
    align_with: Annotated[
        str | None,
        typer.Option(
            help="A queue whose built-in log is read beside the log: equal partition numbers of "
            "both have one consumer.",
            show_default=False,
        ),
    ] = None,
    custom_log: Annotated[
        bool,
        typer.Option(
            "--custom-log", help="The log is of a kind that only your own consumers know."
        ),
    ] = False,
    start: StartAt = None,
    ordered_resize: Annotated[
        bool,
        typer.Option(
            "--ordered-resize",
            help=f"{ORDERED_RESIZE} (fixed queues on the built-in log only; default with a log "
            "of its own).",
        ),
    ] = False,
    no_ordered_resize: Annotated[
        bool, typer.Option("--no-ordered-resize", help="Do not keep it.")
    ] = False,
    dynamic: Dynamic = False,
    mirror: Annotated[
        bool,
        typer.Option(
            "--mirror",
            help="Mirror the positions into the consumer group counterpoise.QUEUE of Kafka (logs "
            "in Kafka only).",
        ),
    ] = False,
    mirror_group: MirrorGroup = None,
    from_group: Annotated[
        str | None,
        typer.Option(
            "--from-group",
            metavar="GROUP",
            help="Begin at the offsets of this consumer group of Kafka, which must have no active "
            "members.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="With --from-group: create nothing; show where the queue would begin."
        ),
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Create a queue."""
    if dry_run and from_group is None:
        raise typer.BadParameter("--dry-run is for --from-group")
    if from_group is not None and (log is None or kind_of(log) != "kafka"):
        raise typer.BadParameter(
            "only a log in Kafka has consumer groups: give --log kafka://host:port/TOPIC",
            param_hint="--from-group",
        )
    if ordered_resize and no_ordered_resize:
        raise typer.BadParameter("give either --ordered-resize or --no-ordered-resize")
    if log is not None and not custom_log and kind_of(log) is None:
        # Without the address, which may hold a secret.
        raise typer.BadParameter(
            "no client reads logs of this kind; known are builtin:QUEUE, "
            "redis://host:port/DB/NAME and kafka://host:port/TOPIC. With --custom-log, your own "
            "consumers read it",
            param_hint="--log",
        )
    if not (no_ordered_resize or dynamic or align_with) and log in (None, f"builtin:{name}"):
        # It costs nothing until the queue is resized (docs/logs.md).
        ordered_resize = True
    settings = _given(
        partitioning="dynamic" if dynamic else None,
        access_type=access_type,
        rebalance_delay=rebalance_delay,
        max_handoff_time=max_handoff_time,
        max_warmup_time=max_warmup_time,
        max_concurrent_handoffs=max_concurrent_handoffs,
        retention_seconds=retention_seconds,
        retention_bytes=retention_bytes,
        log=log,
        align_with=align_with,
        start=start,
        ordered_resize=ordered_resize or None,
    )
    settings.update(_mirrored(name, mirror or None, mirror_group))
    transfer: Transfer | None = None
    if from_group is not None and log is not None:
        begin = (start or Start.EARLIEST).value
        transfer = offsets_of_group(log, from_group, begin, dry_run=dry_run)
        settings.update(_given(positions=transfer.positions or None))
        if dry_run:
            _show_transfer(name, transfer, begin, as_json)
            return
    with Client(url, timeout_seconds=CREATE_SECONDS) as client:
        created = client.create_queue(name, partitions, **{**FITTING[consumers], **settings})
    if as_json:
        taken = {} if transfer is None else {"from_group": transfer.document()}
        print_json({**created.raw, **taken})
        return
    console.print(f"{name} created: {_count_and_log(created)}", soft_wrap=True)
    if transfer is not None:
        transfer.show("offset", str(created.raw["start"]))


def _show_transfer(name: str, transfer: Transfer, start: str, as_json: bool) -> None:
    """What a dry run has to say."""
    if as_json:
        print_json({"queue": name, "dry_run": True, **transfer.document()})
        return
    transfer.show("offset", start)
    console.print(
        f"{name} would begin at the offsets of {transfer.group}, "
        f"{counted(transfer.lag, 'message')} behind"
    )


@app.command("show")
def show_queue(name: QueueName, url: Url = None, as_json: AsJson = False) -> None:
    """Show a queue's settings."""
    with Client(url) as client:
        _show(client.queue(name), as_json)


@app.command("change")
def change_queue(
    name: QueueName,
    access_type: Access = None,
    rebalance_delay: RebalanceDelay = None,
    max_handoff_time: MaxHandoffTime = None,
    max_warmup_time: MaxWarmupTime = None,
    max_concurrent_handoffs: MaxConcurrentHandoffs = None,
    retention_seconds: RetentionSeconds = None,
    retention_bytes: RetentionBytes = None,
    start: StartAt = None,
    ordered_resize: OrderedResize = None,
    mirror: Mirror = None,
    mirror_group: MirrorGroup = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Change a queue's settings; omitted settings stay."""
    settings = _given(
        access_type=access_type,
        rebalance_delay=rebalance_delay,
        max_handoff_time=max_handoff_time,
        max_warmup_time=max_warmup_time,
        max_concurrent_handoffs=max_concurrent_handoffs,
        retention_seconds=retention_seconds,
        retention_bytes=retention_bytes,
        start=start,
        ordered_resize=ordered_resize,
    )
    settings.update(_mirrored(name, mirror, mirror_group))
    if not settings:
        raise typer.BadParameter("give at least one setting to change")
    with Client(url) as client:
        _show(client.change_queue(name, **settings), as_json)


@app.command("resize")
def resize_queue(
    name: QueueName,
    partitions: Annotated[
        int, typer.Argument(help="The new number of partitions.", show_default=False)
    ],
    discard: Discard = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Change the number of partitions; surplus ones are drained to their end first.

    Most keys get another partition then. With ordered resizes (queues create
    switches them on for the built-in log, queues change for existing queues)
    a partition waits for the older messages of its keys, so each key stays in
    order. 'counterpoise status' shows which one waits for which. The next
    resize is refused until then, and --discard always. Without them, messages
    that are published after the resize may be processed before older messages
    of their key that are still in the old partition.

    On other logs than the built-in one: stop publishing, wait until
    'counterpoise lag' shows 0, resize, and publish again.
    """
    with Client(url) as client:
        changed = client.change_queue(name, discard, partition_count=partitions)
    if as_json:
        print_json(changed.raw)
        return
    retiring = changed.operational_partition_count - changed.partition_count
    until = f"; {counted(retiring, 'surplus partition')} until read to the end" if retiring else ""
    console.print(f"{name} resized: {_count_and_log(changed)}{until}", soft_wrap=True)


@app.command("delete")
def delete_queue(
    name: QueueName,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Delete it even with messages that are not processed, and with bound consumers.",
        ),
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Delete a queue, and the messages of a built-in log that no other queue reads.

    A queue with messages that are not processed is deleted after a question,
    or with --force. With --force, consumers that are bound end: each logs one
    line.
    """
    with Client(url) as client:
        try:
            consumers = client.queue(name).flow_count
            loss = "" if force else _loss(client, name)
        except QueueUnreadable:
            # No consumer can read it again, and nothing else is left to do with it.
            consumers, loss = 0, ""
        if loss:
            if consumers:
                bound = counted(consumers, "bound consumer")
                raise MessagesUnprocessed(
                    f"{name} has {bound}, and {loss}; stop them first, or delete with --force"
                )
            if not _for_people():
                raise MessagesUnprocessed(f"{name} has {loss}; --force deletes it nevertheless")
            typer.confirm(f"{name} has {loss}. Delete it?", abort=True, err=True)
        client.delete_queue(name, force)
    if as_json:
        print_json({"queue": name, "consumers_ended": consumers})
        return
    ended = f"; {counted(consumers, 'consumer')} of it will end" if consumers else ""
    typer.echo(f"{name} deleted{ended}")


def _for_people() -> bool:
    """Whether a person is there to answer a question."""
    return sys.stdin.isatty()


def _loss(client: Client, name: str) -> str:
    """The messages that no consumer would process after the queue's end; empty without any."""
    lags = [one.lag for one in client.partitions(name)]
    known = sum(lag for lag in lags if lag is not None)
    if None in lags:
        return "an unknown number of messages that are not processed"
    verb = "is" if known == 1 else "are"
    return f"{counted(known, 'message')} that {verb} not processed" if known else ""


def _count_and_log(queue: Queue) -> str:
    return f"{counted(queue.partition_count, 'partition')}, log {queue.log}"


def _count(queue: Queue) -> str:
    retiring = queue.operational_partition_count - queue.partition_count
    return f"{queue.partition_count}" + (f" +{retiring}" if retiring > 0 else "")


def _show(queue: Queue, as_json: bool) -> None:
    if as_json:
        print_json(queue.raw)
        return
    shown = table("", "")
    shown.show_header = False
    for name, value in queue.raw.items():
        shown.add_row(name.replace("_", " "), "-" if value is None else str(value))
    console.print(shown)
