"""How soon a stateful application has output after it was granted a partition, with and without
warm-up.

    python -m benchmarks.warmup [--megabytes 500] [--history 20000]

A real service on an embedded Postgres, and two real Spark applications with a driver each. The
first partition has all the state, the second hardly any. The successor has joined already and
processes the second. The owner of the first is drained while twenty messages a second come in.
Measured is the time from the moment at which the service names the new owner until the application
writes its first output of that partition; and, during the warm-up, the longest pause of the owner.

* *snapshot*: state of foreachBatch of so many megabytes. Cold: without warm-up, the snapshot is
  loaded after the grant.
* *replay*: state of transformWithState from so many messages. Cold: they are replayed after the
  grant.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from benchmarks.service import served
from benchmarks.sessions import session
from benchmarks.traffic import traffic
from counterpoise.client import Client
from counterpoise.keys import partition_of
from counterpoise.publisher import Publisher

# The number of entries that a message adds to the state, and the memory of an entry (measured).
ENTRIES = 100
ENTRY_BYTES = 130
WAIT_SECONDS = 300.0
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--history", type=int, default=20_000)
    parser.add_argument("--only", choices=["snapshot", "replay"])
    parser.add_argument("--application", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.application:
        application(json.loads(arguments.application))
        return
    with tempfile.TemporaryDirectory() as directory, served(Path(directory)) as url:
        with Client(url) as client:
            messages = arguments.megabytes * 1024 * 1024 // (ENTRIES * ENTRY_BYTES)
            if arguments.only != "replay":
                what = f"{arguments.megabytes} MB of state"
                for warm in (True, False):
                    measure(client, url, Path(directory), "snapshot", warm, messages, what)
            if arguments.only != "snapshot":
                what = f"state of {arguments.history:,} messages"
                for warm in (True, False):
                    measure(client, url, Path(directory), "replay", warm, arguments.history, what)


def measure(
    client: Client, url: str, directory: Path, kind: str, warm: bool, messages: int, what: str
) -> None:
    """One handoff; prints its line."""
    name = f"{kind}-{'warm' if warm else 'cold'}"
    # With max_warmup_time 0 no partition is warmed up.
    limits = {} if warm else {"max_warmup_time": 0}
    client.create_queue(name, 2, rebalance_delay=0, max_handoff_time=60, **limits)
    client.create_queue(f"{name}-history", 2, log=f"builtin:{name}")
    numbers = (number for number in itertools.count() if partition_of(f"key-{number}", 2) == 0)
    with Publisher(name, url=url, batch_messages=1000) as publisher:
        for number in itertools.islice(numbers, messages):
            publisher.publish(b"x" * 100, f"key-{number}")
    with contextlib.ExitStack() as ending:
        owner = ending.enter_context(running(url, directory, name, kind, warm, "owner"))
        until(lambda: position_of(client, name) >= messages, "the owner has its state")
        if kind == "snapshot":
            until(lambda: snapshot_at(directory, name) >= messages, "it is published")
        publisher = ending.enter_context(Publisher(name, url=url))
        keys = itertools.count()

        def publish() -> None:
            publisher.publish(b"y", f"key-{next(keys) % 100}")
            publisher.flush()

        ending.enter_context(traffic(publish))
        successor = ending.enter_context(running(url, directory, name, kind, warm, "successor"))
        until(lambda: successor.next().get("partition") == 1, "the successor works")
        before = client.partitions(name)[0]
        (flow,) = [one for one in client.flows(name) if one.client_name == "owner"]
        owner.clear()
        began = time.time()
        client.drain(name, flow.flow_id)
        while (now := client.partitions(name)[0]).epoch == before.epoch or now.owner is None:
            assert time.time() - began < WAIT_SECONDS
            time.sleep(0.005)
        granted = time.time()
        first = successor.first(before.epoch)
        # The owner's last output comes with the revoke and is not a pause.
        outputs = [began, *(one["at"] for one in owner.all() if one["partition"] == 0)]
        pause = max((b - a for a, b in itertools.pairwise(outputs)), default=0.0)
        print(
            f"{kind:<9} {what}, {'with' if warm else 'without'} warm-up: "
            f"grant to first output {first - granted:>7.2f} s"
            + (
                f"; warm-up and handoff {granted - began:.2f} s, "
                f"the owner's longest pause meanwhile {pause:.2f} s"
                if warm
                else ""
            ),
            flush=True,
        )
    client.delete_queue(f"{name}-history", force=True)
    client.delete_queue(name, force=True)


class Running:
    """An application's process and its output."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._said.put(json.loads(line))

    def next(self) -> dict[str, Any]:
        return self._said.get(timeout=WAIT_SECONDS)

    def first(self, after_epoch: int) -> float:
        """The time of the first output under a later epoch."""
        while True:
            said = self.next()
            if said.get("partition") == 0 and said["epoch"] > after_epoch:
                return float(said["at"])

    def all(self) -> list[dict[str, Any]]:
        return [self._said.get() for _ in range(self._said.qsize())]

    def clear(self) -> None:
        self.all()


