"""Fixtures for every test: a real Postgres with databases in it, and services over them.

`tests/databases.py` and `tests/service.py` say how to use them.

Hypothesis has no deadline for a single example here, because its duration depends on the machine.
The time limit of the test ends an endless one.
"""

import signal

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

pytest_plugins = ["tests.databases", "tests.service"]

hypothesis_settings.register_profile(
    "counterpoise", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("counterpoise")

# A background process of a shell ignores Ctrl-C, and every process that a test starts would inherit
# that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A group runs on one worker, so a run takes at least as long as its longest group. These take
# longest; the single tests fill the workers in the end.
LONGEST_GROUPS = ["spark 1", "spark 2", "spark 3", "processes", "wheels"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups first, and the longest before the others (with `--no-loadscope-reorder`)."""

    def place(item: pytest.Item) -> int:
        group = item.get_closest_marker("xdist_group")
        if group is None:
            return len(LONGEST_GROUPS) + 1
        named = group.args[0] in LONGEST_GROUPS
        return LONGEST_GROUPS.index(group.args[0]) if named else len(LONGEST_GROUPS)

    items.sort(key=place)
