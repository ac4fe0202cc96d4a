"""`counterpoise partitions …` and `lineage`: the graph of a dynamic queue, split and merge."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from typing import Annotated

import typer

from counterpoise.cli.output.common import (
    AsJson,
    QueueName,
    Url,
    console,
    counted,
    print_json,
)
from counterpoise.cli.output.conditions import conditions_text, held_conditions
from counterpoise.cli.output.graph import draw
from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError
from counterpoise.plain import dot, plain
from counterpoise.wire import Json

app = typer.Typer(no_args_is_help=True, help="Partitions of a dynamic queue: split, merge.")

# A split or merge of a log with many partitions is carried out for every queue that reads it.
TIMEOUT_SECONDS = 30.0
HASH = re.compile(r"[0-9a-f]{8}")


@app.command("split")
def split_partition(
    queue: QueueName,
    partition: Annotated[
        int | None,
        typer.Argument(min=0, help="Its number; leave it out with --hottest.", show_default=False),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            help="Where: middle (of the range), load (half of the last messages on either side), "
            "or the first hash of the upper part, as eight hexadecimal digits.",
            show_default="middle; load with --hottest",
        ),
    ] = None,
    hottest: Annotated[
        bool, typer.Option("--hottest", help="The partition with the highest append rate.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=600, help="How long --hottest measures the rates.")
    ] = 5.0,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Split a partition in two while publishers and consumers run; every key stays in order."""
    if (partition is None) != hottest:
        raise typer.BadParameter("give either PARTITION or --hottest")
    if at not in (None, "middle", "load") and not HASH.fullmatch(at or ""):
        raise typer.BadParameter("--at is middle, load, or eight hexadecimal digits like c0000000")
    with Client(url, timeout_seconds=TIMEOUT_SECONDS) as client:
        if partition is None:
            partition = _hottest(client, queue, seconds)
            at = at or "load"
        answer = client.split_partition(queue, partition, at)
    _show(answer, as_json)


@app.command("merge")
def merge_partitions(
    queue: QueueName,
    partition: Annotated[int, typer.Argument(min=0, help="Its number.")],
    other: Annotated[int, typer.Argument(min=0, help="The one whose range lies beside.")],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Merge two partitions whose ranges lie side by side."""
    with Client(url, timeout_seconds=TIMEOUT_SECONDS) as client:
        answer = client.merge_partitions(queue, partition, other)
    _show(answer, as_json)


def _hottest(client: Client, queue: str, seconds: float) -> int:
    """The partition to which most messages were appended in this time."""
    before = _ends(client, queue)
    time.sleep(seconds)
    grown = {n: end - before.get(n, 0) for n, end in _ends(client, queue).items()}
    if not any(grown.values()):
        raise NothingAppended(f"nothing was appended to {queue} in {seconds:g} s")
    return max(grown, key=lambda number: (grown[number], -number))


class NothingAppended(CounterpoiseError):
    """No partition is hotter than another one; the message says how long it was looked at."""


def _ends(client: Client, queue: str) -> dict[int, int]:
    """The end of each partition, which grows by one with each message."""
    ends = {one.partition: one.end for one in client.partitions(queue) if one.key is not None}
    return {number: int(end) for number, end in ends.items() if end is not None and end.isdecimal()}


def _show(answer: Json, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    sealed = " and ".join(f"{one['partition']} (at {one['end']})" for one in answer["sealed"])
    console.print(f"sealed {sealed}")
    for one in answer["children"]:
        console.print(f"began {one['partition']}: {one['key']}")


def show_lineage(
    queue: QueueName,
    as_dot: Annotated[
        bool, typer.Option("--dot", help="Print a graph in DOT, for Graphviz.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show which partition of a dynamic queue comes after which, and which waits for which.

    Partitions that came of a split or merge stand below their parents. They wait until
    their parents are finished. Finished partitions are shown as long as one waits for
    what comes after them.
    """
    if as_dot and as_json:
        raise typer.BadParameter("give either --dot or --json")
    with Client(url, timeout_seconds=TIMEOUT_SECONDS) as client:
        nodes = client.lineage(queue)
        if not (as_dot or as_json):
            clients = {flow.flow_id: flow.client_name for flow in client.flows(queue)}
            conditions = held_conditions(client, queue)
    if as_json:
        print_json([asdict(node) for node in nodes])
    elif as_dot:
        typer.echo(plain(dot(queue, nodes)))
    else:
        for line in draw(nodes, clients):
            console.print(line, soft_wrap=True)
        waiting = sum(node.state == "waiting" for node in nodes)
        finished = sum(node.state == "finished" for node in nodes)
        console.print(
            f"{queue}: {counted(len(nodes), 'partition')}, of which {waiting} wait and "
            f"{finished} are finished"
        )
        if conditions:
            console.print(conditions_text(conditions))
