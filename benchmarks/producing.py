"""Messages to a topic of Kafka from a process of its own, which the consumers do not hold up.

    python -m benchmarks.producing SERVERS TOPIC PARTITIONS EVERY

Twenty times a second it publishes a message into each partition whose turn it is, one of EVERY. For
each line `FROM TO` that it reads it publishes one into each of these partitions, beside that. When
its input ends, it prints as JSON the offsets that the broker has acknowledged, by partition.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.traffic import traffic


class Producing:
    """Such a process."""

    def __init__(self, servers: str, topic: str, partitions: int, every: int) -> None:
        command = [sys.executable, "-m", __name__, servers, topic, str(partitions), str(every)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def once(self, partitions: range) -> None:
        """A message into each of these partitions; does not wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{partitions.start} {partitions.stop}\n")
        self._process.stdin.flush()

    def end(self) -> dict[int, set[int]]:
        """The offsets that the broker has acknowledged. Raises RuntimeError if it failed."""
        offsets, _ = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(f"the publisher ended with {self._process.returncode}")
        return {int(number): {*of} for number, of in json.loads(offsets).items()}


@contextmanager
def producing(
    servers: str, topic: str, partitions: int, every: int, acknowledged: dict[int, set[int]]
) -> Iterator[Producing]:
    """Publishes until the block ends, then adds what the broker has acknowledged."""
    source = Producing(servers, topic, partitions, every)
    try:
        yield source
    finally:
        for number, offsets in source.end().items():
            acknowledged[number] |= offsets


def main() -> None:
    """Publish until the input ends."""
    from confluent_kafka import Producer

    servers, topic, partitions, every = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5])
    acknowledged: defaultdict[int, list[int]] = defaultdict(list)

    def publish(producer: Any, numbers: Sequence[int]) -> None:
        left = {*numbers}

        def stored(error: object, message: Any) -> None:
            if error is None:
                acknowledged[message.partition()].append(message.offset())
                left.discard(message.partition())

        while left:  # a broker may not know yet that the topic has grown
            for number in sorted(left):
                producer.produce(topic, b"x" * 100, partition=number, on_delivery=stored)
            producer.flush()

    def maker() -> Any:
        return Producer({"bootstrap.servers": servers, "linger.ms": 0})

    steady, turns = maker(), itertools.cycle(range(every))
    beside: list[threading.Thread] = []
    with traffic(lambda: publish(steady, range(next(turns), partitions, every))):
        for line in sys.stdin:
            numbers = range(*map(int, line.split()))
            beside.append(threading.Thread(target=publish, args=(maker(), numbers)))
            beside[-1].start()
    for one in beside:
        one.join()
    print(json.dumps(acknowledged))


if __name__ == "__main__":
    main()
