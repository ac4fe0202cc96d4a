"""`counterpoise partitions …` and `lineage`: the graph of a dynamic queue, split and merge.

The graph as text is a tree. Below a partition stand those that come after it; one with several
parents (a merge) stands below the lowest of them, and its line names the others. Partitions without
parents or children in the graph are told together when there are many. A graph of any size stays
legible: of the partitions below one, MOST_NAMED have a line, of all MOST_LINES; what is left out is
counted.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import click
from msgspec import structs
from rich.text import Text

from counterpoise.cli.options import InOrder, finite, json_option, queue_argument, service_options
from counterpoise.cli.output import counted, print_json
from counterpoise.cli.previews import dry_run_option, show_previews
from counterpoise.cli.tables import conditions_text, console
from counterpoise.client import Client
from counterpoise.documents import Json
from counterpoise.errors import CounterpoiseError
from counterpoise.plain import dot, plain, plain_line
from counterpoise.wire import LineageNode

MOST_NAMED = 10
MOST_LINES = 200
# Below this depth lines are not indented further.
MOST_DEPTH = 12
STYLES = {"waiting": "yellow", "finished": "dim", "unassigned": "red"}


@click.group("partitions", cls=InOrder)
def app() -> None:
    """Partitions of a dynamic queue: split, merge."""


# A split or merge of a log with many partitions is carried out for every queue that reads it.
TIMEOUT_SECONDS = 30.0
HASH = re.compile(r"[0-9a-f]{8}")


def draw(nodes: Sequence[LineageNode], clients: Mapping[str, str]) -> Iterator[Text]:
    """The lines of the tree. `nodes` by number; `clients` has the names of flows by their ids."""
    shown = _Tree(nodes, clients)
    lines = shown.lines()
    yield from islice(lines, MOST_LINES)
    if next(lines, None) is not None:
        yield Text(f"… and more; --json has all {len(nodes)}", style="dim")


class _Tree:
    def __init__(self, nodes: Sequence[LineageNode], clients: Mapping[str, str]) -> None:
        self._clients = clients
        self._by_key = {node.key: node for node in nodes}
        self._below: defaultdict[str | None, list[LineageNode]] = defaultdict(list)
        """By key (None: at the top): the partitions that stand below it."""
        for node in nodes:
            known = [self._by_key[key] for key in node.parents if key in self._by_key]
            above = min(known, key=_number).key if known else None
            self._below[above].append(node)

    def lines(self) -> Iterator[Text]:
        yield from self._top()
        # A stack and no recursion: a graph may be as deep as it has partitions.
        families = [one for one in self._below[None] if one.key in self._below]
        stack: list[Iterator[tuple[LineageNode | None, Text]]] = []
        stack.append(iter([(one, Text()) for one in families]))
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
                continue
            node, stem = following
            if node is None:
                yield stem
                continue
            yield stem.copy().append_text(self._line(node))
            if below := self._below.get(node.key):
                stack.append(self._branches(below, stem.plain, len(stack)))

    def _top(self) -> Iterator[Text]:
        """The partitions that stand alone: a line for each, or for all with the same owner."""
        alone = [one for one in self._below[None] if one.key not in self._below]
        if len(alone) <= 2 * MOST_NAMED:
            yield from map(self._line, alone)
            return
        same: defaultdict[tuple[str, str], list[LineageNode]] = defaultdict(list)
        for one in alone:
            same[one.state, self._state(one)].append(one)
        groups = sorted(same.items(), key=lambda group: -len(group[1]))
        for (state, words), group in groups[: 2 * MOST_NAMED]:
            line = Text(counted(len(group), "partition"), style="bold")
            line.append(f"  {words}", style=f"not bold {STYLES.get(state, '')}".strip())
            yield line.append(f": {_named(map(_number, group))}", style="not bold")
        if len(groups) > 2 * MOST_NAMED:
            rest = sum(len(group) for _, group in groups[2 * MOST_NAMED :])
            yield Text(f"… and {counted(rest, 'partition')} more", style="dim")

    def _branches(
        self, below: Sequence[LineageNode], above: str, depth: int
    ) -> Iterator[tuple[LineageNode | None, Text]]:
        """The partitions below one, each with what stands before it; None with a whole line."""
        named = below[:MOST_NAMED] if len(below) > MOST_NAMED + 1 else below
        rest = below[len(named) :]
        stem = above.replace("├─ ", "│  ").replace("└─ ", "   ")
        if depth > MOST_DEPTH:
            stem = stem[:-3]
        for number, node in enumerate(named, 1):
            last = number == len(named) and not rest
            yield node, Text(stem + ("└─ " if last else "├─ "), style="dim")
        if rest:
            states = Counter(one.state for one in rest)
            told = ", ".join(f"{count} {state}" for state, count in states.most_common())
            yield None, Text(f"{stem}└─ … and {len(rest)} more: {told}", style="dim")

    def _line(self, node: LineageNode) -> Text:
        line = Text(style="not dim").append(str(node.partition), style="bold")
        line.append(f"  {plain_line(node.key)}  ").append(
            self._state(node), style=STYLES.get(node.state, "")
        )
        if len(node.parents) > 1 and not node.waits_for:
            known = [self._by_key[key] for key in node.parents if key in self._by_key]
            line.append(f", merged from {_named(map(_number, known))}" if known else ", merged")
        return line

    def _state(self, node: LineageNode) -> str:
        if node.state == "waiting":
            return f"waits for {_named(node.waits_for)}"
        if node.state == "finished":
            return "finished"
        if node.owner is None:
            return "has no owner"
        name = self._clients.get(node.owner, f"flow {node.owner[:8]}")
        owner = f"owned by {plain_line(name)}"
        words = {"revoking": "is being handed off", "warming": "its successor warms up"}
        return f"{owner}, {words[node.state]}" if node.state in words else owner


def _number(node: LineageNode) -> int:
    return node.partition


def _named(numbers: Iterable[int]) -> str:
    """`3, 4`; of many numbers the first."""
    every = list(numbers)
    more = len(every) - MOST_NAMED
    text = ", ".join(map(str, every[:MOST_NAMED]))
    return f"{text} and {more} more" if more > 0 else text


@app.command("split")
@queue_argument
@click.argument(
    "partition",
    type=click.IntRange(min=0),
    required=False,
    help="Its number; leave it out with --hottest.",
)
@click.option(
    "--at",
    show_default="middle; load with --hottest",
    help="Where: middle (of the range), load (half of the last messages on either side), "
    "or the first hash of the upper part, as eight hexadecimal digits.",
)
@click.option("--hottest", is_flag=True, help="The partition with the highest append rate.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1, max=600),
    default=5.0,
    callback=finite,
    help="How long --hottest measures the rates.",
)
@dry_run_option
@service_options
@json_option
def split_partition(
    queue: str,
    partition: int | None,
    at: str | None,
    hottest: bool,
    seconds: float,
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Split a partition in two while publishers and consumers run; every key stays in order."""
    if (partition is None) != hottest:
        raise click.BadParameter("give either PARTITION or --hottest")
    if at not in (None, "middle", "load") and not HASH.fullmatch(at or ""):
        raise click.BadParameter("--at is middle, load, or eight hexadecimal digits like c0000000")
    with Client(url, timeout_seconds=TIMEOUT_SECONDS) as client:
        if partition is None:
            partition = _hottest(client, queue, seconds)
            at = at or "load"
        if dry_run:
            show_previews([client.split_partition(queue, partition, at, dry_run=True)], as_json)
            return
        answer = client.split_partition(queue, partition, at)
    _show(answer, as_json)


