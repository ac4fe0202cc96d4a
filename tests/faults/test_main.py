"""`make faults` reports what it has not tested; only a complete run must test everything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults import __main__ as main
from tests.faults import campaign, disk, reshaping, sinks
from tests.faults.reshaping import RESIZES, Shaped
from tests.faults.result import Loss, Result
from tests.judge.judge import Verdict

SHAPED: list[Shaped] = []


def fine(*_: object) -> Result:
    return Result(60, lost_after=[Loss(4.0, overloaded=False)])


def outcome(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(campaign, "run", fine)
    monkeypatch.setattr(reshaping, "run", lambda *_: SHAPED)
    monkeypatch.setattr(sinks, "run", lambda *_: [])
    monkeypatch.setattr(sys, "argv", ["faults", *arguments])
    return main.main()


def test_a_disk_that_cannot_be_mounted_was_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(disk, "INSIDE", ("false",))
    assert outcome(monkeypatch, "--keep", str(tmp_path / "first")) == 0
    assert f"{disk.KIND}: {disk.NOT_RUN}" in capsys.readouterr().out
    assert outcome(monkeypatch, "--complete", "--keep", str(tmp_path / "second")) == 1
    assert "not complete" in capsys.readouterr().out


def test_a_promise_that_a_full_disk_breaks_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = Verdict()
    monkeypatch.setattr(disk, "run", lambda *_: verdict)
    assert outcome(monkeypatch, "--complete") == 0
    assert f"{disk.KIND}, 2 times" in capsys.readouterr().out
    verdict.violations["lost"].append("a message")
    assert outcome(monkeypatch) == 1
    assert "lost: a message" in capsys.readouterr().out


def test_a_run_that_changed_nothing_or_lost_something_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = Verdict()
    judged.counts["keys judged in several partitions"] = 80
    shaped = Shaped(RESIZES, 20, 9, 1, judged, 1000)
    monkeypatch.setattr(disk, "run", lambda *_: Verdict())
    monkeypatch.setattr(sys.modules[__name__], "SHAPED", [shaped])
    assert outcome(monkeypatch) == 0
    assert "20 ordered resizes, 9 times a consumer killed" in capsys.readouterr().out
    judged.violations["out of order"].append("a key")
    shaped.by_spark = 0
    assert outcome(monkeypatch) == 1
    told = capsys.readouterr().out
    assert "no messages handled by Spark" in told
    assert "PROMISES BROKEN BY ORDERED RESIZES\nout of order: a key" in told


def test_a_part_that_fails_hides_no_table_of_an_earlier_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> Verdict:
        raise OSError("no space left")

    monkeypatch.setattr(disk, "run", fails)
    with pytest.raises(OSError, match="no space left"):
        outcome(monkeypatch)
    assert "killed consumers lost their partitions within 4.00 s" in capsys.readouterr().out
