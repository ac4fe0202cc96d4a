"""What others count too goes by the clock of leases, which goes on while the machine sleeps.

A lease that is measured by `time.monotonic` never ends on a machine that sleeps
(`counterpoise.lease_time`). So where leases are, only the modules below use another clock, each for
what concerns this process alone.
"""

import ast
import functools
from collections.abc import Iterator

import pytest

from tests.architecture.structure import ROOT, SOURCES, tree_of

pytestmark = SOURCES

ROOMS = ("counterpoise/flow", "counterpoise/consumer", "counterpoise/spark", "broker")

TRIES = "how long this process tries: a machine that sleeps tries nothing"
LASTS = "how long a work of this process takes"
WORDS = "how often it says something"
TURNS = "how long the event loop may be held"
ALARMS = "timers, which stand still in a sleep: the sweep finds what is due"

ALLOWED = {
    "counterpoise/consumer/reading.py": TRIES,
    "counterpoise/consumer/throttling.py": WORDS,
    "counterpoise/spark/source/available_now.py": TRIES,
    "counterpoise/spark/source/batch.py": TRIES,
    "counterpoise/spark/driver/draining.py": TRIES,
    "counterpoise/spark/source/leaving.py": TRIES,
    "counterpoise/spark/source/opening.py": TRIES,
    "counterpoise/spark/source/probe.py": TRIES,
    "counterpoise/spark/source/query.py": LASTS,
    "counterpoise/spark/queue_log.py": TRIES,
    "counterpoise/spark/queues.py": TRIES,
    "counterpoise/spark/channel/running_batch.py": TRIES,
    "counterpoise/spark/source/settler.py": TRIES,
    "counterpoise/spark/sink/database.py": TRIES,
    "counterpoise/spark/sink/highwater.py": TRIES,
    "counterpoise/spark/sink/lake.py": TRIES,
    "counterpoise/spark/channel/source_channel.py": WORDS,
    "counterpoise/spark/state/handler.py": LASTS,
    "counterpoise/spark/state/states.py": LASTS,
    "counterpoise/spark/driver/stateful.py": TRIES,
    "counterpoise/spark/source/tasks.py": TRIES,
    "counterpoise/spark/writer/target.py": TRIES,
    "broker/calls/growth.py": TRIES,
    "broker/calls/measurements.py": LASTS,
    "broker/calls/updates.py": "how long a poll waits: its client asks again",
    "broker/logs/builtin.py": TRIES,
    "broker/logs/external.py": TRIES,
    "broker/logs/positions.py": TRIES,
    "broker/postgres/checks.py": WORDS,
    "broker/postgres/embedded.py": TRIES,
    "broker/postgres/keeper.py": WORDS,
    "broker/postgres/restoring.py": TRIES,
    "broker/replica/alarms.py": ALARMS,
    "broker/replica/bursts.py": TURNS,
    "broker/replica/coordinator.py": TURNS,
    "broker/replica/renewals.py": TURNS,
    "broker/replica/store_calls.py": TRIES,
    "broker/replica/transaction.py": TURNS,
    "broker/service.py": TRIES,
    "broker/simulate/command.py": LASTS,
    "broker/store/connections.py": LASTS,
}


def clocks(tree: ast.AST) -> Iterator[str]:
    """The clocks that stand still in a sleep, as the code names them."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name("time"), "monotonic" | "perf_counter" as name):
                yield name
            case ast.Attribute(ast.Name("time"), "monotonic_ns" | "perf_counter_ns" as name):
                yield name
            case ast.Attribute(ast.Name("loop") | ast.Call(), "time"):
                yield "loop.time"
            case ast.ImportFrom("time", names):
                yield from ({one.name for one in names} & {"monotonic", "perf_counter"})


@functools.cache
def found() -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if "demo" not in path.relative_to(ROOT).parts and any(clocks(tree_of(path)))
    }


def test_leases_go_by_the_clock_that_goes_on_in_a_sleep() -> None:
    assert found() - ALLOWED.keys() == set(), "use counterpoise.lease_time"


def test_every_allowed_module_still_uses_another_clock() -> None:
    assert ALLOWED.keys() - found() == set()


@pytest.mark.parametrize(
    "code",
    [
        "time.monotonic()",
        "def f(clock=time.monotonic): pass",
        "from time import monotonic",
        "time.perf_counter()",
        "time.monotonic_ns()",
        "loop.time()",
        "asyncio.get_running_loop().time()",
    ],
)
def test_a_clock_is_seen_however_it_is_written(code: str) -> None:
    assert any(clocks(ast.parse(code)))
    assert not any(clocks(ast.parse("lease_time() + time.time() + one.time")))
