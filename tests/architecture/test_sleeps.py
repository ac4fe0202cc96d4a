"""No test sleeps to wait for something: it waits for the event itself, with a limit.

A sleep guesses how long a machine takes, and the guess is wrong when the machine stalls. So only
the functions below sleep in real time, each for a reason. Tests in virtual time may sleep: those in
modules that import `virtual` (broker/testing/loop.py), and the simulation.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.structure import SOURCES

pytestmark = SOURCES

TESTS = Path(__file__).resolve().parents[1]

# Whole directories: two in virtual time, and one whose faults last for a drawn time.
APART = ("faults", "simulation", "world")

POLL = "a poll with a limit, of what tells nobody"
DOUBLE = "stands for something that takes time"
LASTS = "something is to last: a fault, an attack, a stall, what a crowd does at random times"
SILENCE = "nothing is to happen meanwhile"

ALLOWED = {
    "attacks/soak.py: run": LASTS,
    "api/scripted.py: _default": DOUBLE,
    "broker/crowd.py: Consumer._call": "the pause of a client that asks again",
    "broker/processes/test_embedded_kill.py: test_flows_keep_their_partitions": LASTS,
    "broker/processes/test_two_services.py: peace": POLL,
    "broker/processes/test_two_services.py: test_a_crowd_on_two_services": LASTS,
    "broker/processes/test_two_services.py: test_a_large_crowd_that_changes_all_the_time": LASTS,
    "broker/processes/test_two_services.py: test_frozen_services_expire_no_flow": LASTS,
    "broker/processes/test_two_services.py:"
    " test_services_that_are_killed_one_after_the_other": LASTS,
    "broker/store/support.py: PostgresGround.until_waiting": POLL,
    "broker/store/test_commits.py: test_a_wait_for_a_lock_makes_a_commit_late": POLL,
    "broker/store/test_constraints.py: test_positions_and_leases_touch_no_index": POLL,
    "broker/store/test_notifications.py: Listening.quiet": SILENCE,
    "broker/store/test_notifications.py: test_pending_notifications_name_each_queue_once": SILENCE,
    "broker/replica/test_alarms.py: test_a_stall_of_the_loop_drops_no_alarm": LASTS,
    "broker/replica/test_alarms.py:"
    " test_a_periodic_callback_never_runs_twice_at_a_time.work": LASTS,
    "broker/replica/test_replicas_on_postgres.py: eventually": POLL,
    "counterpoise/consumer/test_batches.py: Running.handle": DOUBLE,
    "counterpoise/faulty.py: FaultyService._handler.Handler.act": LASTS,
    "counterpoise/spark/application.py: Sink.wait_if": "a file is all that reaches its process",
    "counterpoise/spark/sink/application.py: wait_if": "a file is all that reaches its process",
    "counterpoise/spark/source/test_available_now.py: TimedFlow.wait": DOUBLE,
    "counterpoise/spark/source/test_query.py: FlowDouble.wait": DOUBLE,
    "eventual.py: eventually": POLL,
    "service.py: running": POLL,
}


def sleeps(node: ast.AST, within: tuple[str, ...] = ()) -> Iterator[str]:
    """The functions that sleep, by qualified name; `asyncio.sleep(0)` does not count."""
    for child in ast.iter_child_nodes(node):
        inner = within
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                inner = (*within, child.name)
            case ast.Call(func=ast.Attribute(ast.Name("asyncio"), "sleep"), args=[ast.Constant(0)]):
                pass
            case ast.Attribute(ast.Name("time" | "asyncio"), "sleep") if not is_called(node, child):
                yield ".".join(within)
            case ast.Call(func=ast.Attribute(ast.Name("time" | "asyncio"), "sleep")):
                yield ".".join(within)
            case ast.ImportFrom("time" | "asyncio", names) if "sleep" in {n.name for n in names}:
                yield ".".join(within)
        yield from sleeps(child, inner)


def is_called(parent: ast.AST, function: ast.AST) -> bool:
    return isinstance(parent, ast.Call) and parent.func is function


def in_virtual_time(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "broker.testing.loop"
        and "virtual" in {name.name for name in node.names}
        for node in tree.body
    )


@functools.cache
def found() -> set[str]:
    places = set()
    for path in TESTS.rglob("*.py"):
        name, text = path.relative_to(TESTS), path.read_text("utf-8")
        if name.parts[0] in APART or "sleep" not in text:
            continue
        tree = ast.parse(text)
        if not in_virtual_time(tree):
            places |= {f"{name.as_posix()}: {function}" for function in sleeps(tree)}
    return places


def test_only_these_functions_sleep() -> None:
    assert found() - ALLOWED.keys() == set(), "wait for what is to happen, with a limit"


def test_every_allowed_function_still_sleeps() -> None:
    assert ALLOWED.keys() - found() == set()


def test_a_sleep_is_seen_however_it_is_written() -> None:
    assert list(sleeps(ast.parse("def f():\n time.sleep(1)"))) == ["f"]
    assert list(sleeps(ast.parse("class C:\n async def f():\n  await asyncio.sleep(x)"))) == ["C.f"]
    assert list(sleeps(ast.parse("def f():\n wait(time.sleep)"))) == ["f"]
    assert list(sleeps(ast.parse("from time import sleep"))) == [""]
    assert list(sleeps(ast.parse("async def f():\n await asyncio.sleep(0)"))) == []
