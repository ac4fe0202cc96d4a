"""Ordered resizes, splits and merges while consumers are killed: every key stays in order."""

from pathlib import Path

import pytest

from tests.faults.reshaping import LEAST, run

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("processes")]


@pytest.mark.matrix(of="campaigns of faults")
def test_every_key_stays_in_order_while_partitions_come_and_go(tmp_path: Path) -> None:
    for shaped in run(tmp_path, 1, print, times=10, seconds=10.0, rate=200.0):
        print(shaped.table())
        assert shaped.complaints() == []
        assert shaped.times >= LEAST
