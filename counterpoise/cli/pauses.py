"""`counterpoise queues pause` and `resume`, and how other commands show what is paused."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
from msgspec import to_builtins

from counterpoise.cli.options import json_option, queue_argument, service_options
from counterpoise.cli.output import of_partitions, print_json, tell
from counterpoise.cli.previews import dry_run_option, show_previews
from counterpoise.client import Client
from counterpoise.durations import duration_seconds
from counterpoise.plain import plain_line
from counterpoise.wire import Pause, PausedQueue

partitions_option = click.option(
    "--partition",
    "-p",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    show_default="the whole queue",
    help="Only this partition; repeat it for more.",
)


def _seconds(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    seconds = duration_seconds(text)
    if not seconds:
        raise click.BadParameter(f"{text!r} is no duration: give one like 90s, 10m, 2h or 7d")
    return seconds


def _moment(_: click.Context, __: click.Parameter, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no time: give one like 2026-11-20T10:00:00Z (without an offset: of this "
            "machine's time zone)"
        ) from None


@click.command("pause")
@queue_argument
@partitions_option
@click.option(
    "--for",
    "seconds",
    metavar="DURATION",
    callback=_seconds,
    show_default="until it is resumed",
    help="How long, like 90s, 10m, 2h or 7d.",
)
@click.option("--until", metavar="TIME", callback=_moment, help="When it ends by itself, instead.")
@click.option("--reason", help="Shown to those who see the pause; at most 200 characters.")
@dry_run_option
@service_options
@json_option
def pause_queue(
    queue: str,
    partitions: Sequence[int],
    seconds: float | None,
    until: datetime | None,
    reason: str | None,
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Hold a queue still, or some partitions: their owners keep them and read nothing more.

    Owners finish what they have begun and commit it. A pause stays with the
    partition when it moves, and over restarts, until it is resumed or its time
    is over. Pausing again replaces the end and the reason.
    """
    if seconds is not None and until is not None:
        raise click.BadParameter("give either --for or --until")
    given: dict[str, Any] = {"until": until, "seconds": seconds, "reason": reason}
    with Client(url) as client:
        if dry_run:
            foreseen = [
                client.pause_partition(queue, number, dry_run=True, **given)
                for number in partitions
            ]
            show_previews(foreseen or [client.pause_queue(queue, dry_run=True, **given)], as_json)
            return
        if not partitions:
            answer = client.pause_queue(queue, **given)
        for number in partitions:
            answer = client.pause_partition(queue, number, **given)
    _show(answer, as_json)


@click.command("resume")
@queue_argument
@partitions_option
@dry_run_option
@service_options
@json_option
def resume_queue(
    queue: str, partitions: Sequence[int], dry_run: bool, url: str | None, as_json: bool
) -> None:
    """End the pause of a queue, or of some partitions.

    A partition that was paused by itself stays paused when the queue is
    resumed, and the other way round.
    """
    with Client(url) as client:
        if dry_run:
            foreseen = [client.resume_partition(queue, n, dry_run=True) for n in partitions]
            show_previews(foreseen or [client.resume_queue(queue, dry_run=True)], as_json)
            return
        if not partitions:
            answer = client.resume_queue(queue)
        for number in partitions:
            answer = client.resume_partition(queue, number)
    _show(answer, as_json)


def _show(answer: PausedQueue, as_json: bool) -> None:
    if as_json:
        print_json(to_builtins(answer))
        return
    if answer.paused is not None:
        tell(f"{answer.queue} is paused{pause_text(answer.paused)}")
    for pause, numbers in _alike(answer):
        verb = "is" if len(numbers) == 1 else "are"
        tell(f"{answer.queue}: {of_partitions(numbers)} {verb} paused{pause_text(pause)}")
    if answer.paused is None and not answer.partitions:
        tell(f"{answer.queue}: nothing is paused")


def _alike(answer: PausedQueue) -> list[tuple[Pause, list[int]]]:
    """The partitions with equal ends and reasons, together."""
    found: dict[tuple[datetime | None, str | None], tuple[Pause, list[int]]] = {}
    for one in answer.partitions:
        said = (one.pause.until, one.pause.reason)
        found.setdefault(said, (one.pause, []))[1].append(one.partition)
    return [*found.values()]


def pause_text(pause: Pause) -> str:
    """` until 2026-11-20 10:00:00 (wrong prices)`, in this machine's time zone; empty without
    both."""
    until = "" if pause.until is None else f" until {pause.until.astimezone():%Y-%m-%d %H:%M:%S}"
    return until + ("" if pause.reason is None else f" ({plain_line(pause.reason)})")
