"""The promises of the contract hold in every simulated run, and the simulation detects violations.

docs/simulation.md says what is real in it and what the checker knows.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import subprocess
import sys
import warnings
from typing import Any

import pytest

from tests.simulation import campaign, coverage, needed
from tests.simulation.mutants import MUTANTS
from tests.simulation.plan import Config, Event, Plan, draw
from tests.simulation.shrink import shrunk
from tests.simulation.world import run

# These tests only compute: on one worker from the start, they do so while those on others wait.
pytestmark = pytest.mark.xdist_group("computing")

# Those of `make test`, and those of `make test-all`; `make sim SEEDS=10000` plays more.
SHORT_SEEDS = 50
ALL_SEEDS = 1_000
# The limit is in callbacks of the event loop, which do not depend on the machine, not in CPU or
# wall time.
MOST_STEPS_A_SEED = 3_200
STANDARD = sys.stdlib_module_names


def chunks(first: int, end: int, size: int) -> list[Any]:
    """Ranges of seeds. Each is a test of its own, so that workers share them."""
    return [
        pytest.param(
            range(start, min(start + size, end)), id=f"{start}-{min(start + size, end) - 1}"
        )
        for start in range(first, end, size)
    ]


# Shown at the end of a pytest run; it is not a failure.
may_be_out_of_date = pytest.mark.filterwarnings("default::tests.simulation.needed.OutOfDate")


def _out_of_date(what: str, seed: int) -> None:
    text = f"{what}: the first seed is {seed} now; `make sim-first ARGS=--search` writes it down"
    warnings.warn(needed.OutOfDate(text), stacklevel=2)


def _hold(seeds: range) -> None:
    """Every promise holds in these seeds, at the usual cost of a seed."""
    report = campaign.play(seeds.start, len(seeds))
    told = "\n".join(f"seed {seed}: {promise}: {text}" for seed, promise, text in report.failures)
    assert not report.failures, f"make sim SEED=<seed> shows one:\n{told[:2000]}"
    assert report.seeds == len(seeds)
    steps = report.counts["steps"] / report.seeds
    assert steps < MOST_STEPS_A_SEED, "the simulation has become dearer"


def test_no_seed_breaks_a_promise() -> None:
    _hold(range(SHORT_SEEDS))


@pytest.mark.long
@pytest.mark.matrix("seeds")
@pytest.mark.parametrize("seeds", chunks(SHORT_SEEDS, ALL_SEEDS, 100))
def test_no_further_seed_breaks_a_promise(seeds: range) -> None:
    _hold(seeds)


def test_enough_seeds_are_played() -> None:
    """The next two tests check that the first seeds are no later than the file says."""
    first = needed.FirstSeeds.load()
    assert max(first.bugs.values()) < needed.SEEDS, needed.table(first)
    assert max(first.items.values()) < needed.MOST, needed.table(first)
    assert first.bugs.keys() == MUTANTS.keys(), "make sim-first ARGS=--search"
    assert first.items.keys() == set(coverage.expected()), "make sim-first ARGS=--search"


@pytest.mark.long
@may_be_out_of_date
@pytest.mark.matrix("bug")
@pytest.mark.parametrize("bug", MUTANTS)
def test_a_planted_bug_is_found(bug: str) -> None:
    known = needed.FirstSeeds.load().bugs.get(bug)
    if known is not None and needed.finds(bug, known):
        return
    found = needed.first_that_finds(bug)
    assert found is not None, f"not found by {needed.SEEDS} seeds"
    _out_of_date(bug, found)


def _arguments(function: Any) -> tuple[list[None], dict[str, None]]:
    """As many positional ones as the function takes, and those that it takes by name only."""
    parameters = inspect.signature(function).parameters.values()
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = {one.name: None for one in parameters if one.kind is one.KEYWORD_ONLY}
    return [None for one in parameters if one.kind in places], named


@pytest.mark.parametrize("bug", MUTANTS)
def test_a_planted_bug_can_be_called_as_the_product(bug: str) -> None:
    """Otherwise a TypeError is found, and not the bug."""
    for owner, name, planted in MUTANTS[bug].changes():
        real = inspect.getattr_static(owner, name)
        if inspect.isfunction(real) and inspect.isfunction(planted):
            places, named = _arguments(real)
            inspect.signature(planted).bind(*places, **named)


@pytest.mark.long
@may_be_out_of_date
def test_everything_that_must_occur_does() -> None:
    """The seeds of the file meet all of it."""
    met: set[str] = set()
    for seed in sorted(set(needed.FirstSeeds.load().items.values())):
        met |= needed.meets(seed)
    missing = set(coverage.expected()) - met
    for seed in range(needed.MOST):
        if not missing:
            break
        for item in missing & needed.meets(seed):
            missing.remove(item)
            _out_of_date(item, seed)
    assert not missing, f"never met by {needed.MOST} seeds"


def transcripts(seeds: range) -> str:
    """A digest of the transcripts of these seeds."""
    digest = hashlib.sha256()
    for seed in seeds:
        outcome = run(draw(seed), recording=True)
        digest.update("\n".join(outcome.transcript).encode())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def here() -> str:
    return transcripts(range(10))


def test_a_seed_gives_the_same_transcript_again(here: str) -> None:
    assert transcripts(range(10)) == here


@pytest.mark.long
@pytest.mark.matrix("hash_seed")
@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_gives_the_same_transcript_in_another_process(here: str, hash_seed: str) -> None:
    code = "from tests.simulation import test_simulation as s; print(s.transcripts(range(10)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=campaign.ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == here


def test_the_checker_knows_nothing_of_the_product() -> None:
    left, seen = ["tests.simulation.checker"], set[str]()
    while left:
        name = left.pop()
        if name.split(".")[0] in STANDARD or name in seen:
            continue
        seen.add(name)
        assert name.startswith(("tests.simulation.", "tests.judge.")), name
        source = (campaign.ROOT / name.replace(".", "/")).with_suffix(".py").read_text()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                whole = module in ("tests.simulation", "tests.judge")
                left += [f"{module}.{each.name}" for each in node.names] if whole else [module]
            elif isinstance(node, ast.Import):
                left += [alias.name for alias in node.names]
    assert len(seen) > 5
    assert not {"world", "service", "consumers"} & {name.split(".")[-1] for name in seen}


@pytest.mark.long
def test_recording_changes_nothing() -> None:
    for seed in range(10):
        assert run(draw(seed)).counts == run(draw(seed), recording=True).counts


def test_a_failing_run_is_shrunk_to_the_necessary_events() -> None:
    """The planted bug shows whenever a release carries a position, so two consumers and a few
    messages are enough."""
    with MUTANTS["position passed over at a handoff"].planted():
        report = campaign.play(0, needed.SEEDS, until_found=True)
        plan = draw(report.failures[0][0])
        small = shrunk(plan)
        violation = run(small).violation
    assert violation is not None
    assert violation.promise == report.failures[0][1]
    assert len(small.events) <= 6 < len(plan.events)
    assert small.config.replicas == 1


def test_a_run_without_faults_is_uneventful() -> None:
    """One consumer, one message, no faults."""
    settings = dict(draw(0).config.settings, partition_count=1, rebalance_delay=0.0)
    settings["access_type"] = "non_exclusive"
    events = (Event(0.0, "join", (3.0, False)), Event(1.0, "publish", (1, 1)))
    outcome = run(Plan(1, Config(settings=settings), events), recording=True)
    assert outcome.violation is None
    assert sum(" writes " in line for line in outcome.transcript) == 1
    assert outcome.counts["record Granted"] == 1
