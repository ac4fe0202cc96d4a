"""A consumer of the demo in plain Python: `python -m broker.demo.work.consumer`.

It does the same work as the PySpark application (`application.py`), without Spark. The code that a
user writes is `consume`: a `Consumer` and a function for its batches. It knows nothing of splits
and merges: a partition that was sealed ends, and what comes after it is granted to somebody.
"""

import argparse
import sys
from itertools import count

import pyarrow as pa

from broker.demo.work.flights import Flight
from broker.demo.work.sink import FlightMessage, FlightSlice
from broker.demo.work.staging import Cues, Work, parser
from counterpoise.consumer import Consumer
from counterpoise.consumer.message import Ownership
from counterpoise.logs.columns import times


def consume(options: argparse.Namespace, work: Work) -> Consumer:
    """The consumer: no more code is needed to share a queue with other applications."""
    batches = count()

    def handle(owned: Ownership, batch: pa.RecordBatch) -> None:
        messages = [
            FlightMessage(int(position), Flight.of(value), published_at.timestamp())
            for position, value, published_at in zip(
                batch["position"].to_pylist(),
                batch["value"].to_pylist(),
                times(batch["published_at"]),
                strict=True,
            )
        ]
        work(next(batches), [FlightSlice(owned.partition, owned.epoch, messages)])

    return Consumer(
        options.queue,
        handle,
        url=options.url,
        client_name=options.name,
        instance_id=options.instance,
        lease_seconds=options.lease_seconds,
        max_messages=options.max_messages,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM, the end of standard input or a drain."""
    options = parser("broker.demo.work.consumer").parse_args(arguments)
    cues = Cues()
    if cues.wait():
        work = Work(options)
        consume(options, work).run(until=cues.stop.is_set)
        work.sink.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
