"""`make faults` for a minute: some faults, each once, and every promise kept."""

from pathlib import Path

import pytest

from tests.faults.campaign import KILLED, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("processes")]


def test_all_promises_hold_while_everything_breaks(tmp_path: Path) -> None:
    result = run(tmp_path, 60, 11, print)
    print(f"{result.faults_table()}\n\n{result.table()}")
    assert result.complaints() == []
    # Enough, even while the machine is busy with other work.
    assert result.faults[KILLED].times >= 1
    assert sum(each.times > 0 for each in result.faults.values()) >= 3
