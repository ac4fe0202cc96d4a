"""`counterpoise positions …`: show where the consumers of a queue are, and set it.

`set` asks the service for a dry run first. So it can say, also afterwards, how many messages are
read again and how many are never read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias

import click

from counterpoise.cli.consumer_groups import export_positions
from counterpoise.cli.options import (
    InOrder,
    json_option,
    partitions_option,
    queue_argument,
    service_options,
)
from counterpoise.cli.output import (
    count_text,
    counted,
    for_people,
    no_partition,
    position_text,
    print_json,
    say,
)
from counterpoise.cli.tables import PlainConsole, console, table
from counterpoise.client import Client
from counterpoise.documents import Json
from counterpoise.durations import duration_seconds
from counterpoise.errors import CounterpoiseError


@click.group("positions", cls=InOrder)
def app() -> None:
    """Positions: show, set, export."""


app.add_command(export_positions)

Target: TypeAlias = Mapping[int, str | None] | Literal["earliest", "latest"] | datetime

FORMS = (
    "earliest, latest, a time like 2026-11-20T10:00:00Z (without an offset: of this machine's time "
    "zone), or how long ago, like 90m, 2h or 7d"
)


@app.command("show")
@queue_argument
@service_options
@json_option
def show_positions(queue: str, url: str | None, as_json: bool) -> None:
    """Show the committed position of each partition; `set --file` takes the JSON of this."""
    with Client(url) as client:
        partitions = client.partitions(queue)
    if as_json:
        rows = [
            {
                "partition": one.partition,
                "position": one.position,
                "epoch": one.epoch,
                "end": one.end,
                "lag": one.lag,
            }
            for one in partitions
        ]
        print_json({"queue": queue, "partitions": rows})
        return
    columns = ("PARTITION", "POSITION", "END", "LAG")
    shown = table(*columns, right=columns)
    for one in partitions:
        shown.add_row(
            str(one.partition), position_text(one.position), one.end or "?", count_text(one.lag)
        )
    console.print(shown)


@app.command("set")
@queue_argument
@click.argument("to", required=False, help=f"{FORMS}.")
@click.option("--to", "named", help="The same as TO.")
@partitions_option
@click.option(
    "--file",
    "-f",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    help='Positions by partition, as JSON: {"0": "1042", "5": null}, or what '
    "'positions show --json' printed. Partitions that it does not name stay.",
)
@click.option(
    "--dry-run", is_flag=True, help="Change nothing; show what would be read again or skipped."
)
@click.option("--yes", "-y", is_flag=True, help="Set them without a question.")
@service_options
@json_option
def set_positions(
    queue: str,
    to: str | None,
    named: str | None,
    partitions: tuple[int, ...],
    file: Path | None,
    dry_run: bool,
    yes: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Set the positions from which the consumers of a queue continue, at once.

    Consumers drop what they have read ahead and continue at the new positions.
    What is skipped is never read. So it shows first what would be read again
    and skipped, and asks. Without a terminal it needs --yes.
    """
    if [to, named, file].count(None) != 2:
        raise click.BadParameter(f"give either TO ({FORMS}) or --file")
    if partitions and file is not None:
        raise click.BadParameter("--file names its partitions itself: leave out --partition")
    place = to if to is not None else named
    target = _target(place) if place is not None else _positions_in(file)
    with Client(url, timeout_seconds=60.0) as client:
        answer = client.set_positions(queue, target, dry_run=True)
        if partitions:
            # The dry run says where each partition would be set.
            target = _positions_of(partitions, answer["partitions"])
            answer = client.set_positions(queue, target, dry_run=True)
        rows: list[Json] = answer["partitions"]
        if not dry_run:
            if not yes and (_moved(rows) or _sum(rows, "read_again")):
                _ask(queue, target, rows)
            done = client.set_positions(queue, target)
            # The log may have grown since the dry run, which alone says what the effect is.
            made = {one["partition"]: one for one in done["partitions"]}
            rows = [
                {**row, **{name: made[row["partition"]][name] for name in ("epoch", "position")}}
                for row in rows
                if row["partition"] in made
            ]
        # It is only told to people.
        stayed = not as_json and not _moved(rows) and _goes_back(target)
        nothing_older = stayed and _is_earliest(client, queue)
    if as_json:
        print_json(
            {
                "queue": queue,
                "dry_run": dry_run,
                "read_again": _sum(rows, "read_again"),
                "skipped": _sum(rows, "skipped"),
                "partitions": rows,
            }
        )
        return
    if dry_run or yes:
        _print(rows)
    said = _summary(queue, target, rows, would=dry_run)
    console.print(said + ("; nothing older is in the log" if nothing_older else ""))


