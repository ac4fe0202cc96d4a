"""`make faults` for a minute: most faults once, and every promise kept."""

from pathlib import Path

import pytest

from tests.faults.campaign import LEASE_SECONDS, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(420)]


def test_all_promises_hold_while_everything_breaks(tmp_path: Path) -> None:
    result = run(tmp_path, 60, 11, print)
    print(result.table())
    assert result.verdict.kept, result.verdict.examples()
    assert result.slowest_seconds <= LEASE_SECONDS + 1
    assert result.faults["a replica killed"] >= 5
