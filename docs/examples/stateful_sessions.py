"""Sessions of visitors: Spark's state store has the state before the partition is granted.

    python docs/examples/stateful_sessions.py --mock

starts everything on this machine: two applications share a queue of clicks, one of them leaves
while every visitor has a session open, and the other one closes those sessions with the clicks that
came before the handoff. With a service and a database of your own (with the table `TABLE`, below):

    counterpoise queues create clicks --partitions 8 --for spark
    counterpoise queues create clicks-history --log builtin:clicks --no-ordered-resize
    echo 'ada:{"at": 60}' | counterpoise publish clicks --key-separator :
    export COUNTERPOISE_SINK_URL=postgresql://writer:…@db/results
    python docs/examples/stateful_sessions.py --name first

A session is a visitor's clicks with less than half an hour between them. The first click after a
longer time ends the session, and the session is written.

How the state follows its partition
-----------------------------------
State is a function of the log: an application that has read a partition's messages up to a position
has the state of that position. So with `warmup=true` the successor of a partition first reads its
history, as rows flagged `replay`, while the owner keeps working. It says ready when it is near, the
owner releases, and the few remaining messages are read before the first new row.
`TenuredProcessor` drops the output of history rows (it was written before), and the state of an
earlier tenure: when a partition comes back, the old state lacks the messages of other owners.

The queue `clicks-history` has no consumers. So it keeps the log from being trimmed.

Each written session is made by one message, the click that ended it, and carries the position of
this message. So `FencedSink` writes it once, even after crashes (docs/warmup.md, docs/sink.md).
"""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
from _surroundings import SMALL, Given, Stage, main, verdict
from pyspark.sql import Row

from counterpoise.spark import FencedSink, TenuredProcessor, drain_on_sigterm, session

GAP_SECONDS = 1800
TABLE = (
    "CREATE TABLE sessions (partition int, position text, visitor text, began bigint, "
    "ended bigint, clicks int)"
)
SESSION = "partition int, position string, visitor string, began long, ended long, clicks int"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Sessions(TenuredProcessor):
    """The state of a visitor: the open session."""

    def open(self, handle: Any) -> None:
        self.current = handle.getValueState("session", "began long, last long, clicks int")

    def clear(self) -> None:
        self.current.clear()

    def on_rows(self, key: Any, rows: list[Row], timers: Any) -> Iterator[Row]:
        began, last, clicks = self.current.get() or (None, None, 0)
        for row in rows:
            if last is not None and row.at - last >= GAP_SECONDS:
                # Spark requires rows with names from a processor.
                yield Row(
                    partition=row.partition,
                    position=row.position,
                    visitor=row.key,
                    began=began,
                    ended=last,
                    clicks=clicks,
                )
                began, clicks = None, 0
            began, last, clicks = row.at if began is None else began, row.at, clicks + 1
        self.current.update((began, last, clicks))


def application(given: Given) -> None:
    """The work of each application."""
    # transformWithState needs RocksDB for its state.
    rocksdb = {"spark__sql__streaming__stateStore__providerClass": ROCKSDB}
    spark = session(given.name, **SMALL, **rocksdb)
    drain_on_sigterm(spark)  # told to end, it hands everything over first
    clicks = (
        spark.readStream.format("counterpoise")
        .option("queue", given.queue)
        .option("url", given.service)
        .option("clientName", given.name)
        .option("warmup", "true")
        .load()
        # The processor needs partition, position, key, tenure and replay.
        .selectExpr(
            *("partition", "position", "key", "tenure", "replay"),
            "cast(get_json_object(cast(value as string), '$.at') as bigint) as at",
        )
    )
    sessions = clicks.groupBy("partition", "key").transformWithState(
        Sessions(), SESSION, outputMode="Update", timeMode="None"
    )
    query = (
        sessions.writeStream.outputMode("update")
        .foreachBatch(FencedSink.to_table(None, "sessions"))
        .option("checkpointLocation", given.checkpoint)
        .start()
    )
    query.awaitTermination()


VISITORS = 40


def play(stage: Stage) -> None:
    """Two share; one leaves while sessions are open; the other one closes them."""
    stage.open(partition_count=4)
    stage.client.create_queue("clicks-history", 4, log="builtin:clicks", ordered_resize=False)
    with psycopg.connect(stage.results) as database:
        database.execute(TABLE)

    def publish(*times: int) -> None:
        for at in times:
            for visitor in range(VISITORS):
                value = json.dumps({"at": at}).encode()
                stage.publisher.publish(value, key=f"visitor-{visitor}")

    publish(0, 60, 120, 10_000, 10_060)  # one session of 3 clicks, and 2 clicks of the next one
    stage.start("first", "second")
    stage.until_done()
    stage.leave("first")
    publish(10_120, 10_180, 20_000)  # 2 more clicks of that, and one that closes it
    stage.until_done()
    with psycopg.connect(stage.results) as database:
        rows = database.execute("SELECT visitor, began, ended, clicks FROM sessions").fetchall()
    expected = [
        (f"visitor-{visitor}", *one)
        for visitor in range(VISITORS)
        for one in ((0, 120, 3), (10_000, 10_180, 4))
    ]
    whole = len(set(rows) & {one for one in expected if one[-1] == 4})
    verdict(
        sorted(rows) == sorted(expected),
        f"{len(rows)} of {len(expected)} sessions written; of those open during the handoff, "
        f"{whole} of {VISITORS} have all their clicks",
    )


if __name__ == "__main__":
    main(__doc__, application, play, queue="clicks")
