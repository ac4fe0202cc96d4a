"""The figures that pages take from the last full run of the benchmarks are those of its results.

After a new run a failing test says what a page has to contain.
"""

import re

import pytest

from tests.architecture.test_documents import text

ROWS: dict[tuple[str, str], dict[str, str]] = {}
"""The cells of a row by the heads of their columns, by the title of its section and its name."""
for part in re.split(r"^## ", text("benchmarks/RESULTS.md"), flags=re.M)[1:]:
    head: list[str] = []
    for line in re.findall(r"^\| (.*) \|$", part, re.M):
        name, *cells = line.split(" | ")
        if not name:
            head = cells
        ROWS.setdefault((part.partition("\n")[0], name), dict(zip(head, cells, strict=False)))


class Figure:
    """A row of the results, or its cell in a column where several stand beside each other."""

    def __init__(self, section: str, name: str, column: str = "") -> None:
        row = ROWS[section, name]
        if column:
            first, _, more = row[column].partition(" (")
            row = {"value": first, "ratio": more if more.startswith("**") else ""}
        ratio, value, spread = (
            [float(one) for one in re.findall(r"\d[\d.]*", cell.replace(",", ""))]
            for cell in (row.get(one, "") for one in ("ratio", "value", "spread"))
        )
        self.ratio = ratio[0] if ratio else 0.0
        self.value = value[0]
        self.spread = spread

    @property
    def thousands(self) -> str:
        return f"{round(self.value, -3):,.0f}"


ONE = Figure("Handoffs", "pause of a partition, one handoff")
TWENTY = Figure("Handoffs", "pause of a partition, 20 handoffs at once")
OTHERS = Figure("Handoffs", "throughput of the others during 20 handoffs")
KEPT = f"{OTHERS.value:.1f} % of their throughput"
RENEWAL = Figure("Calls", "CPU of one of the heartbeats")
COMMIT = Figure("Calls", "CPU of one of the commits")
RENEWALS = Figure("Calls", "heartbeats a second of a core")
COMMITS = Figure("Calls", "commits a second of a core")
SMALL = Figure("Binds", "join to balanced, 64 partitions")
NINTH = Figure("Binds", "join to balanced, 64 partitions, 8 → 9 flows")
LARGE = Figure("Binds", "join to balanced, 512 partitions")
MEMORY = Figure("Idle", "5,000 idle flows, lease 60 s: memory of each with its connection")
SHARE = Figure("Idle", "5,000 idle flows, lease 60 s: share of a core")
PUBLISH = Figure("Log", "publish, through Publisher")
READ, READ_BY_TWO = (Figure("Source", "through the source", f"local[{n}]") for n in (1, 2))
PAUSES = [
    Figure("Pause", f"pause of a partition, {what}")
    for what in ("second query starts", "first query of a session", "second query drains")
]
RATIOS = [one.ratio for one in PAUSES]
TIMES = [one.value for one in PAUSES]


def joined() -> str:
    times = (
        Figure("Protocols", f"join to balanced, 64 partitions, {join} consumers", "ours").value
        for join in ("1 → 2", "4 → 5", "8 → 9")
    )
    return ", ".join(f"{time:,.0f}" for time in times) + " ms"


def replicas(what: str) -> str:
    """The lowest and the highest of the calls that share something."""
    two = [
        Figure("Replicas", f"{call}: {what}", "two replicas")
        for call in ("renewals", "commits", "binds", "binds to one queue")
    ]
    values = [one.ratio or one.value for one in two]
    return f"{min(values):.1f} to {max(values):.1f}"


def source(what: str) -> str:
    """The lowest and the highest ratio to Spark's own source."""
    ratios = [
        Figure("Kafka source", f"{what} into {sink}, local[{cores}]", "counterpoise").ratio
        for sink in ("noop", "Postgres")
        for cores in (1, 2)
    ]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def planned(by: str = "ours") -> str:
    time = Figure("Peers", "plan, 100 → 101 members, 10,000 partitions", by).value
    return f"{time:,.0f} ms" if time >= 100 else f"{time:.1f} ms"


SAID = {
    "docs/performance.md": [
        f"| {ONE.value:.0f} ms ({ONE.spread[0]:.0f} to {ONE.spread[1]:.0f}), each of 20 at once",
        f"each of 20 at once {TWENTY.value:.0f} ms; the others keep {KEPT} |",
        f"| {min(RATIOS):.1f} to {max(RATIOS):.1f} median micro-batches, {min(TIMES):.0f} to",
        f"to {max(TIMES):.0f} ms; on a busy machine",
        f"balanced after * | {joined()} |",
        f"| {SMALL.value:.1f} ms, and {LARGE.value:.1f} ms ({LARGE.ratio:.1f} times as long",
        f"| {READ.thousands} messages/s with `local[1]`, {READ_BY_TWO.thousands} with `local[2]` |",
        f"| {PUBLISH.thousands} messages/s |",
        f"| {RENEWAL.value:.2f} and {COMMIT.value:.2f} ms: a core answers {RENEWALS.value:,.0f} or",
        f"or {round(COMMITS.value, -1):,.0f} a second |",
        f"| {SHARE.value:.1f} % of a core, {MEMORY.value:.0f} KB of memory each |",
        f"A flow takes some {MEMORY.value:.0f} KB with its connection",
        f"Our plan takes {planned()} of CPU,",
        f"take {planned('kafka-python sticky')} and {planned('aiokafka sticky')}.",
        f"faust-streaming 0.15 takes {planned('faust')} and leaves",
        f"Ours reads {source('rows')} times as many rows a second",
        f"with {source('CPU of a row')} of the CPU of a row",
        f"a call costs the service {replicas('CPU of the service')} times the CPU (",
        f"and Postgres {replicas('CPU of Postgres')} times.",
        f"{replicas('replicas to a core of Postgres')} replicas, each with a busy core,",
    ],
    "docs/performance-background.md": [
        f"one with 64 (32 handoffs) {SMALL.ratio:.0f} times |",
        f"costs the service {RENEWAL.ratio:.0f} times the CPU of a bare GET,",
        f"a commit of one partition {COMMIT.ratio:.0f} times |",
        f"are {READ.ratio:.2f} and {READ_BY_TWO.ratio:.2f} of Y3",
        f"of one is {ONE.ratio:.0f} times Y1 + Y2 (the target is 20)",
        f"the join of a ninth consumer takes {NINTH.value:.0f} ms",
    ],
    "README.md": [f"{SMALL.value:.0f} to {NINTH.value:.0f} ms from the bind of a new consumer"],
}


@pytest.mark.parametrize("page", SAID)
def test_a_page_has_the_figures_of_the_last_run(page: str) -> None:
    plain = re.sub(r"\s+", " ", text(page))
    assert [said for said in SAID[page] if said not in plain] == []
