"""A publisher or a consumer of one of the queues that `benchmarks.postgres_queues` compares.

    python queue_workers.py QUEUE publish|consume URL NAME

A publisher reads a byte from its standard input for each batch that it may publish. A consumer
writes the number of each message that it handles to its standard output, as 8 bytes, before it
acknowledges it. So what it has written counts, also after a kill. That of procrastinate runs in the
environment of the peers (`benchmarks.peers`).
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from collections.abc import Iterator

BATCH = {"counterpoise": 500, "pgmq": 500, "procrastinate": 100}
"""Messages in a batch."""
BODY = "x" * 240
VISIBILITY_SECONDS = 15
"""How long a message that pgmq has given out is not given out again; as long until procrastinate
takes a worker without a heartbeat for dead."""
READ_MESSAGES = 100
WORKERS = 16


def batches(size: int) -> Iterator[range]:
    """The numbers of each batch that may be published."""
    first = 0
    while allowed := os.read(0, 64):
        for _ in allowed:
            yield range(first, first + size)
            first += size


def handle(number: int) -> None:
    """What each consumer does with a message."""
    os.write(1, struct.pack("=q", number))


# ------------------------------------------------------------------ the built-in log


def publish_counterpoise(url: str, name: str) -> None:
    from counterpoise.publisher import Publisher

    with Publisher(name, url=url) as publisher:
        for batch in batches(BATCH["counterpoise"]):
            for number in batch:
                publisher.publish(f"{number:016}{BODY}".encode(), f"key-{number % 1000}")


def consume_counterpoise(url: str, name: str, instance: str) -> None:
    from counterpoise.consumer import Consumer, stop_on_signals

    consumer = Consumer(
        name, each=lambda message: handle(int(message.value[:16])), url=url, instance_id=instance
    )
    with stop_on_signals(consumer):
        consumer.run()


# ------------------------------------------------------------------ pgmq


def publish_pgmq(url: str, name: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for batch in batches(BATCH["pgmq"]):
            values = [json.dumps({"number": number, "body": BODY}) for number in batch]
            connection.execute("SELECT pgmq.send_batch(%s, %s::jsonb[])", [name, values])


def consume_pgmq(url: str, name: str, _instance: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            found = connection.execute(
                "SELECT msg_id, message->'number' FROM pgmq.read(%s, %s, %s)",
                [name, VISIBILITY_SECONDS, READ_MESSAGES],
            ).fetchall()
            if not found:
                time.sleep(0.01)
                continue
            for _, number in found:
                handle(number)
            connection.execute("SELECT pgmq.delete(%s, %s)", [name, [one for one, _ in found]])


# ------------------------------------------------------------------ procrastinate


def publish_procrastinate(url: str, name: str) -> None:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url))
    with app.open():
        task = app.configure_task(name, queue=name)
        for batch in batches(BATCH["procrastinate"]):
            task.batch_defer(*({"number": number, "body": BODY} for number in batch))


def consume_procrastinate(url: str, name: str, instance: str) -> None:
    import procrastinate

    connector = procrastinate.PsycopgConnector(conninfo=url, max_size=WORKERS + 4)
    app = procrastinate.App(connector=connector)

    @app.task(name=name, queue=name, pass_context=False)
    async def work(number: int, body: str) -> None:
        handle(number)

    # Jobs of workers that are gone are tried again by such a task, as its manual advises.
    async def retry_stalled() -> None:
        while True:
            await asyncio.sleep(VISIBILITY_SECONDS / 3)
            stalled = await app.job_manager.get_stalled_jobs(
                seconds_since_heartbeat=VISIBILITY_SECONDS
            )
            for job in stalled:
                await app.job_manager.retry_job(job)

    async def run() -> None:
        async with app.open_async():
            retrying = asyncio.create_task(retry_stalled())
            await app.run_worker_async(
                queues=[name],
                name=instance,
                concurrency=WORKERS,
                update_heartbeat_interval=VISIBILITY_SECONDS / 3,
                stalled_worker_timeout=VISIBILITY_SECONDS,
            )
            retrying.cancel()

    asyncio.run(run())


def install_pgmq(url: str) -> None:
    import psycopg
    from pgmq.install import get_embedded_install_sql

    with psycopg.connect(url) as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS pgmq")
        connection.execute(get_embedded_install_sql())


def install_procrastinate(url: str) -> None:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url))
    with app.open():
        app.schema_manager.apply_schema()


if __name__ == "__main__":
    queue, role, *arguments = sys.argv[1:]
    globals()[f"{role}_{queue}"](*arguments)
