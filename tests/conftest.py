"""Fixtures for every test: a real Postgres with databases in it, and services over them.

* Each worker (pytest-xdist) has a Postgres, a Redis and a Kafka mock of its own. `migrated_url` is
  a database with current, empty tables; `tests/databases.py` has others. `free_port` is a port.
* A start is mostly imports. So services and commands are forked from a warm process
  (`tests/forked.py`); `ServeProcess` (`tests/service.py`) does it by itself.
* Spark applications are jobs on warm drivers (fixture `drivers`,
  `tests/counterpoise/spark/jobs/drivers.py`). A job that leaves something in its driver fails its
  test. `started` starts a query, also on a loaded machine (`tests/counterpoise/spark/starting.py`).
  Spark's Python processes are forked (`jobs/pythons.py`), JVMs start from an archive of classes
  (`tests/counterpoise/spark/archive.py`, `tests/kafka_archive.py`).
* Tests that share something expensive, or need much of the machine, are a group
  (`@pytest.mark.xdist_group`): one worker runs it, test after test. Groups begin first, the largest
  before the others: "computing" (long computations), "kafka" (an Apache Kafka), "spark" (the Spark
  session of their worker), "drivers 1" and "drivers 2" (warm drivers), "programs 1" and
  "programs 2" (whole Spark programs).
"""

import functools
import gc
import inspect
import logging
import re
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import httpx
import pytest
import structlog
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

from tests.counterpoise.spark import archive

pytest_plugins = [
    "tests.budgets",
    "tests.databases",
    "tests.memory",
    "tests.rotation",
    "tests.service",
]

# httpx gives up after 5 seconds by default, and a machine may be busy for longer. All its functions
# and clients have this one object as their default.
ANSWER_SECONDS = 120.0
_default = inspect.signature(httpx.get).parameters["timeout"].default
_default.connect = _default.read = _default.write = _default.pool = ANSWER_SECONDS

# A background process of a shell ignores Ctrl-C, and every process that a test starts would inherit
# that.
signal.signal(signal.SIGINT, signal.default_int_handler)

archive.use()

# A service in a test's process logs whenever it has something to say, also while a command beside
# it prints: sys.stdout and sys.stderr are then those of the command.
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))

# The collected tests are many objects that live as long as the process. Python's collector would go
# through all of them again and again: that was an eighth of the processor time of the tests.
MADE_BETWEEN_COLLECTIONS = 20_000


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """While tests are collected, all that is made stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Keep the collector from what stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(MADE_BETWEEN_COLLECTIONS)


SHORT, LONG = "not long", "long or property"
ALL_LONG = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.long\b", re.M)
# Tests on kits of logs, and on clusters of Kafka, are long for some of these.
MAYBE_LONG = re.compile(r"\bmark\.long\b|\bhypothesis\b|\bkits?\b|\bkafka\b")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """For the short tests, leave out modules whose tests are all long; for the long ones, those
    that have none.

    To import them takes time, and some import what only the long tests have (the group `long`).
    """
    chosen = config.option.markexpr
    if chosen not in (SHORT, LONG) or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text("utf-8")
    is_left_out = ALL_LONG.search(text) if chosen == SHORT else not MAYBE_LONG.search(text)
    return True if is_left_out else None


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """A command of the service, run in the process of the tests, makes its stderr the log's.

    Its handler would outlive that stream, and print a traceback into the output of later tests.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = [handler for handler in root.handlers if handler in handlers]
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """Commands, sources and Spark handle signals in the process of the tests.

    What they leave would change later tests: processes inherit that a signal is ignored.
    """
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    handlers = {one: signal.getsignal(one) for one in signals}
    yield
    for one, handler in handlers.items():
        if handler is not None and signal.getsignal(one) is not handler:
            signal.signal(one, handler)


# The groups of long tests that take longest, the longest first: the last test ends soonest so.
# pytest-xdist alone would begin with the groups of most tests, however short these are.
LONGEST_GROUPS = (
    *("spark", "drivers 1", "programs 1", "processes", "drivers 2"),
    *("programs 2", "kafka", "browser", "wheels", "spin", "computing", "outages"),
)


# A test may take so long. The limit ends what never ends, on slow machines too; that of short tests
# is in pyproject.toml.
LONG_SECONDS = 1800


@functools.cache
def _text(module: Path) -> str:
    return module.read_text("utf-8")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`make test` skips nothing: what needs a program of the system is long (.ci/run has it). And
    it notices a long test that `make test-long` would leave out with its module.

    With `--no-loadscope-reorder` the workers get the groups in the order of the items.
    """
    for item in items:
        is_due = item.get_closest_marker("long") or item.get_closest_marker("property")
        if is_due and not MAYBE_LONG.search(_text(item.path)):
            raise pytest.UsageError(f"{item.nodeid} is long, and MAYBE_LONG does not know it")
        if item.get_closest_marker("skipif") and not item.get_closest_marker("long"):
            raise pytest.UsageError(f"{item.nodeid} may be skipped, so it must be long")
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.timeout(LONG_SECONDS))
    if not config.getoption("loadscopereorder", True):
        items.sort(key=_rank)


class _Scheduling(LoadGroupScheduling):
    """Forgets what is done. pytest-xdist counts all that a worker ever had, after each test."""

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        super().mark_test_complete(node, item_index, duration)
        group = self._split_scope(self.registered_collections[node][item_index])
        had = self.assigned_work[node]
        if all(had[group].values()):
            del had[group]


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Scheduling | None:
    return _Scheduling(config, log) if config.getoption("dist") == "loadgroup" else None


def _rank(item: pytest.Item) -> int:
    """The place of the test's group among the groups."""
    mark = item.get_closest_marker("xdist_group")
    group = mark.args[0] if mark else None
    return LONGEST_GROUPS.index(group) if group in LONGEST_GROUPS else len(LONGEST_GROUPS)
