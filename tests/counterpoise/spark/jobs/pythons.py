"""The Python processes of local Sparks in the tests: forks of one that has loaded all they need.

Spark starts a process for the source of each query, and one that forks its workers. Each takes a
second of processor time until it has loaded PySpark and the modules of the source. In the tests
there are hundreds.

So PYSPARK_PYTHON is a program, the *launcher*, that asks a nursery (`tests/forked.py`) for such a
process, and stands for it: it ends with the fork, as that has ended, and the fork ends with it.
What it is not made for it gives to Python itself. The nursery of a driver is its child, forked
before the JVM starts, so all processes are descendants of the driver. Arrow and numpy bring a
thread each (jemalloc, OpenBLAS), and provide for forks. Sparks on clusters and those of programs
that tests start are as users have them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.forked import run, serve

ROOT = Path(__file__).resolve().parents[4]
FORKED = (
    "pyspark.daemon",
    "pyspark.sql.connect.streaming.worker.foreach_batch_worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
)
WARM = (
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "pyspark.sql.worker.plan_data_source_read",
    "counterpoise.spark.sink.writer",
    "counterpoise.spark.source.opening",
    "counterpoise.spark.source.reader",
    "counterpoise.spark.source.tasks",
)
# By them a launcher is told from other processes.
FLAGS = "-IS"
LAUNCHER = """\
#!{python} {flags}
import os, sys
if sys.argv[1:2] != ["-m"] or sys.argv[2] not in {forked!r}:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
import contextlib, json, signal, socket
request = dict(
    module=sys.argv[2], arguments=sys.argv[3:], environment={{**os.environ}}, directory=os.getcwd()
)
told, tell = os.pipe()
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nursery:
    nursery.connect({address!r})
    own = os.pidfd_open(os.getpid())
    socket.send_fds(nursery, [json.dumps(request).encode()], [0, 1, 2, tell, own])
os.close(tell)
with open(told) as told:
    fork = int(told.readline())
    def end(*_):
        with contextlib.suppress(ProcessLookupError):
            os.kill(fork, signal.SIGTERM)
    signal.signal(signal.SIGTERM, end)
    with open("/proc/self/comm", "w") as name:
        name.write("fork %d" % fork)  # see tests/processes.py
    code = int(told.readline() or -signal.SIGKILL)
if code < 0:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def forked(directory: Path) -> dict[str, Any] | None:
    """Set PYSPARK_PYTHON for a Spark that this process starts later; it has no thread yet.

    Returns None, and in each fork that this Spark gets, what it is to `run`.
    """
    with _control(directory) as (launcher, control):
        os.environ["PYSPARK_PYTHON"] = str(launcher)
        parent = os.pidfd_open(os.getpid())
        if os.fork() == 0:
            return _nursery(control, parent)
        os.close(parent)
        return None


@contextlib.contextmanager
def spawned(directory: Path) -> Iterator[Path]:
    """The launcher for a process with threads: its nursery loads everything itself, and ends with
    this context.
    """
    with _control(directory) as (launcher, control):
        nursery = subprocess.Popen(
            [sys.executable, "-m", __name__, str(control.fileno())],
            pass_fds=[control.fileno()],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
        address = control.getsockname()
    with nursery, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.connect(address)
        try:
            yield launcher
        finally:
            end.send(b"")


@contextlib.contextmanager
def _control(directory: Path) -> Iterator[tuple[Path, socket.socket]]:
    """The launcher, and the socket on which its nursery hears it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as control:
        address = f"\0{uuid.uuid4()}"
        control.bind(address)
        launcher = directory / "python"
        launcher.write_text(
            LAUNCHER.format(python=sys.executable, flags=FLAGS, forked=FORKED, address=address)
        )
        launcher.chmod(0o755)
        yield launcher, control


def _nursery(control: socket.socket, parent: int) -> dict[str, Any]:
    for module in WARM:
        importlib.import_module(module)
    request = serve(control, parent)
    if request is None:
        os._exit(0)
    os.close(parent)
    return request


if __name__ == "__main__":
    run(_nursery(socket.socket(fileno=int(sys.argv[1])), os.pidfd_open(os.getppid())))
