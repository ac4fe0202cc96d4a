"""`make faults` for less than a minute: some faults, and every promise kept."""

from pathlib import Path

import pytest

from tests.faults.campaign import KILLED, LEAST, run

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("processes")]


@pytest.mark.matrix(of="campaigns of faults")
def test_all_promises_hold_while_everything_breaks(tmp_path: Path) -> None:
    result = run(tmp_path, 40, 11, print)
    print(f"{result.faults_table()}\n\n{result.table()}")
    assert result.complaints() == []
    assert KILLED in result.played
    assert len(result.played) >= LEAST
