"""The promises of the contract hold in every simulated run, and the simulation would notice if not.

docs/simulation.md says what is real in it and what the checker knows.
"""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
import time

import pytest

from tests.simulation import campaign, coverage
from tests.simulation.mutants import MUTANTS
from tests.simulation.plan import Config, Event, Plan, draw
from tests.simulation.shrink import shrunk
from tests.simulation.world import run

SEEDS = int(os.environ.get("COUNTERPOISE_SIM_SEEDS", "10000"))
# Fewer cannot be expected to meet everything.
ENOUGH_FOR_COVERAGE = 3000
# A mutant must be found within so many seeds.
MOST_SEEDS = 1500
# Callbacks of the event loop: what a seed takes of any machine. CPU and wall time are printed only.
MOST_STEPS_A_SEED = 2200
STANDARD = sys.stdlib_module_names


@pytest.mark.timeout(900)
def test_no_seed_breaks_a_promise(
    capsys: pytest.CaptureFixture[str], beside: campaign.Beside | None
) -> None:
    began = time.monotonic()
    report = beside.report() if beside else campaign.many(0, SEEDS)
    seconds = time.monotonic() - began
    each, steps = 1000 * report.cpu_seconds / report.seeds, report.counts["steps"] / report.seeds
    with capsys.disabled():
        print(
            f"\n{report.seeds} seeds in {seconds:.0f} s"
            f"{' after the other tests' if beside else ''} ({report.cpu_seconds:.0f} s of CPU, "
            f"{each:.1f} ms and {steps:.0f} steps a seed)"
        )
    assert report.seeds == SEEDS
    told = "\n".join(f"seed {seed}: {promise}: {text}" for seed, promise, text in report.failures)
    assert not report.failures, f"make sim SEED=<seed> shows one:\n{told[:2000]}"
    if SEEDS >= ENOUGH_FOR_COVERAGE:
        assert steps < MOST_STEPS_A_SEED, "the simulation has become dearer"
        never = coverage.missing(report.counts)
        assert not never, f"never met in {SEEDS} seeds:\n{coverage.table(report.counts)}\n{never}"


@pytest.mark.timeout(600)
def test_every_planted_bug_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    names, began = list(MUTANTS), time.monotonic()
    total = campaign.Report()
    for report in campaign.spread([("hunt", str(MOST_SEEDS), *names[n::4]) for n in range(4)]):
        total.add(report)
    with capsys.disabled():
        found = len(total.failures)
        seconds = time.monotonic() - began
        print(
            f"\n{found} of {len(names)} planted bugs in {seconds:.0f} s "
            f"({total.cpu_seconds:.0f} s of CPU)"
        )
    texts = [text for _, _, text in total.failures]
    missed = [name for name in names if not any(text.startswith(name) for text in texts)]
    assert not missed, f"not found within {MOST_SEEDS} seeds: {missed}"


def _digest(seeds: range) -> str:
    digest = hashlib.sha256()
    for seed in seeds:
        outcome = run(draw(seed), recording=True)
        digest.update("\n".join(outcome.transcript).encode())
    return digest.hexdigest()


def test_a_seed_gives_the_same_transcript_again() -> None:
    assert _digest(range(20)) == _digest(range(20))


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_gives_the_same_transcript_in_another_process(hash_seed: str) -> None:
    code = "from tests.simulation.test_simulation import _digest; print(_digest(range(20)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=campaign.ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == _digest(range(20))


def test_the_checker_knows_nothing_of_the_product() -> None:
    left, seen = ["tests.simulation.checker"], set[str]()
    while left:
        name = left.pop()
        if name.split(".")[0] in STANDARD or name in seen:
            continue
        seen.add(name)
        assert name.startswith("tests.simulation."), name
        source = (campaign.ROOT / name.replace(".", "/")).with_suffix(".py").read_text()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                left.append(node.module or "")
            elif isinstance(node, ast.Import):
                left += [alias.name for alias in node.names]
    assert len(seen) > 1
    assert not {"world", "service", "consumers"} & {name.split(".")[-1] for name in seen}


def test_recording_changes_nothing() -> None:
    for seed in range(10):
        assert run(draw(seed)).counts == run(draw(seed), recording=True).counts


def test_a_failing_run_is_shrunk_to_what_it_takes() -> None:
    """With a bug that shows whenever a release carries a position, two consumers and a few
    messages are all it takes."""
    with MUTANTS["position passed over at a handoff"].planted():
        report = campaign.play(0, MOST_SEEDS, until_found=True)
        plan = draw(report.failures[0][0])
        small = shrunk(plan)
        violation = run(small).violation
    assert violation is not None
    assert violation.promise == report.failures[0][1]
    assert len(small.events) <= 6 < len(plan.events)
    assert small.config.replicas == 1


def test_nothing_happens_where_nothing_is_asked() -> None:
    """One consumer, one message, no faults."""
    settings = dict(draw(0).config.settings, partition_count=1, rebalance_delay=0.0)
    settings["access_type"] = "non_exclusive"
    events = (Event(0.0, "join", (3.0, False)), Event(1.0, "publish", (1, 1)))
    outcome = run(Plan(1, Config(settings=settings), events), recording=True)
    assert outcome.violation is None
    assert sum(" writes " in line for line in outcome.transcript) == 1
    assert outcome.counts["record Granted"] == 1
