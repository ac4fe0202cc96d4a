"""The yardsticks, measured in the same run as the figures that are compared with them.

    python -m benchmarks.yardsticks [--rounds 500]

* **Y1**: a durable `UPDATE` of one row over asyncpg, on the Postgres of the measured service.
* **Y2**: a GET of a bare Starlette route, under the same server (`benchmarks.bare`) and by the same
  client.

A call that changes something cannot cost less than Y1 + Y2. The load of a machine changes from
second to second. So a benchmark takes a sample of both next to each of its rounds, and compares
medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from benchmarks.figures import Figure, timed
from benchmarks.service import Served, run_service, started
from benchmarks.wire import Caller

Y1, Y2, CALL = "Y1", "Y2", "Y1 + Y2"
_TABLE = "counterpoise_yardstick"


@dataclass
class Yardsticks:
    """Samples of Y1 and Y2, in seconds."""

    connection: asyncpg.Connection[asyncpg.Record]
    bare: Caller
    y1_samples: list[float] = field(default_factory=list)
    y2_samples: list[float] = field(default_factory=list)

    async def sample(self, times: int = 1) -> None:
        """Measure both; call it next to each round of what is compared with them."""
        for _ in range(times):
            began = time.perf_counter()
            await self.connection.execute(f"UPDATE {_TABLE} SET n = n + 1 WHERE id = 1")
            updated = time.perf_counter()
            await self.bare("GET", "/bare")
            self.y1_samples.append(updated - began)
            self.y2_samples.append(time.perf_counter() - updated)

    @property
    def y1_seconds(self) -> float:
        return statistics.median(self.y1_samples)

    @property
    def y2_seconds(self) -> float:
        return statistics.median(self.y2_samples)

    @property
    def call_seconds(self) -> float:
        """Y1 + Y2."""
        return self.y1_seconds + self.y2_seconds

    def timed(self, name: str, seconds: list[float], target: float | None = None) -> Figure:
        """The median of some rounds, in units of Y1 + Y2."""
        return timed(name, seconds, CALL, self.call_seconds, target)

    def figures(self) -> list[Figure]:
        """The yardsticks themselves."""
        return [
            timed("Y1: durable update of one row", self.y1_samples),
            timed("Y2: GET of a bare route", self.y2_samples),
        ]


@contextmanager
def bare_service() -> Iterator[Served]:
    """The bare route as a process."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "benchmarks.bare"]
        with started(command, Path(directory) / "log") as service:
            yield service


@asynccontextmanager
async def yardsticks(database_url: str) -> AsyncIterator[Yardsticks]:
    """Y1 on this Postgres, and Y2; both warm."""
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(
            f"CREATE TABLE IF NOT EXISTS {_TABLE} (id int PRIMARY KEY, n int);"
            f"INSERT INTO {_TABLE} VALUES (1, 0) ON CONFLICT DO NOTHING"
        )
        with bare_service() as service:
            async with Caller(service.url) as bare:
                found = Yardsticks(connection, bare)
                await found.sample(50)
                found.y1_samples.clear()
                found.y2_samples.clear()
                yield found
    finally:
        await connection.close()


def figures(quick: bool = False) -> list[Figure]:
    """The yardsticks alone."""
    return run_service(lambda served: _alone(served, 100 if quick else 500))


async def _alone(served: Served, rounds: int) -> list[Figure]:
    async with yardsticks(served.database_url) as yard:
        await yard.sample(rounds)
        return yard.figures()


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    rounds: int = parser.parse_args().rounds
    for figure in run_service(lambda served: _alone(served, rounds)):
        print(figure)


if __name__ == "__main__":
    main()