@contextlib.contextmanager
def running(
    url: str, directory: Path, name: str, kind: str, warm: bool, who: str
) -> Iterator[Running]:
    """The application, once it has started; ends with the context."""
    settings = {
        "url": url,
        "queue": name,
        "kind": kind,
        "warm": warm,
        "who": who,
        "home": str(directory / f"{name}-{who}"),
        "snapshots": str(directory / "snapshots" / name),
    }
    with (directory / f"{name}-{who}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.warmup", "--application", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        application = Running(process)
        application.next()
        yield application
    except queue.Empty:
        print((directory / f"{name}-{who}.log").read_text()[-3000:])
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def position_of(client: Client, name: str) -> int:
    return int(client.partitions(name)[0].position or 0)


def snapshot_at(directory: Path, name: str) -> int:
    found = (directory / "snapshots" / name).rglob("*.snapshot")
    return max((int(path.name.partition("_")[0]) for path in found), default=0)


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in time: {what}")
        time.sleep(0.05)


# ---------------------------------------------------------------------- the application


def application(settings: dict[str, Any]) -> None:
    """A driver: warms Spark up, starts its query, and reports output."""
    from pyspark.sql import Row

    from counterpoise import spark as cs

    home = Path(settings["home"])
    spark = session(
        settings["who"],
        2,
        home,
        spark__sql__shuffle__partitions="2",
        spark__sql__streaming__stateStore__providerClass=ROCKSDB,
    )
    options = {"url": settings["url"], "queue": settings["queue"], "clientName": settings["who"]}

    # The first micro-batch of a Spark session takes seconds, so another query takes it.
    def nothing(batch: Any, _: int) -> None:
        batch.toArrow()

    spark.read.format("counterpoise").options(
        url=settings["url"], queue=settings["queue"]
    ).load().limit(10).toArrow()
    rate = spark.readStream.format("rate").load()
    small = rate.writeStream.foreachBatch(nothing).trigger(availableNow=True)
    small.option("checkpointLocation", str(home / "small")).start().awaitTermination()

    def say(partition: int, epoch: int) -> None:
        said = {"partition": partition, "epoch": epoch, "at": time.time()}
        print(json.dumps(said), flush=True)

    class Entries(cs.PartitionState[dict[str, dict[str, float]]]):
        """A hundred small objects for each key, as in typical Python programs."""

        def empty(self, partition: int) -> dict[str, dict[str, float]]:
            return {}

        def apply(self, state: dict[str, dict[str, float]], rows: Any) -> int:
            for key in rows["key"].to_pylist():
                state[key] = {f"{key}/{n}": float(n) for n in range(ENTRIES)}
            return len(state)

        def dump(self, state: dict[str, dict[str, float]], file: BinaryIO) -> None:
            pickle.dump(state, file, protocol=5)

        def load(self, file: BinaryIO) -> dict[str, dict[str, float]]:
            state: dict[str, dict[str, float]] = pickle.load(file)
            return state

    class Counted(cs.TenuredProcessor):
        """A number for each key."""

        def open(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "n long")

        def clear(self) -> None:
            self.count.clear()

        def on_rows(self, key: Any, rows: list[Row], timers: Any) -> Iterator[Row]:
            known = self.count.get()
            n = (known[0] if known is not None else 0) + len(rows)
            self.count.update((n,))
            yield Row(partition=key[0], epoch=rows[-1]["epoch"], n=n)

    def write(outputs: Sequence[cs.Output], _: int) -> None:
        for one in outputs:
            if one.value is not None:
                say(one.partition, one.epoch)

    def put_out(batch: Any, _: int) -> None:
        rows = batch.select("partition", "epoch").toArrow().to_pylist()
        for partition, epoch in {(row["partition"], row["epoch"]) for row in rows}:
            say(partition, epoch)

    if settings["kind"] == "replay":
        options["warmup"] = "true"  # without it there is no history; the queue allows no time
    elif settings["warm"]:
        options |= {"warmup": "true", "warmupFrom": "snapshot"}
    messages = spark.readStream.format("counterpoise").options(**options).load()
    if settings["kind"] == "snapshot":
        handler = cs.StatefulForeachBatch(
            options,
            Entries(),
            write,
            snapshots=cs.Snapshots(settings["snapshots"]),
            publish_seconds=20.0,
        )
        writer = messages.writeStream.foreachBatch(handler)
    else:
        counted = messages.groupBy("partition", "key").transformWithState(
            Counted(), "partition int, epoch long, n long", "Update", "None"
        )
        writer = counted.writeStream.outputMode("Update").foreachBatch(put_out)
    query = writer.option("checkpointLocation", str(home / "checkpoint")).start()
    print(json.dumps({"started": True}), flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main()
