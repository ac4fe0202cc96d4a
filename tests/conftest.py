"""Fixtures for every test: a real Postgres with databases in it, and services over them.

`tests/databases.py` and `tests/service.py` say how to use them.

Hypothesis has no deadline for a single example here, because its duration depends on the machine.
The time limit of the test ends an endless one.
"""

import signal

from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from tests.counterpoise.spark import archive

pytest_plugins = ["tests.databases", "tests.service"]

hypothesis_settings.register_profile(
    "counterpoise", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("counterpoise")

# A background process of a shell ignores Ctrl-C, and every process that a test starts would inherit
# that.
signal.signal(signal.SIGINT, signal.default_int_handler)

archive.use()