@app.command("merge")
@queue_argument
@click.argument("partition", type=click.IntRange(min=0), help="Its number.")
@click.argument("other", type=click.IntRange(min=0), help="The one whose range lies beside.")
@dry_run_option
@service_options
@json_option
def merge_partitions(
    queue: str, partition: int, other: int, dry_run: bool, url: str | None, as_json: bool
) -> None:
    """Merge two partitions whose ranges lie side by side."""
    with Client(url, timeout_seconds=TIMEOUT_SECONDS) as client:
        if dry_run:
            show_previews([client.merge_partitions(queue, partition, other, dry_run=True)], as_json)
            return
        answer = client.merge_partitions(queue, partition, other)
    _show(answer, as_json)


def _hottest(client: Client, queue: str, seconds: float) -> int:
    """The partition to which most messages were appended in this time."""
    before = _ends(client, queue)
    time.sleep(seconds)
    grown = {n: end - before.get(n, 0) for n, end in _ends(client, queue).items()}
    if not any(grown.values()):
        raise CounterpoiseError(f"nothing was appended to {queue} in {seconds:g} s")
    return max(grown, key=lambda number: (grown[number], -number))


def _ends(client: Client, queue: str) -> dict[int, int]:
    """The end of each partition that is not finished, which grows by one with each message.

    Raises CounterpoiseError if one is not known: its whole history would look like growth.
    """
    every = client.partitions(queue)
    found = [one for one in every if one.key is not None and one.state != "finished"]
    if any(one.end is None for one in found):
        raise CounterpoiseError(
            f"the log of {queue} does not answer, so no rate is known; try again"
        )
    return {one.partition: int(one.end) for one in found if one.end and one.end.isdecimal()}


def _show(answer: Json, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    sealed = " and ".join(f"{one['partition']} (at {one['end']})" for one in answer["sealed"])
    console.print(f"sealed {sealed}")
    for one in answer["children"]:
        console.print(f"began {one['partition']}: {one['key']}")


@click.command("lineage")
@queue_argument
@click.option("--dot", "as_dot", is_flag=True, help="Print a graph in DOT, for Graphviz.")
@service_options
@json_option
def show_lineage(queue: str, as_dot: bool, url: str | None, as_json: bool) -> None:
    """Show which partition of a dynamic queue comes after which, and which waits for which.

    Partitions that came of a split or merge stand below their parents. They wait until
    their parents are finished. Finished partitions are shown as long as one waits for
    what comes after them.
    """
    if as_dot and as_json:
        raise click.BadParameter("give either --dot or --json")
    with Client(url, timeout_seconds=TIMEOUT_SECONDS) as client:
        nodes = client.lineage(queue)
        if not (as_dot or as_json):
            clients = {flow.flow_id: flow.client_name for flow in client.flows(queue)}
            conditions = tuple(client.conditions(queue))
    if as_json:
        print_json([structs.asdict(node) for node in nodes])
    elif as_dot:
        click.echo(plain(dot(queue, nodes)))
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
