"""The models keep their promises, and their planted bugs are found."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.model.checker import BUGS, CASES, Case, check, missing

ROOT = Path(__file__).resolve().parents[2]

absent = missing()
by_spin = [
    pytest.mark.long,
    # One after another, because a search may take a GB of memory.
    pytest.mark.xdist_group("spin"),
    pytest.mark.skipif(absent is not None, reason=f"not installed: {absent}"),
]


def spun(test: Callable[..., None]) -> Callable[..., None]:
    """This test runs spin."""
    for mark in by_spin:
        test = mark(test)
    return test


@pytest.mark.parametrize("model", ["handoff", "barrier", "split"])
def test_code_names_of_a_model_exist(model: str) -> None:
    """`broker/core/draft.py:grant` names a file with a function or constant of it."""
    page = (ROOT / "docs" / "model" / f"{model}.pml").read_text("utf-8")
    named = re.findall(r"`((?:broker|counterpoise|api|tests|docs)/[\w/.]*)(?::(\w+))?`", page)
    assert len(named) > 4
    for path, name in named:
        assert (ROOT / path).exists(), path
        if name:
            defines = rf"^ *(?:(?:async )?def |class )?{name}\b[ (:=]"
            assert re.search(defines, (ROOT / path).read_text(), re.MULTILINE), f"{path}:{name}"


@spun
@pytest.mark.matrix("case")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_model_keeps_its_promises(case: Case) -> None:
    outcome = check(case)
    assert outcome.error is None
    assert outcome.states > 1000  # the search reached states


@spun
@pytest.mark.matrix("case")
@pytest.mark.parametrize("case", BUGS, ids=lambda case: case.bug)
def test_a_planted_bug_is_found(case: Case) -> None:
    assert check(case).error is not None


@spun
def test_a_search_that_ran_out_of_memory_fails() -> None:
    with pytest.raises(AssertionError, match="MEMLIM"):
        check(Case("processed", losses=1), most_mb=140)
