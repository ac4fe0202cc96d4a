"""Counterpoise beside the groups of Kafka's own coordinator: same broker, same topics, same eyes.

    make bench-kafka-groups [ARGS='--rounds 5']     # takes Kafka from Maven; writes RESULTS.md
    python -m benchmarks.coordinator [--rounds 3] [--scenarios joins …] [--only kip-848 …]

One Apache Kafka (a broker in a process, KRaft) and a service on an embedded Postgres share the
machine with all consumers, which are threads of this process: two cores have no place for 40
processes. The messages come from a process beside it (`benchmarks.producing`). Each variant has
topics of its own, all with the same partitions and messages. A program takes one message after the
other and does nothing with it.

* *Counterpoise*: `counterpoise.consumer.Consumer`; leaves by `stop()`, which drains.
* *range*, *cooperative-sticky*: the classic protocol of confluent-kafka; the members plan.
* *KIP-848*: `group.protocol=consumer`; the broker plans ("uniform").
* *share group*: KIP-932. Partitions have no owners and no order, so it has no moves; partitions
  "move" here when their messages begin to come to another member.

Each runs *as shipped* and *short*. Short is: Counterpoise without a holddown, with leases of 6 s,
and asking an idle log every 20 ms; Kafka's groups with heartbeats every 20 ms and sessions of 6 s.
With 10 consumers or more it is 100 ms: two cores would do nothing else. As shipped, a broker allows
KIP-848 and share groups no heartbeats below 5 s; this one is told to allow 1 ms. Short groups do
not wait between assignments (1 s as shipped), and classic ones look for new partitions as often as
they send heartbeats (every 5 minutes as shipped). Growth of the variants as shipped runs two at a
time, because it waits for minutes; all else runs one after the other.

* *joins*: one consumer joins 1, 4 or 8, then the oldest leaves in order. 64 partitions, 20 messages
  a second in each. *Balanced*: the last consumer says that it owns its share, numbers differ by at
  most one. *Pause*: the longest time between two messages of a partition, median over the
  partitions that stay, or move.
* *growth*: a topic of 10 consumers and 100 partitions gets 900 more, one message in each. The old
  ones have a message a second each.
* *deploy*: 40 consumers on 200 partitions, a message a second in each. Ten of them, one after the
  other, leave in order. A replacement of another name starts when the old one begins to leave (as
  Kubernetes does with `maxSurge: 0`), or (*surge*) a second before that. The next one leaves when
  the old one has ended and all partitions are owned evenly again (share group: when the replacement
  has got a message). The rest of a deploy would be the same again, three times.

The broker writes its groups to the page cache of one replica. Counterpoise waits for its disk.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import needs, results
from benchmarks.groups import (
    FULL,
    KINDS,
    VARIANTS,
    Deploy,
    Growth,
    Joins,
    Sizes,
    Stage,
    Step,
    Variant,
    deploy,
    growth,
    joins,
)
from benchmarks.service import UNLIMITED, running
from counterpoise.client import Client
from tests import kafka_server

TITLE = "Kafka's groups"
SCENARIOS = ("growth", "joins", "deploy", "surge")
Result = Joins | Growth | Deploy
# By the scenario with its size, and the variant.
Found = dict[tuple[str, int], dict[Variant, list[Result]]]


def measure(
    variants: Sequence[Variant], scenarios: Sequence[str], rounds: int, sizes: Sizes = FULL
) -> Iterator[tuple[tuple[str, int], Variant, Result]]:
    """All results, as they are found."""
    with (
        tempfile.TemporaryDirectory() as name,
        kafka_server.ApacheKafka(Path(name)) as kafka,
        running(Path(name), UNLIMITED) as service,
        Client(service.url) as client,
    ):
        yield from on(Stage(kafka, service.url, client), variants, scenarios, rounds, sizes)


def on(
    stage: Stage, variants: Sequence[Variant], scenarios: Sequence[str], rounds: int, sizes: Sizes
) -> Iterator[tuple[tuple[str, int], Variant, Result]]:
    """The same on a broker and a service that run."""
    if "growth" in scenarios:

        def grown(variant: Variant) -> list[Result]:
            times = range(growths(variant, rounds))
            return [growth(stage, variant, f"growth-{n}", sizes) for n in times]

        yield from _two_at_a_time(("growth", sizes.growth_members), variants, grown)
    if "joins" in scenarios:
        for number, size, variant in itertools.product(range(rounds), sizes.joins, variants):
            yield ("joins", size), variant, joins(stage, variant, size, f"{size}-{number}", sizes)
    for scenario in ("deploy", "surge"):
        for variant in variants if scenario in scenarios else ():
            found = deploy(stage, variant, scenario, sizes, new_first=scenario == "surge")
            yield (scenario, sizes.deploy_members), variant, found


def growths(variant: Variant, rounds: int) -> int:
    """How often the growth of a topic is measured.

    As shipped, members of a classic group look for partitions every five minutes.
    """
    return 1 if variant.kind == "classic" and not variant.short else rounds


def _two_at_a_time(
    what: tuple[str, int], variants: Sequence[Variant], run: Callable[[Variant], list[Result]]
) -> Iterator[tuple[tuple[str, int], Variant, Result]]:
    """Those as shipped two at a time, then the short ones one after the other."""
    shipped = [one for one in variants if not one.short]
    short = [one for one in variants if one.short]
    with ThreadPoolExecutor(2) as pool:
        for variant, found in zip(shipped, pool.map(run, shipped), strict=True):
            yield from ((what, variant, one) for one in found)
    for variant in short:
        yield from ((what, variant, one) for one in run(variant))


def rounds_of(
    variants: Sequence[Variant], scenarios: Sequence[str], rounds: int, sizes: Sizes = FULL
) -> int:
    """How many results `measure` finds."""
    counts = {
        "growth": sum(growths(variant, rounds) for variant in variants),
        "joins": len(sizes.joins) * len(variants) * rounds,
        "deploy": len(variants),
        "surge": len(variants),
    }
    return sum(counts[scenario] for scenario in scenarios)


def main_figure(scenario: str, result: Result) -> str:
    """The first column of the scenario's table, in words."""
    column = TABLES[{"joins": "join", "surge": "deploy"}.get(scenario, scenario)][0]
    return f"{column.head} {column.text(column.median([result]))}"


