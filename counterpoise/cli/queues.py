"""`counterpoise queues …`: list, create, show, change, resize, delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from counterpoise.cli.options import InOrder, finite, json_option, queue_argument, service_options
from counterpoise.cli.output import (
    count_text,
    counted,
    for_people,
    headline_of,
    look_at,
    print_json,
    setting_text,
    tell,
    total_lag,
)
from counterpoise.cli.pauses import pause_queue, pause_text, resume_queue
from counterpoise.cli.pins import pin_partitions, unpin_partitions
from counterpoise.cli.previews import dry_run_option, show_previews
from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError, Invalid, QueueUnreadable
from counterpoise.headline import Headline
from counterpoise.wire import Queue

if TYPE_CHECKING:
    from counterpoise.cli.consumer_groups import Transfer


@click.group("queues", cls=InOrder)
def app() -> None:
    """Queues: list, create, show, change, resize, pause, resume, pin, unpin, delete."""


# Queues whose logs are asked at the same time: one that is away takes a second and a half.
PARALLEL_CALLS = 8
# The log of a new queue is asked for the end of each partition at which a position is given.
CREATE_SECONDS = 60.0


# A Spark application releases a partition between two micro-batches, so a handoff takes seconds. A
# plain consumer releases it after the message in hand, and the defaults of the service fit.
FITTING: Mapping[str, Mapping[str, Any]] = {
    "python": {},
    "spark": {"max_handoff_time": 30.0},
}


# Short metavars: with the values in them, the names of the options are cut off at 80 columns.
_SETTINGS = (
    click.option(
        "--access-type",
        type=click.Choice(("exclusive", "non_exclusive")),
        metavar="TYPE",
        help="non_exclusive: the partitions are shared (default); exclusive: one flow owns all.",
    ),
    click.option(
        "--rebalance-delay",
        type=float,
        callback=finite,
        help="The holddown before a rebalance, in seconds (default 5).",
    ),
    click.option(
        "--max-handoff-time",
        type=float,
        callback=finite,
        help="How long an owner may take to finish, in seconds (default 3).",
    ),
    click.option(
        "--max-warmup-time",
        type=float,
        callback=finite,
        help="How long a successor may warm up, in seconds (default 600).",
    ),
    click.option(
        "--max-concurrent-handoffs", type=int, help="Handoffs at the same time (default: all)."
    ),
    click.option(
        "--max-weight",
        type=int,
        help="The largest weight of a consumer; 1: all are equal (default 1000).",
    ),
    click.option(
        "--retention-seconds",
        type=float,
        callback=finite,
        help="How long the built-in log keeps processed messages, in seconds (default 86400).",
    ),
    click.option(
        "--retention-bytes",
        type=int,
        help="How many bytes of processed messages it keeps, about (default 1073741824).",
    ),
)


def settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """The settings that are given at creation and changed later, as `settings`."""
    for option in reversed(_SETTINGS):
        command = option(command)
    return command


start_option = click.option(
    "--start",
    type=click.Choice(("earliest", "latest")),
    metavar="WHERE",
    help="Where partitions without a position begin: earliest (default) or latest.",
)
ORDERED_RESIZE = "Keep the order of each key across resizes"
mirror_group_option = click.option(
    "--mirror-group", metavar="GROUP", help="Mirror them into this group."
)


def _given(**settings: Any) -> dict[str, Any]:
    """The given settings; 0 is a given value, None is not."""
    return {name: value for name, value in settings.items() if value is not None}


def _mirrored(queue: str, mirror: bool | None, group: str | None) -> dict[str, str | None]:
    """The setting of the mirror, if it is given."""
    if group is not None:
        if mirror is False:
            raise click.BadParameter("give either --mirror-group or --no-mirror")
        return {"mirror_group": group}
    if mirror is None:
        return {}
    return {"mirror_group": f"counterpoise.{queue}" if mirror else None}


@app.command("list")
@click.option(
    "--lag/--no-lag", default=True, help="Ask the logs how many messages are not processed yet."
)
@service_options
@json_option
def list_queues(lag: bool, url: str | None, as_json: bool) -> None:
    """List the queues, with their consumers and how far these are behind."""
    with Client(url) as client:
        queues = client.queues()
        looks = (
            _looks(client, queues) if lag else [(None, headline_of(one, None)) for one in queues]
        )
    if as_json:
        print_json(
            [{**one.raw, "lag": behind} for one, (behind, _) in zip(queues, looks, strict=True)]
        )
        return
    from counterpoise.cli.tables import console, table

    shown = table(
        "QUEUE", "STATUS", "PARTITIONS", "CONSUMERS", *(["LAG"] if lag else []), "LOG",
        right=("PARTITIONS", "CONSUMERS", "LAG"),
    )  # fmt: skip
    for queue, (behind, told) in zip(queues, looks, strict=True):
        shown.add_row(
            queue.name,
            told.with_status(_status(queue)),
            _count(queue),
            _consumers(queue),
            *([count_text(behind)] if lag else []),
            queue.log,
        )
    console.print(shown)
    if not queues and console.is_terminal:
        console.print("no queues yet: counterpoise queues create NAME --partitions N")


def _looks(client: Client, queues: list[Queue]) -> list[tuple[int | None, Headline]]:
    """How far each queue is behind, as its log tells the service, and its headline."""

    from concurrent.futures import ThreadPoolExecutor

    def look(queue: Queue) -> tuple[int | None, Headline]:
        try:
            partitions = client.partitions(queue.name)
            look = look_at(client, queue.name, partitions)
        except CounterpoiseError:  # deleted meanwhile, for one
            return None, headline_of(queue, None)
        return total_lag(partitions), headline_of(queue, look)

    with ThreadPoolExecutor(PARALLEL_CALLS) as pool:
        return [*pool.map(look, queues)]


def _status(queue: Queue) -> str:
    """What goes on: `Ready`, `Rebalancing, ScalingDown`."""
    states = [one for one in (queue.rebalance_status, queue.scale_status) if one != "Ready"]
    return ", ".join(states or ["Ready"])


def _consumers(queue: Queue) -> str:
    standbys = queue.flow_count - queue.active_flow_count
    return f"{queue.flow_count:,}" + (f" ({standbys:,} idle)" if standbys > 0 else "")


@app.command("create")
@queue_argument
@click.option(
    "--partitions",
    "-p",
    type=int,
    help="The number of partitions; not needed for a log that has partitions already.",
)
@click.option(
    "--for",
    "consumers",
    type=click.Choice(tuple(FITTING)),
    default="python",
    help="Defaults that fit these consumers; with spark, --max-handoff-time is 30.",
)
@settings_options
@click.option("--log", help="Where the messages are (default builtin:QUEUE).")
@click.option(
    "--align-with",
    help="A queue whose built-in log is read beside the log: equal partition numbers of "
    "both have one consumer.",
)
@click.option(
    "--custom-log", is_flag=True, help="The log is of a kind that only your own consumers know."
)
@start_option
@click.option(
    "--ordered-resize/--no-ordered-resize",
    default=None,
    help=f"{ORDERED_RESIZE}, or not (default: where the log can; fixed queues on the built-in "
    "log).",
)
@click.option(
    "--dynamic",
    "partitioning",
    flag_value="dynamic",
    show_default="fixed",
    help="Each partition takes a range of the key's hash, and can be split and merged "
    "(built-in log only).",
)
@click.option(
    "--mirror",
    is_flag=True,
    help="Mirror the positions into the consumer group counterpoise.QUEUE of Kafka (logs "
    "in Kafka only).",
)
@mirror_group_option
@click.option(
    "--from-group",
    metavar="GROUP",
    help="Begin at the offsets of this consumer group of Kafka, which must have no active members.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="With --from-group: create nothing; show where the queue would begin.",
)
@service_options
@json_option
def create_queue(
    queue: str,
    partitions: int | None,
    consumers: str,
    custom_log: bool,
    mirror: bool,
    mirror_group: str | None,
    from_group: str | None,
    dry_run: bool,
    url: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Create a queue."""
    settings = {
        **FITTING[consumers],
        **_given(**options),
        **_mirrored(queue, mirror or None, mirror_group),
    }
    _check_log(settings.get("log"), custom_log, from_group)
    if dry_run and from_group is None:
        raise click.BadParameter("--dry-run is for --from-group")
    transfer: Transfer | None = None
    if from_group is not None:
        from counterpoise.cli.consumer_groups import offsets_of_group

        begin = settings.get("start", "earliest")
        transfer = offsets_of_group(settings["log"], from_group, begin, dry_run=dry_run)
        if dry_run:
            _show_transfer(queue, transfer, begin, as_json)
            return
        settings |= _given(positions=transfer.positions or None)
    with Client(url, timeout_seconds=CREATE_SECONDS) as client:
        try:
            created = client.create_queue(queue, partitions, **settings)
        except Invalid as error:
            if partitions is None and "partition_count" in str(error):
                raise click.BadParameter(
                    "a log without partitions of its own needs their number",
                    param_hint="--partitions",
                ) from None
            raise
    if as_json:
        taken = {} if transfer is None else {"from_group": transfer.document()}
        print_json({**created.raw, **taken})
        return
    tell(f"{queue} created: {_count_and_log(created)}")
    if transfer is not None:
        transfer.show("offset", str(created.raw["start"]))


