"""`make sim-long` adds up its runs separately for each state of the code."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.simulation import campaign, long


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first seeds of the rounds; nothing is really played."""
    rounds: list[int] = []

    def many(first: int, count: int) -> campaign.Report:
        rounds.append(first)
        return campaign.Report(seeds=count)

    monkeypatch.setattr(campaign, "many", many)
    return rounds


def _is(monkeypatch: pytest.MonkeyPatch, *revisions: str) -> None:
    """The code is in these states, one after another, and then stays in the last."""
    left = list(revisions)
    monkeypatch.setattr(long, "revision", lambda: left.pop(0) if len(left) > 1 else left[0])


def _seeds(path: Path) -> dict[str, int]:
    return {of: total.report.seeds for of, total in long.State.load(path).totals.items()}


def test_another_commit_begins_a_new_total(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    played: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "state.json"
    for revision in ("one", "one", "two"):
        _is(monkeypatch, revision)
        most = long.State.load(path).seeds(revision) + 20
        assert long.go_on(most, path, 10) == 0
    assert _seeds(path) == {"one": 40, "two": 20}
    assert played == [long.LONG_FROM + 10 * n for n in range(6)]
    told = capsys.readouterr().out
    assert "one: 40 seeds" in told
    assert "two: 20 seeds" in told


def test_runs_during_a_change_of_the_code_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: list[int]
) -> None:
    path = tmp_path / "state.json"
    _is(monkeypatch, "one", "two")
    long.go_on(10, path, 10)
    assert _seeds(path) == {"two": 10}
    assert played == [long.LONG_FROM, long.LONG_FROM]


def test_a_total_of_unknown_code_stays_separate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: list[int]
) -> None:
    path = tmp_path / "state.json"
    report = campaign.Report(seeds=5000).to_json()
    path.write_text(json.dumps({"next": 105_000, "report": report, "seconds": 90.0}))
    _is(monkeypatch, "one")
    long.go_on(10, path, 10)
    assert _seeds(path) == {long.UNKNOWN: 5000, "one": 10}
    assert played == [105_000]


def test_a_revision_is_a_commit_and_what_was_changed_since(tmp_path: Path) -> None:
    assert long.revision(tmp_path) == long.UNKNOWN

    def git(*arguments: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *name, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    code = tmp_path / "broker" / "code.py"
    code.parent.mkdir()
    code.write_text("1")
    git("add", ".")
    git("commit", "-qm", "one")
    clean = long.revision(tmp_path)
    (tmp_path / "README").write_text("not played")
    assert long.revision(tmp_path) == clean
    code.write_text("2")
    changed = long.revision(tmp_path)
    (code.parent / "new.py").write_text("3")
    assert len({clean, changed, long.revision(tmp_path)}) == 3
    assert changed.startswith(f"{clean} changed ")
