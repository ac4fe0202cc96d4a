"""The queues that are compared on one Postgres, for seconds."""

from __future__ import annotations

import pytest

from benchmarks import postgres_queues
from benchmarks.postgres_queues import SCENARIOS, Times, figures_of, measure
from benchmarks.queue_workers import BATCH

pytestmark = pytest.mark.long


def test_each_queue_survives_each_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, and only kills bring anything twice."""
    monkeypatch.setattr(postgres_queues, "KILLS", 2)
    told: list[str] = []
    times = Times(stress=3, steady=2, warm=1, kill=3)
    found = measure([*BATCH], SCENARIOS, times, told.append)
    assert {*found} == {(kind, name) for kind in BATCH for name in SCENARIOS}
    for (kind, name), one in found.items():
        assert one.lost == 0, (kind, name)
        assert one.doubled == 0 or name == "killed", (kind, name)
        assert one.steady.rate > 0, (kind, name)
        assert one.steady.cpu > 0, (kind, name)
    assert len(told) == sum(len(figures_of(*of, one)) for of, one in found.items())
