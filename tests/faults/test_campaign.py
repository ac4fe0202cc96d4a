"""The long run of `make faults`, for a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.campaign import LEASE_SECONDS, run


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_promises_hold_while_everything_breaks(tmp_path: Path) -> None:
    result = run(tmp_path, 60.0, 4, print)
    print(result.table())
    assert result.verdict.kept, result.verdict.examples()
    assert result.lost_after_seconds, "nobody was killed"
    assert result.slowest_seconds <= LEASE_SECONDS + 1
