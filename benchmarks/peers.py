"""Our planner beside those of Kafka's Python clients: one member joins, on the same state.

    python -m benchmarks.peers

kafka-python, aiokafka and faust run in an environment of their own, which is made the first time
(their versions are in `peers.txt`); `benchmarks.planners` calls them there.

* *plan*: the CPU time of the plan. Ours is the decision with the records of its handoffs
  (`benchmarks.growth`). A peer plans from nothing but the members' states, and ours from the state
  that the service holds. The yardstick of a peer is our time.
* *partitions that move*: each has a pause. No plan can move fewer than the new member's share.
* *spread*: the difference between the most and the least loaded member after the join.

A plan is not a rebalance: with the range, round robin and faust planners all members stop until all
have joined again, with a sticky one too unless the group is cooperative. `benchmarks.protocols`
measures joins.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import growth
from benchmarks.figures import Figure, beside, timed
from tests.broker.core.large import large

LOCK = Path(__file__).with_name("peers.txt")
PLANNERS = Path(__file__).with_name("planners.py")
OURS = "ours"
# (members, partitions)
SIZES = ((10, 1_000), (100, 10_000))


def main() -> None:
    """Measure, print."""
    for figure in figures():
        print(figure)


def figures(quick: bool = False) -> list[Figure]:
    """The plan of a join by each planner, what it moves, and the spread."""
    python = environment()
    rounds = 1 if quick else 5
    return [figure for size in SIZES for figure in _plans(python, *size, rounds)]


def _plans(python: Path, members: int, partitions: int, rounds: int) -> list[Figure]:
    queue = large(partitions, members)
    ours = [growth.join(queue, number) for number in range(rounds)]
    seconds = [took for took, _ in ours]
    join = f"{members} → {members + 1} members, {partitions:,} partitions"
    command = [str(python), str(PLANNERS), str(members), str(partitions), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peers: dict[str, Any] = json.loads(done.stdout)
    median = statistics.median(seconds)
    plan = f"plan, {join}"
    found = beside(OURS, timed(plan, seconds), *_moved(join, [moved for _, moved in ours], 1))
    for peer, one in peers.items():
        moved = _moved(join, [one["moved"]], one["spread"])
        found += beside(peer, timed(plan, one["seconds"], OURS, median), *moved)
    return found


def _moved(join: str, counts: Sequence[int], left: int) -> list[Figure]:
    found = {"partitions that move": statistics.median(counts), "spread afterwards": left}
    return [Figure(f"{what}, {join}", one, "", rounds=len(counts)) for what, one in found.items()]


def environment() -> Path:
    """The Python of the peers' environment, made anew when `peers.txt` changes.

    Raises CalledProcessError.
    """
    directory = Path(sys.prefix) / "peers"
    python = directory / "bin" / "python"
    made = directory / "made-of.txt"
    if not made.exists() or made.read_bytes() != LOCK.read_bytes():
        print(f"{directory}: the peers' environment (once)", flush=True)
        venv.create(directory, clear=True)
        # Our own pip, and what is imported is compiled: half of the work.
        command = [sys.executable, "-m", "pip", "--quiet", "--python", str(python), "install"]
        command += ["--no-compile", "--no-deps", "--require-hashes"]
        subprocess.run([*command, "-r", str(LOCK)], check=True)
        made.write_bytes(LOCK.read_bytes())
    return python


if __name__ == "__main__":
    main()
