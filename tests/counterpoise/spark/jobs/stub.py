"""A program that does no work and has no Spark, in place of a driver's: it only answers.

It starts in a tenth of the time, so tests of the pool can kill it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from importlib.metadata import version
from multiprocessing.connection import Connection

from tests.counterpoise.spark.jobs.drivers import Ended, Started, Warm


def answer(connection: Connection) -> None:
    """Runs each job until it is told to stop. A child stands for the JVM, and outlives it."""
    connection.recv()
    subprocess.Popen(["sleep", "600"])
    connection.send(Warm(version("pyspark")))
    with contextlib.suppress(EOFError):
        while True:
            connection.recv()
            connection.send(Started())
            connection.recv()
            connection.send(Ended(None, ()))


if __name__ == "__main__":
    answer(Connection(int(sys.argv[1])))