def main() -> None:
    """Parse the arguments, measure, print; with `--write` into RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=[*KINDS])
    parser.add_argument("--scenarios", nargs="*", choices=SCENARIOS, default=[*SCENARIOS])
    parser.add_argument("--write", action="store_true", help="into benchmarks/RESULTS.md")
    given = parser.parse_args()
    needs.require(needs.OF["coordinator"])
    machine = results.machine()
    print("\n".join(machine), flush=True)
    variants = [one for one in VARIANTS if one.name in given.only]
    found: Found = {}
    rounds = rounds_of(variants, given.scenarios, given.rounds)
    try:
        for number, (what, variant, result) in enumerate(
            measure(variants, given.scenarios, given.rounds), 1
        ):
            print(
                f"{time.strftime('%X')} {what[0]} of {what[1]}, {variant.label}: "
                f"{main_figure(what[0], result)}; {rounds - number} of {rounds} left",
                flush=True,
            )
            found.setdefault(what, {}).setdefault(variant, []).append(result)
    finally:
        # Also if a later part fails: the first ones took minutes.
        body = lines(found) if found else []
        print("\n".join(body))
        if given.write and found:
            page = Path(results.__file__).with_name("RESULTS.md")
            more = " ".join(one for one in sys.argv[1:] if one != "--write")
            command = "make bench-kafka-groups" + (f" ARGS='{more}'" if more else "")
            section = results.section_of(TITLE, command, body, machine)
            page.write_text(results.with_section(page.read_text(), section))


# ---------------------------------------------------------------------- tables

OURS = "counterpoise"
# What is less is noise, or nobody notices it.
WORSE, WORSE_SECONDS = 1.2, 0.02
# A column with nothing but these is one line below its table.
NONE = {"0", "–"}


@dataclass(frozen=True)
class Column:
    """Something measured, of which less is better."""

    title: str
    of: Callable[[Any], float | Sequence[float] | None]
    """Of a result; None: there is no such thing."""
    unit: str = "ms"

    @property
    def head(self) -> str:
        """The title with the unit."""
        return self.title if self.unit == "count" else f"{self.title} ({self.unit})"

    def median(self, found: Sequence[Any]) -> float | None:
        """Over the rounds, and over all partitions of them."""
        values = [self.of(one) for one in found]
        flat = [
            one
            for value in values
            if value is not None
            for one in ([value] if isinstance(value, (int, float)) else value)
        ]
        return statistics.median(flat) if flat else None

    def text(self, value: float | None) -> str:
        """For a table."""
        if value is None:
            return "–"
        if self.unit == "ms":
            return f"{value * 1e3:,.0f}"
        return f"{value:,.1f}" if self.unit == "s" else f"{value:,.0f}"

    def is_worse(self, ours: float, other: float) -> bool:
        """Whether ours loses, beyond noise."""
        least = WORSE_SECONDS if self.unit == "ms" else 0.5
        return ours > WORSE * other and ours - other > least


def _of_step(step: Callable[[Joins], Step], event: str) -> list[Column]:
    return [
        Column("balanced", lambda one: step(one).seconds),
        *(
            [Column("its first message", lambda one: step(one).first_seconds)]
            if event == "join"
            else []
        ),
        Column("usual pause", lambda one: step(one).usual_seconds),
        Column("pause, stays", lambda one: step(one).stay_seconds),
        Column("pause, moves", lambda one: step(one).move_seconds),
        Column("moved", lambda one: step(one).changed, "count"),
        Column("least", lambda one: step(one).least, "count"),
        Column(
            "taken and given back",
            lambda one: None if step(one).seconds is None else step(one).moves.given_back,
            "count",
        ),
        Column("repeated", lambda one: step(one).repeated, "count"),
    ]


def _longest(of: Sequence[float]) -> float | None:
    return max(of, default=None)


def _owned(one: Deploy, value: float) -> float | None:
    return value if one.moves.moved or one.moves.ownerless_seconds else None


TABLES: Mapping[str, Sequence[Column]] = {
    "join": _of_step(lambda one: one.join, "join"),
    "leave": _of_step(lambda one: one.leave, "leave"),
    "growth": [
        Column("balanced", lambda one: one.seconds),
        Column("all new partitions delivered", lambda one: one.delivered_seconds),
        Column("longest pause of an old partition", lambda one: _longest(one.pause_seconds)),
        Column(
            "old partitions moved", lambda one: None if one.seconds is None else one.moved, "count"
        ),
        Column("lost", lambda one: one.lost, "count"),
    ],
    "deploy": [
        Column("time for one", lambda one: one.seconds, "s"),
        Column("moves", lambda one: _owned(one, one.moves.moved), "count"),
        Column("least", lambda one: one.least, "count"),
        Column("taken and given back", lambda one: _owned(one, one.moves.given_back), "count"),
        Column(
            "partition-seconds without an owner",
            lambda one: _owned(one, one.moves.ownerless_seconds),
            "s",
        ),
        Column("longest pause, median partition", lambda one: one.pause_seconds),
        Column("longest pause of all", lambda one: _longest(one.pause_seconds)),
        Column("repeated", lambda one: one.repeated, "count"),
        Column("lost", lambda one: one.lost, "count"),
    ],
}


def lines(found: Found) -> list[str]:
    """The body of the section: versions and tables, with what loses in bold."""
    kafka = next(iter(kafka_server.PROGRAM.glob("kafka_2.13-*.jar"))).stem.partition("-")[2]
    client = metadata.version("confluent-kafka")
    made = [
        f"Apache Kafka {kafka}, confluent-kafka {client}. Medians over rounds and partitions.",
        "All consumers are threads of one process. A share group (unordered) has no owners: “–”.",
        "*Usual pause* is that without a change: a pause that is not longer is the machine's.",
        "**Bold**: with the same settings another variant is better, beyond noise.",
    ]
    for title, columns, rows in _tables(found):
        texts = []
        for (case, variant), of in rows.items():
            others = [
                one
                for (other_case, other), one in rows.items()
                if other_case == case and other.short is variant.short
            ]
            cells = [
                f"**{one.text(one.median(of))}**"
                if variant.name == OURS and _loses(one, of, others)
                else one.text(one.median(of))
                for one in columns
            ]
            texts.append([case + variant.label, str(len(of)), *cells])
        titles = ["", "rounds", *(one.head for one in columns)]
        none = [place for place in range(2, len(titles)) if {row[place] for row in texts} <= NONE]
        for row in texts:
            for place in none:
                row[place] = ""
        made += ["", f"### {title}", "", *results.table(titles, texts)]
        if none:
            made += ["", f"None: {', '.join(titles[place] for place in none)}."]
    return made


def _loses(column: Column, ours: Sequence[Any], others: Sequence[Sequence[Any]]) -> bool:
    """Whether one of the others is better."""
    mine = column.median(ours)
    values = [column.median(found) for found in others]
    return any(
        column.is_worse(mine, value) for value in values if mine is not None and value is not None
    )


# The rows of a table: by what precedes the variant's name, and the variant.
Rows = Mapping[tuple[str, Variant], Sequence[Any]]


def _tables(found: Found) -> Iterator[tuple[str, Sequence[Column], Rows]]:
    sizes = {size: rows for (scenario, size), rows in found.items() if scenario == "joins"}
    of = f"{FULL.join_partitions} partitions"
    for title, columns, before, after in (
        ("A consumer joins", TABLES["join"], 0, 1),
        ("The oldest leaves", TABLES["leave"], 1, 0),
    ):
        joined = {
            (f"{size + before} → {size + after}: ", variant): results
            for size, rows in sizes.items()
            for variant, results in rows.items()
        }
        if joined:
            yield f"{title}: {of}", columns, joined
    for (scenario, size), by_variant in found.items():
        rows = {("", variant): results for variant, results in by_variant.items()}
        if scenario == "growth":
            first, last = FULL.growth
            title = f"A topic grows: {size} consumers, {first} → {last:,} partitions"
            yield title, TABLES["growth"], rows
        elif scenario != "joins":
            of = f"{size} consumers, {FULL.deploy_partitions} partitions"
            order = "new ones first" if scenario == "surge" else "old ones first"
            title = f"A deploy, {order}: {FULL.deploy_replaced} of {of}"
            yield title, TABLES["deploy"], rows


if __name__ == "__main__":
    main()
