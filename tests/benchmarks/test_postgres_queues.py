"""The queues that are compared on one Postgres, for less than a second each: only counts."""

from __future__ import annotations

import pytest

from benchmarks import postgres_queues
from benchmarks.postgres_queues import SCENARIOS, Times, figures_of, measure
from benchmarks.queue_workers import BATCH

pytestmark = pytest.mark.long

# All queues run as fast as both processors can, however long these are.
TIMES = Times(stress=0.5, steady=0.5, warm=0, kill=0.5)


@pytest.mark.matrix("scenario")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_queue_survives(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, and only kills bring anything twice."""
    monkeypatch.setattr(postgres_queues, "KILLS", 2)
    told: list[str] = []
    found = measure([*BATCH], [scenario], TIMES, told.append)
    assert {*found} == {(kind, scenario) for kind in BATCH}
    for (kind, name), one in found.items():
        assert one.lost == 0, (kind, name)
        assert one.doubled == 0 or name == "killed", (kind, name)
        assert one.steady.rate > 0, (kind, name)
    # It is counted in hundredths of a second, so one queue may have used none.
    assert any(one.steady.cpu > 0 for one in found.values())
    assert len(told) == sum(len(figures_of(*of, one)) for of, one in found.items())
