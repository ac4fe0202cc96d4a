"""How many examples a property test draws: a fifth in `make test`, all in `make test-long`.

`make test` is what a person runs before each commit. There a property is drawn a few times, and
the long tests draw it as often as it takes to find what is rare: they take up the property tests
again (marker `property`, set here), a third of them in each run (`tests/rotation.py`). A test with
a number of its own says `budget(300)` instead of 300.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

WHOLE = 100
SHORT = 20

# No deadline for a single example: its duration depends on the machine. The time limit of the test
# ends an endless one.
for _name, _examples in (("whole", WHOLE), ("short", SHORT)):
    settings.register_profile(
        _name,
        max_examples=_examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


def budget(examples: int) -> int:
    """As many examples in a whole run, and their share in a short one."""
    return max(1, examples * settings().max_examples // WHOLE)


def pytest_configure(config: pytest.Config) -> None:
    """Choose before the modules of tests are imported."""
    settings.load_profile("short" if config.option.markexpr == "not long" else "whole")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("property")
