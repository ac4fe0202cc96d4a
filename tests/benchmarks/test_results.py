"""What benchmarks report: ratios, slopes, the page and the pictures."""

from __future__ import annotations

import platform
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import collect, plots, results
from benchmarks.__main__ import names
from benchmarks.figures import Figure, Series, beside, rate, timed

FAST = rate("read", [90.0, 200.0, 100.0], "Y3", [100.0, 100.0, 50.0], 0.9)
SLOW = timed("join", [0.004] * 5, "Y1 + Y2", 0.001, 3)
BARE = Figure("bytes of a flow", 41.0, "KB", target=25)


def grown(exponent: float) -> Series:
    points = tuple((float(size), 3 * size**exponent) for size in (10, 100, 1_000, 10_000))
    return Series("core against partitions", "a decision", "partitions", "ms", points)


def test_a_rate_is_compared_with_the_yardstick_of_its_own_round() -> None:
    assert FAST.value == 100
    assert FAST.ratio == 2.0  # the median of 0.9, 2.0, 2.0, not that of the medians
    assert FAST.holds


def test_more_is_better_for_rates_and_less_for_times() -> None:
    assert not replace(FAST, target=2.1).holds
    assert not SLOW.holds
    assert replace(SLOW, target=4.5).holds
    assert not BARE.holds
    assert replace(BARE, target=None).holds is None


@pytest.mark.parametrize("exponent", [0, 0.5, 1, 2])
def test_the_slope_is_the_exponent_of_the_growth(exponent: float) -> None:
    assert grown(exponent).slope == pytest.approx(exponent)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    found: list[Figure | Series] = [FAST, SLOW, BARE, grown(1)]
    collect.write(found, tmp_path / "found.json")
    assert collect.read(tmp_path / "found.json") == found


@pytest.mark.long  # draws, which the short tests have no library for
def test_the_page_says_what_is_missed_and_shows_each_picture(tmp_path: Path) -> None:
    found: dict[str, list[Figure | Series]] = {
        "log": [FAST],
        "joins": [SLOW, BARE],
        "growth": [grown(0), grown(1)],
    }
    pictures = plots.draw(found, tmp_path)
    assert {file.name for file in pictures} == {"targets.png", "core-against-partitions.png"}
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in pictures)
    page = results.document(found, {"log": 1.0}, pictures, ["2 processors"], quick=True)
    assert "| read | **2.00** Y3 | ≥ 0.9 | 100/s |" in page
    assert "| join | **4.00** Y1 + Y2 | ≤ 3: **missed** | 4.00 ms |" in page
    assert "| bytes of a flow |  | ≤ 25 KB: **missed** | 41.00 KB |" in page
    assert "| core against partitions | a decision | 1.00 | 30.00 ms at 10 |" in page
    assert "plots/targets.png" in page
    # Of the yardsticks those that are used.
    assert re.findall(r"^\| (Y\d+) \|", page, re.M) == ["Y1", "Y2", "Y3"]


def test_figures_of_one_name_stand_beside_each_other() -> None:
    found = [*beside("one", FAST), BARE, *beside("two", FAST, replace(SLOW, rounds=3))]
    assert [one.title for one in found] == [
        "read, one",
        "bytes of a flow",
        "read, two",
        "join, two",
    ]
    page = results.document({"log": found}, {}, [], [], quick=False)
    fast = "100/s (**2.00** Y3; ≥ 0.9)"
    slow = "4.00 ms (**4.00** Y1 + Y2; ≤ 3: **missed**; 4.00–4.00)"
    section = page.partition("## Log\n\n")[2]
    assert section.startswith(
        f"Rounds: 3.\n\n|  | one | two |\n|---|---|---|\n| read | {fast} | {fast} |\n"
        f"| join |  | {slow} |\n\nRounds: 1.\n\n|  | target | value |"
    )


def test_a_section_of_another_command_replaces_itself_and_survives_a_new_page() -> None:
    page = results.document({"log": [FAST], "growth": [grown(1)]}, {}, [], [], quick=False)
    before, after = (
        results.section_apart("Kafka source", "make bench-kafka", [figure], ["4 processors"])
        for figure in (SLOW, BARE)
    )
    assert results.sections_apart(page) == []
    with_it = results.with_section(results.with_section(page, before), after)
    assert results.sections_apart(with_it) == [after]
    assert with_it.count("## Kafka source") == 1
    assert "Written by `make bench-kafka`" in with_it
    # The rest stays, and the slopes come last.
    assert with_it.replace(after, "") == page
    assert with_it.index("## Kafka source") < with_it.index("## Slopes")


def test_what_needs_maven_is_not_among_all_benchmarks() -> None:
    assert "kafka_source" in names()
    assert "kafka_source" not in names("figures")


def test_the_machine_is_described_without_its_name() -> None:
    told = "\n".join(results.machine())
    assert "processors" in told
    assert platform.python_version() in told
    assert platform.node() not in told.split()


def test_the_benchmarks_of_logs_and_the_core_are_in_the_results() -> None:
    assert {"growth", "log", "source", "yardsticks"} <= {*names("figures")}
    assert {*names("figures")} <= {*names()}
