"""Fixtures for every test: a real Postgres with databases in it, and services over them.

`tests/databases.py` and `tests/service.py` say how to use them.

Hypothesis knows no deadline of an example here: how long one takes is up to the machine, and what
never ends is ended by the limit of the test.
"""

import signal

from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

pytest_plugins = ["tests.databases", "tests.service"]

hypothesis_settings.register_profile(
    "counterpoise", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("counterpoise")

# A run in the background of a shell ignores Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