def _ask(queue: str, target: Target, rows: list[Json]) -> None:
    """Show what would be, on stderr.

    Raises CounterpoiseError without a terminal, Abort after a no.
    """
    said = _summary(queue, target, rows, would=True)
    if not for_people():
        raise CounterpoiseError(f"{said}; --yes sets them, --dry-run shows each")
    _print(rows, err=True)
    say(said)
    click.confirm("Set them?", abort=True, err=True)


def _summary(queue: str, target: Target, rows: list[Json], *, would: bool) -> str:
    """What is set, and how many messages are read again and skipped by it."""
    again, skipped = _sum(rows, "read_again"), _sum(rows, "skipped")
    may, be = ("would ", "be") if would else ("", "are")
    if again is None or skipped is None:
        effect = "the log does not say how many messages that is"
    else:
        effect = f"{counted(again, 'message')} {may}{be} read again, {skipped:,} {may}{be} skipped"
    verb = "would move" if would else "set"
    if isinstance(target, datetime):
        verb += f" to {target.isoformat(timespec='seconds').replace('+00:00', 'Z')}"
    moved = len(_moved(rows))
    return f"{queue}: {moved:,} of {counted(len(rows), 'position')} {verb}; {effect}"


def _moved(rows: list[Json]) -> list[Json]:
    return [row for row in rows if row["position"] != row["previous"]]


def _goes_back(target: Target) -> bool:
    return target == "earliest" or isinstance(target, datetime)


def _is_earliest(client: Client, queue: str) -> bool:
    """Whether all positions are where the log begins."""
    rows = client.set_positions(queue, "earliest", dry_run=True)["partitions"]
    return not any(row["read_again"] for row in rows)


def _target(text: str) -> Target:
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    try:
        return moment(text)
    except OverflowError:
        raise click.BadParameter(
            f"{text!r} is out of range: times begin with the year 1", param_hint="TO"
        ) from None
    except ValueError:
        raise click.BadParameter(f"{text!r} is none of: {FORMS}", param_hint="TO") from None


def moment(text: str) -> datetime:
    """A time as people write it; one without an offset is of this machine's time zone.

    Raises ValueError, OverflowError.
    """
    ago = duration_seconds(text)
    if ago is not None:
        return datetime.now(UTC) - timedelta(seconds=ago)
    time = datetime.fromisoformat(text)
    try:
        return time.astimezone(UTC)
    except ValueError as error:
        raise OverflowError from error


def _positions_in(file: Path | None) -> Target:
    assert file is not None
    try:
        document: Any = json.loads(file.read_bytes(), object_pairs_hook=_each_once)
        if "partitions" in document:
            found = [(one["partition"], one["position"]) for one in document["partitions"]]
        else:
            found = [*document.items()]
        positions = {_number(number): position for number, position in found}
        if not found or len(positions) < len(found):
            raise ValueError
        if not all(isinstance(p, str | None) for p in positions.values()):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError):
        raise click.BadParameter(
            f'{file} has no positions: it must be JSON like {{"0": "1042", "5": null}}',
            param_hint="--file",
        ) from None
    return positions


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises ValueError for a name that it has twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def _number(text: object) -> int:
    """The number of a partition: an integer, or its decimal text. Raises ValueError."""
    number = int(text) if isinstance(text, str) else text
    if type(number) is not int or number < 0 or str(number) != str(text):
        raise ValueError
    return number


def _positions_of(partitions: Sequence[int], rows: list[Json]) -> Mapping[int, str | None]:
    """The positions of these partitions, from the answer for all."""
    positions: dict[int, str | None] = {row["partition"]: row["position"] for row in rows}
    if unknown := sorted({*partitions} - positions.keys()):
        raise click.BadParameter(no_partition(unknown), param_hint="--partition")
    return {number: positions[number] for number in partitions}


def _print(rows: list[Json], *, err: bool = False) -> None:
    """A table of the positions that move, if any does."""
    if not (moved := _moved(rows)):
        return
    columns = ("PARTITION", "FROM", "TO", "READ AGAIN", "SKIPPED")
    shown = table(*columns, right=columns)
    for row in moved:
        shown.add_row(
            str(row["partition"]),
            position_text(row["previous"]),
            position_text(row["position"]),
            count_text(row["read_again"]),
            count_text(row["skipped"]),
        )
    (PlainConsole(stderr=True) if err else console).print(shown)


def _sum(rows: list[Json], field: str) -> int | None:
    """The sum over all partitions; None if one is not known."""
    counts = [row[field] for row in rows]
    return None if None in counts else sum(counts)
