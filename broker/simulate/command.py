"""`counterpoise simulate`: play a scaling plan on the real core, and draw what would happen.

With `--from` the numbers are those of a running queue, read from its service as every client reads
them.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import click

from broker.core.model import MOST_PARTITIONS, Settings
from broker.simulate import drawing, report, scenarios
from broker.simulate.play import ConsumerModel, play
from counterpoise.cli.options import finite, json_option, key_options, queue_names
from counterpoise.cli.output import counted
from counterpoise.client import Client
from counterpoise.errors import BadAnswer, CounterpoiseError
from counterpoise.logs.address import kind_of, parse_log
from counterpoise.plain import plain_line
from counterpoise.wire import Queue

TIMEOUT_SECONDS = 30.0
# Of the history; fewer where so many are too large for an answer.
MOST_REBALANCES = (20, 4, 1)
DEFAULT_URL = "http://127.0.0.1:8640"
MOST_FLOWS = 100_000
# Of a running queue, beside those that are options.
MORE_SETTINGS = ("access_type", "max_warmup_time")


@dataclass(frozen=True)
class RunningQueue:
    """A queue as it runs. `finish_seconds`: the mean time in which owners released partitions in
    its latest rebalances, None if none did, or if the history is too large for an answer.
    """

    queue: Queue
    finish_seconds: float | None
    handoffs: int


def read_queue(url: str, queue: str) -> RunningQueue:
    """The key is taken from the environment, as by all clients. Raises CounterpoiseError."""
    with Client(url, timeout_seconds=TIMEOUT_SECONDS) as client:
        found = client.queue(queue)
        seconds = _finished(client, queue)
    return RunningQueue(found, statistics.fmean(seconds) if seconds else None, len(seconds))


def _finished(client: Client, queue: str) -> list[float]:
    """The times in which owners released partitions that were handed off.

    Where nothing was handed off, a partition that was released had no owner: perhaps for a night.
    """
    for most in MOST_REBALANCES:
        try:
            history = client.rebalances(queue, most)
        except BadAnswer:
            continue
        return [
            one.seconds
            for rebalance in history
            if rebalance.handoffs
            for one in rebalance.moves
            if one.outcome == "graceful" and one.from_flow is not None and one.seconds is not None
        ]
    return []


@click.command("simulate")
@click.option(
    "--scenario",
    default="autoscale",
    help="autoscale, rolling-restart, crash, or a file with steps as JSON.",
)
@click.option(
    "--partitions",
    "-p",
    type=click.IntRange(min=1, max=MOST_PARTITIONS),
    show_default="64",
    help="How many partitions the queue has.",
)
@click.option(
    "--consumers",
    "--flows",
    "flows",
    type=click.IntRange(min=1, max=MOST_FLOWS),
    show_default="8",
    help="How many consumers share it at the start.",
)
@click.option(
    "--from",
    "from_queue",
    metavar="QUEUE",
    shell_complete=queue_names,
    help="Take counts, settings and measured handoff times from this running queue; "
    "options that are given win.",
)
@click.option(
    "--rebalance-delay",
    type=click.FloatRange(min=0.0, max=3600.0),
    callback=finite,
    show_default="5",
    help="The holddown before a rebalance, in seconds.",
)
@click.option(
    "--max-handoff-time",
    type=click.FloatRange(min=0.0, max=3600.0),
    callback=finite,
    show_default="3",
    help="How long an owner may take to finish, in seconds.",
)
@click.option(
    "--max-concurrent-handoffs",
    type=click.IntRange(min=1, max=MOST_PARTITIONS),
    show_default="all at once",
    help="Handoffs at the same time.",
)
@click.option(
    "--finish-seconds",
    type=click.FloatRange(min=0.0),
    callback=finite,
    show_default="0.5",
    help="How long a consumer takes to finish what it has in hand, on average: for Spark "
    "about a micro-batch.",
)
@click.option(
    "--start-seconds",
    type=click.FloatRange(min=0.0),
    callback=finite,
    default=20.0,
    help="How long a consumer takes to start.",
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(min=1.0, max=3600.0),
    callback=finite,
    default=10.0,
    help="The lease of a consumer.",
)
@click.option(
    "--warmup-seconds",
    type=click.FloatRange(min=0.0),
    callback=finite,
    default=0.0,
    help="How long a consumer warms up; 0: it does not.",
)
@click.option("--seed", type=int, default=1, help="Another seed draws other times.")
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw it into this SVG file."
)
@click.option(
    "--url",
    default=DEFAULT_URL,
    envvar="COUNTERPOISE_URL",
    show_envvar=True,
    help="The service's address, for --from.",
)
@key_options
@json_option
def simulate(
    scenario: str,
    partitions: int | None,
    flows: int | None,
    from_queue: str | None,
    rebalance_delay: float | None,
    max_handoff_time: float | None,
    max_concurrent_handoffs: int | None,
    finish_seconds: float | None,
    start_seconds: float,
    lease_seconds: float,
    warmup_seconds: float,
    seed: int,
    picture: Path | None,
    url: str,
    as_json: bool,
) -> None:
    """Try a scaling plan in virtual time: handoffs, pauses, time to balance.

    It helps to choose rebalance_delay and max_handoff_time before production. The
    decisions are those of the service; consumers are a model. Nothing is changed.
    """
    given: dict[str, Any] = {
        "partition_count": partitions,
        "rebalance_delay": rebalance_delay,
        "max_handoff_time": max_handoff_time,
        "max_concurrent_handoffs": max_concurrent_handoffs,
    }
    found: dict[str, Any] = {"partition_count": 64}
    count, finish, source = 8, 0.5, ""
    if from_queue is not None:
        try:
            running = read_queue(url, from_queue)
        except CounterpoiseError as error:
            _fail(str(error))
        queue = running.queue
        found = {name: getattr(queue, name) for name in (*given, *MORE_SETTINGS)}
        aligned = kind_of(queue.log) == "aligned"
        found["aligned"] = len(parse_log(queue.log).parts) if aligned else 1
        if queue.partitioning == "dynamic":
            # The other number is the one that it was created with.
            found["partition_count"] = queue.operational_partition_count
        count = max(1, queue.flow_count)
        finish = finish if running.finish_seconds is None else running.finish_seconds
        source = f" from {from_queue} ({running.handoffs} handoffs measured)"
    chosen = {**found, **{name: value for name, value in given.items() if value is not None}}
    settings = Settings(log="builtin:simulated", **chosen)
    count = count if flows is None else flows
    consumers = ConsumerModel(
        finish if finish_seconds is None else finish_seconds, lease_seconds, warmup_seconds, seed
    )
    try:
        steps = _steps(scenario, count, start_seconds)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--scenario") from None
    for number in (settings.partition_count, *(one.count for one in steps if one.do == "resize")):
        if number % settings.aligned:
            logs = settings.aligned
            _fail(f"{from_queue} reads {logs} aligned logs: {number} is no multiple of {logs}")
    started = time.monotonic()

    def tell(at: float, said: str) -> None:
        if sys.stderr.isatty():
            took = time.monotonic() - started
            sys.stderr.write(f"{took:5.0f} s  at {at:.0f} s: {said}\n")

    played = play(settings, steps, consumers, tell)
    about = (
        f"{counted(settings.partition_count, 'partition')}, {counted(count, 'consumer')}"
        f"{source}; rebalance_delay "
        f"{settings.rebalance_delay:g} s, max_handoff_time {settings.max_handoff_time:g} s, "
        f"finish {consumers.finish_seconds:.3g} s"
    )
    if picture is not None:
        try:
            picture.write_text(drawing.draw(played, f"simulated: {scenario}", about), "utf-8")
        except OSError as error:
            _fail(f"the picture cannot be written: {error}")
    if as_json:
        click.echo(json.dumps(report.document(played, consumers), indent=2))
        return
    click.echo(plain_line(about))
    click.echo(report.table(played))
    for sentence in report.advice(played, consumers):
        click.echo(sentence)
    took = time.monotonic() - started
    hint = f"drawn into {picture}" if picture is not None else "--picture FILE.svg draws it"
    click.echo(plain_line(f"{played.seconds:.0f} s played in {took:.1f} s; {hint}"), err=True)


def _steps(scenario: str, flows: int, start_seconds: float) -> tuple[scenarios.Step, ...]:
    if scenario not in scenarios.SCENARIOS and Path(scenario).is_file():
        try:
            return scenarios.read(Path(scenario).read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{scenario} cannot be read: {error}") from None
    return scenarios.named(scenario, flows, start_seconds)


def _fail(message: str) -> NoReturn:
    click.echo(plain_line(f"counterpoise: {message}"), err=True)
    raise click.exceptions.Exit(1)
