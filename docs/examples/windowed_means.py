"""Mean temperature of each sensor in each minute, by applications that join, leave and crash.

    python docs/examples/windowed_means.py --mock

starts everything on this machine: two applications share a queue of readings. One leaves and one is
killed while every window is open, and at the end each window has one row with all its readings.
With a service and a database of your own (with the table `TABLE`, below), in any number of
terminals, each under another name:

    counterpoise queues create readings --partitions 8 --for spark
    echo 's1 {"at": "2026-01-01T12:00:07Z", "degrees": 20}' |
        counterpoise publish readings --key-separator ' '
    export COUNTERPOISE_SINK_URL=postgresql://writer:…@db/results
    python docs/examples/windowed_means.py --name first

Why each window is whole
------------------------
What was counted of an open window is in the database, not in Spark's checkpoint. So it is there
whoever owns the partition next. A window is closed when all partitions have passed its end, also
those of other applications (docs/aggregates.md).
"""

import json
from datetime import UTC, datetime, timedelta

import psycopg
from _surroundings import SMALL, Given, Stage, main, verdict

from counterpoise.spark import Avg, Count, FencedAggregate, Windows, drain_on_sigterm, session

TABLE = (
    "CREATE TABLE means (window_start timestamptz, window_end timestamptz, key text,"
    " readings bigint, mean double precision)"
)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def application(given: Given) -> None:
    """The work of each application."""
    spark = session(given.name, **SMALL)
    drain_on_sigterm(spark)
    readings = (
        spark.readStream.format("counterpoise")
        .option("queue", given.queue)
        .option("url", given.service)
        .option("clientName", given.name)
        .option("leaseSeconds", 4)  # how long it keeps its partitions after it dies
        .load()
        .selectExpr(
            *("partition", "position", "key"),
            "cast(get_json_object(cast(value as string), '$.at') as timestamp) as measured_at",
            "cast(get_json_object(cast(value as string), '$.degrees') as int) as degrees",
        )
    )
    sink = FencedAggregate(
        None,  # the database's address comes from COUNTERPOISE_SINK_URL
        "means",
        values={"readings": Count(), "mean": Avg("degrees")},
        windows=Windows("measured_at", size_seconds=60),
    )
    query = (
        readings.writeStream.foreachBatch(sink)
        .option("checkpointLocation", given.checkpoint)
        .start()
    )
    query.awaitTermination()


SENSORS = 40


def play(stage: Stage) -> None:
    """Two share; one leaves, the other is killed, and what they have counted stays."""
    stage.open(partition_count=4)
    with psycopg.connect(stage.results) as database:
        database.execute(TABLE)

    def publish(minutes: int, seconds: int) -> None:
        for minute in range(minutes):
            at = NOON + timedelta(minutes=minute, seconds=seconds)
            for sensor in range(SENSORS):
                value = json.dumps({"at": at.isoformat(), "degrees": minute + seconds})
                stage.publisher.publish(value.encode(), key=f"sensor-{sensor}")

    # All of them are in one minute, so its window stays open.
    publish(1, 10)
    stage.start("first", "second")
    stage.until_done()
    stage.leave("second")
    publish(1, 20)
    stage.start("third")
    stage.until_done()
    publish(1, 30)
    stage.kill("first")
    publish(1, 40)
    # An hour later all partitions have passed it.
    at = NOON + timedelta(hours=1)
    for sensor in range(SENSORS):
        value = json.dumps({"at": at.isoformat(), "degrees": 0})
        stage.publisher.publish(value.encode(), key=f"sensor-{sensor}")
    stage.until_done()
    with psycopg.connect(stage.results) as database:
        query = "SELECT window_start, readings, mean FROM means"
        stage.until(
            lambda: len(database.execute(query).fetchall()) >= SENSORS, "the window is closed"
        )
        rows = database.execute(query).fetchall()
    verdict(
        rows == [(NOON, 4, 25.0)] * SENSORS,
        f"{len(rows)} of {SENSORS} sensors have one mean of four readings",
    )


if __name__ == "__main__":
    main(__doc__, application, play, queue="readings")
