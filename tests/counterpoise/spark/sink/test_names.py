"""A name is used once in a micro-batch, however the sinks are made."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from counterpoise.spark import FencedSink, QueueSink
from counterpoise.spark.errors import InvalidSink
from counterpoise.spark.sink import queue
from counterpoise.spark.sink.names import used_once


def write(name: str, batch_id: int, *, run: str = "one", kind: type = FencedSink) -> None:
    with used_once(kind, name, "target", run, batch_id):
        pass


def test_a_micro_batch_is_written_once_under_a_name() -> None:
    """No sink is kept: as with those that `foreachBatch` makes anew for each table."""
    write("a", 7)
    with pytest.raises(InvalidSink, match="one sink twice"):
        write("a", 7)
    write("b", 7)
    write("a", 7, kind=QueueSink)
    write("a", 8)
    # A query that starts again repeats its last micro-batch.
    write("a", 8, run="two")


def test_queues_of_one_name_at_two_services_are_two_targets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = SimpleNamespace(run_id="one", planned=SimpleNamespace(queue="in"))
    monkeypatch.setattr(queue, "batches_by_queue", lambda one: nullcontext([(running, one)]))
    monkeypatch.setattr(QueueSink, "_write", lambda *_: [])
    schema = (
        StructType().add("value", "binary").add("partition", "integer").add("position", "string")
    )
    batch: Any = SimpleNamespace(schema=schema)
    QueueSink("out", url="http://a")(batch, 7)
    QueueSink("out", url="http://b")(batch, 7)
    with pytest.raises(InvalidSink, match="for queue 'out'"):
        QueueSink("out", url="http://b")(batch, 7)


def test_what_has_failed_may_be_tried_again_and_what_runs_may_not() -> None:
    def fail() -> None:
        with used_once(FencedSink, "c", "target", "one", 7):
            with pytest.raises(InvalidSink):
                write("c", 7)
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail()
    write("c", 7)