def _check_log(log: str | None, custom: bool, from_group: str | None) -> None:
    from counterpoise.logs.address import kind_of

    kind = None if log is None else kind_of(log)
    if from_group is not None and kind != "kafka":
        raise click.BadParameter(
            "only a log in Kafka has consumer groups: give --log kafka://host:port/TOPIC",
            param_hint="--from-group",
        )
    if log is not None and not custom and kind is None:
        # Without the address, which may hold a secret.
        raise click.BadParameter(
            "no client reads logs of this kind; known are builtin:QUEUE, "
            "redis://host:port/DB/NAME and kafka://host:port/TOPIC. With --custom-log, your own "
            "consumers read it",
            param_hint="--log",
        )


def _show_transfer(name: str, transfer: Transfer, start: str, as_json: bool) -> None:
    """What a dry run has to say."""
    if as_json:
        print_json({"queue": name, "dry_run": True, **transfer.document()})
        return
    transfer.show("offset", start)
    tell(
        f"{name} would begin at the offsets of {transfer.group}, "
        f"{counted(transfer.lag, 'message')} behind"
    )


@app.command("show")
@queue_argument
@service_options
@json_option
def show_queue(queue: str, url: str | None, as_json: bool) -> None:
    """Show a queue's settings."""
    with Client(url) as client:
        _show(client.queue(queue), as_json)


