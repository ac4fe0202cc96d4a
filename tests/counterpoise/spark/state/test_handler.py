"""The refusals of `StatefulForeachBatch`; its work is tested with applications."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest

from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.spark import Snapshots, StatefulForeachBatch
from counterpoise.spark.channel.channel import Channel, driver_home
from counterpoise.spark.channel.running_batch import BatchPlan, RunningBatch
from counterpoise.spark.data_source import SCHEMA
from counterpoise.spark.errors import InvalidOption, Unsupported
from counterpoise.spark.offsets import Slice
from counterpoise.spark.source.log_partition import ARROW_SCHEMA
from counterpoise.spark.state.handler import in_order, rows_of
from tests.counterpoise.spark.state.test_state_keeper import reach
from tests.counterpoise.spark.state.test_states import TEXTS, Letters
from tests.log_support import append, log, log_url, until

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["log", "log_url"]


def test_options_are_checked_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="did you mean 'queue'"):
        StatefulForeachBatch(
            {"qeue": "q"}, Letters(), lambda *_: None, snapshots=Snapshots(tmp_path)
        )


def test_the_query_reads_the_queue_of_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the states would be of the messages of another queue, without an error."""
    planned = BatchPlan({}, {"queue": "flights"}, "id", "log", (), ())
    running = RunningBatch(None, "run", planned, Channel(tmp_path, "source"))
    monkeypatch.setattr(RunningBatch, "of", lambda _: running)
    handler = StatefulForeachBatch(
        {"queue": "trips"}, Letters(), lambda *_: None, snapshots=Snapshots(tmp_path)
    )
    with pytest.raises(InvalidOption, match="of the queue 'trips', and its query reads 'flights'"):
        handler(cast("DataFrame", None), 0)
    handler.close()


@pytest.mark.xdist_group("spark")
def test_it_is_called_by_foreach_batch_alone(spark: SparkSession, tmp_path: Path) -> None:
    handler = StatefulForeachBatch(
        {"queue": "q"}, Letters(), lambda *_: None, snapshots=Snapshots(tmp_path)
    )
    with pytest.raises(Unsupported, match="foreachBatch"):
        handler(spark.range(1), 0)
    handler.close()
    handler.close()


@pytest.mark.xdist_group("spark")
def test_the_rows_are_those_of_the_source(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(0, "5", 2, "k", b"v", {"h": "1"}, None, 2, False)], SCHEMA)
    table = rows_of(rows)
    assert table.schema.equals(ARROW_SCHEMA)
    assert table.num_rows == 1
    assert pa.types.is_map(table.schema.field("headers").type)
    with pytest.raises(InvalidOption, match="select and filter within apply"):
        rows_of(rows.drop("headers"))


def test_rows_of_a_partition_that_several_tasks_have_read_are_put_in_order() -> None:
    rows = [{"partition": at % 2, "position": str(at)} for at in (9, 100, 11, 10, 8, 1000)]
    table = in_order(pa.Table.from_pylist(rows))
    assert table["position"].to_pylist() == ["8", "9", "10", "11", "100", "1000"]
    assert table["partition"].to_pylist() == [0, 1, 0, 1, 0, 0]


def test_a_restarted_query_learns_the_ready_partitions_again(tmp_path: Path) -> None:
    """The restart clears the channel, and the handler is the same."""
    channel = Channel(driver_home(), "again")
    options = {"queue": "q", "instanceId": "again", "warmup": "true", "warmupFrom": "snapshot"}
    warming = {"epoch": 2, "state": "warming", "position": None, "handed_over": None}
    view = {"status": "bound", "partitions": {"3": warming}}
    handler = StatefulForeachBatch(
        options, Letters(), lambda *_: None, snapshots=Snapshots(tmp_path)
    )
    try:
        for _ in range(2):
            channel.clear()
            channel.put("view", view)
            until(lambda: channel.get("ready") == {"partitions": {"3": {"epoch": 2}}})
    finally:
        handler.close()
        channel.clear()


def test_a_state_goes_on_under_the_next_epoch_where_it_was(
    tmp_path: Path, log: PostgresLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, *TEXTS)
    options = {"queue": "q", "instanceId": "within", "warmup": "true", "warmupFrom": "snapshot"}
    snapshots = Snapshots(tmp_path)
    handler = StatefulForeachBatch(options, Letters(), lambda *_: None, snapshots=snapshots)
    reach(handler._states, log, monkeypatch)

    incarnation = log.bounds([]).incarnation

    def prepared(epoch: int, start: str, of_log: str = incarnation) -> list[str]:
        with contextlib.ExitStack() as held:
            cell = handler._prepared(Slice(0, epoch, start, "20"), of_log, held)
            assert cell.state is not None
            return cell.state

    try:
        state = prepared(1, "5")
        assert state == TEXTS[:5]
        assert prepared(2, "5") is state
        # It was taken at another position: another consumer had it in between.
        taken = prepared(3, "3")
        assert taken == TEXTS[:3]
        later = prepared(5, "3")
        assert later is not taken
        assert prepared(5, "3") is later
        assert prepared(5, "3", "a log that was made anew") is not taken
    finally:
        handler.close()