@app.command("change")
@queue_argument
@settings_options
@start_option
@click.option(
    "--ordered-resize/--no-ordered-resize",
    default=None,
    help=f"{ORDERED_RESIZE}, or not (fixed queues on the built-in log only).",
)
@click.option(
    "--mirror/--no-mirror",
    default=None,
    help="Mirror the positions into the consumer group counterpoise.QUEUE of Kafka, or not "
    "(logs in Kafka only).",
)
@mirror_group_option
@dry_run_option
@service_options
@json_option
def change_queue(
    queue: str,
    mirror: bool | None,
    mirror_group: str | None,
    dry_run: bool,
    url: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Change a queue's settings; omitted settings stay."""
    settings = {**_given(**options), **_mirrored(queue, mirror, mirror_group)}
    if not settings:
        raise click.BadParameter("give at least one setting to change")
    with Client(url) as client:
        if dry_run:
            show_previews([client.change_queue(queue, dry_run=True, **settings)], as_json)
            return
        _show(client.change_queue(queue, **settings), as_json)


@app.command("resize")
@queue_argument
@click.argument("partitions", type=int, help="The new number of partitions.")
@click.option(
    "--discard", is_flag=True, help="Remove surplus partitions at once, with their messages."
)
@dry_run_option
@service_options
@json_option
def resize_queue(
    queue: str, partitions: int, discard: bool, dry_run: bool, url: str | None, as_json: bool
) -> None:
    """Change the number of partitions; surplus ones are drained to their end first.

    Most keys get another partition. With ordered resizes (the default of
    queues on the built-in log) a partition waits for the older messages of its
    keys, so each key stays in order; 'counterpoise status' shows which one waits
    for which. The next resize is refused until then, and --discard always.
    Without ordered resizes a newer message of a key may be processed first.

    On other logs than the built-in one: stop publishing, wait until
    'counterpoise lag' shows 0, resize, and publish again.
    """
    with Client(url) as client:
        if dry_run:
            foreseen = client.change_queue(queue, discard, dry_run=True, partition_count=partitions)
            show_previews([foreseen], as_json)
            return
        changed = client.change_queue(queue, discard, partition_count=partitions)
    if as_json:
        print_json(changed.raw)
        return
    retiring = changed.operational_partition_count - changed.partition_count
    until = f"; {counted(retiring, 'surplus partition')} until read to the end" if retiring else ""
    tell(f"{queue} resized: {_count_and_log(changed)}{until}")


app.add_command(pause_queue)
app.add_command(resume_queue)
app.add_command(pin_partitions)
app.add_command(unpin_partitions)


@app.command("delete")
@queue_argument
@click.option(
    "--force",
    is_flag=True,
    help="Delete it even with messages that are not processed, and with bound consumers.",
)
@dry_run_option
@service_options
@json_option
def delete_queue(queue: str, force: bool, dry_run: bool, url: str | None, as_json: bool) -> None:
    """Delete a queue, and the messages of a built-in log that no other queue reads.

    A queue with messages that are not processed is deleted after a question,
    or with --force. With --force, consumers that are bound end: each logs one
    line.
    """
    with Client(url) as client:
        if dry_run:
            show_previews([client.delete_queue(queue, force, dry_run=True)], as_json)
            return
        try:
            consumers = client.queue(queue).flow_count
            loss = "" if force else _loss(client, queue)
        except QueueUnreadable:
            # No consumer can read it again, and nothing else is left to do with it.
            consumers, loss = 0, ""
        if loss:
            if consumers:
                bound = counted(consumers, "bound consumer")
                raise CounterpoiseError(
                    f"{queue} has {bound}, and {loss}; stop them first, or delete with --force",
                )
            if not for_people():
                raise CounterpoiseError(f"{queue} has {loss}; --force deletes it nevertheless")
            click.confirm(f"{queue} has {loss}. Delete it?", abort=True, err=True)
        client.delete_queue(queue, force)
    if as_json:
        print_json({"queue": queue, "consumers_ended": consumers})
        return
    ended = f"; {counted(consumers, 'consumer')} of it will end" if consumers else ""
    click.echo(f"{queue} deleted{ended}")


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
    return f"{queue.partition_count:,}" + (f" +{retiring:,}" if retiring > 0 else "")


def _show(queue: Queue, as_json: bool) -> None:
    if as_json:
        print_json(queue.raw)
        return
    from counterpoise.cli.tables import console, table

    shown = table("", "")
    shown.show_header = False
    paused = None if queue.paused is None else f"yes{pause_text(queue.paused)}"
    for name, value in {**queue.raw, "paused": paused or False}.items():
        shown.add_row(name.replace("_", " "), setting_text(value))
    console.print(shown)
