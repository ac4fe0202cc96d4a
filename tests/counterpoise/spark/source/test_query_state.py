"""What the source does for a query that keeps state in Spark, without a Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from counterpoise.client import Client
from counterpoise.errors import StateKept
from counterpoise.flow import Flow
from counterpoise.flow.view import Owned
from counterpoise.publisher import Publisher
from counterpoise.spark.channel.query_state import drop_state, keeps_state, put_state
from counterpoise.spark.channel.status import Handoffs
from counterpoise.spark.errors import StateLost
from counterpoise.spark.offsets import Offset, Place, Range
from counterpoise.spark.options import SourceOptions, read_options
from counterpoise.spark.source.progress import Lacking, Progress, SharedProgress
from counterpoise.spark.source.query_state import KeptState
from counterpoise.spark.source.with_limits import StreamReaderWithLimits
from counterpoise.spark.source.without_driver import refuse_state
from counterpoise.wire import CommitItem
from tests.service import Service, eventually

MANY = ReadMaxRows(1000)


@pytest.fixture(autouse=True)
def _this_process_keeps_its_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.spark.source.reader.ignore_signals", lambda: None)


class Sources:
    """Sources of queries on the queue `flights`, whose driver has the directory `home`."""

    def __init__(self, service: Service, home: Path) -> None:
        self.home = str(home)
        self._given = {"queue": "flights", "url": service.url}
        self._readers: list[StreamReaderWithLimits] = []

    def options(self, **more: str) -> SourceOptions:
        return read_options({**self._given, **more})

    def reader(self, options: SourceOptions) -> StreamReaderWithLimits:
        self._readers.append(StreamReaderWithLimits(options, 1, self.home))
        return self._readers[-1]

    def asked(self, options: SourceOptions, start: Offset | None = None) -> StreamReaderWithLimits:
        """A source that Spark has asked for its first offset."""
        reader = self.reader(options)
        reader.latestOffset(reader.initialOffset() if start is None else start.to_json(), MANY)
        return reader

    def end(self) -> None:
        while self._readers:
            self._readers.pop().stop()


@pytest.fixture
def sources(service: Service, tmp_path: Path) -> Iterator[Sources]:
    sources = Sources(service, tmp_path)
    yield sources
    sources.end()


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url) as client:
        client.create_queue("flights", 2, rebalance_delay=0, access_type="exclusive")
        yield client


def test_the_service_is_told_and_keeps_the_queue_and_its_owner(
    sources: Sources, client: Client
) -> None:
    options = sources.options(instanceId="totals")
    put_state(sources.home, "query", "run", [options])
    first = sources.asked(options)
    assert [one.keeps_state for one in client.flows("flights")] == [True]
    with pytest.raises(StateKept, match="stop this consumer first"):
        client.change_queue("flights", access_type="non_exclusive")
    # A standby with another checkpoint.
    standby = sources.options(instanceId="standby")
    put_state(sources.home, "other", "run-2", [standby])
    with pytest.raises(StateLost, match=r"queue 'flights'.*keeping a standby"):
        sources.asked(standby)
    first.stop()
    client.change_queue("flights", access_type="non_exclusive")
    # An examination before the start has seen an exclusive queue.
    with pytest.raises(StateLost, match="access_type to exclusive"):
        sources.asked(options)


@pytest.mark.long
@pytest.mark.parametrize("accepts", [True, False])
def test_it_is_not_told_of_what_is_not_kept_or_may_be_lost(
    accepts: bool, sources: Sources, client: Client
) -> None:
    options = sources.options(**({"stateOnHandoff": "lose"} if accepts else {}))
    put_state(sources.home, "query", "run", [options] if accepts else [])
    sources.asked(options)
    assert [one.keeps_state for one in client.flows("flights")] == [False]
    client.change_queue("flights", access_type="non_exclusive")


def test_a_query_that_comes_back_after_others_have_worked_ends(
    sources: Sources, client: Client
) -> None:
    options = sources.options(instanceId="totals")
    put_state(sources.home, "query", "run", [options])
    bound = client.bind("flights", "other")
    [first, _] = bound.update.partitions
    done = CommitItem(first.partition, first.epoch, "7")
    client.commit("flights", bound.flow_id, bound.flow_token, [done])
    client.unbind("flights", bound.flow_id)
    before = Offset("flights", {0: Range(0, "0", "3")}, "totals")
    with pytest.raises(StateLost, match=r"partition 0 up to position 7.*ends at 3.*checkpoint"):
        sources.asked(options, before)


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("accepts", [False, True])
def test_crashes_amid_a_micro_batch_and_behind_it_cost_no_message(
    sources: Sources, client: Client, delay: int, accepts: bool
) -> None:
    """The second life replays it when its partitions are back, and dies before it can tell. Where a
    loss of state is accepted it does not wait for them: then the third life reads the messages.
    """
    client.change_queue("flights", rebalance_delay=delay)
    with Publisher("flights", url=client.url.removesuffix("/v1")) as publisher:
        for number in range(20):
            publisher.publish(b"%d" % number, key=f"k{number}")
    lose = {"stateOnHandoff": "lose"} if accepts else {}
    options = sources.options(instanceId="totals", **lose)
    put_state(sources.home, "query", "run", [options])

    def crash() -> None:
        for flow in client.flows("flights"):
            client.unbind("flights", flow.flow_id)
        sources.end()

    first = sources.asked(options)
    start: Any = first.initialOffset()
    eventually(lambda: len(first.latestOffset(start, MANY)["partitions"]) == 2)
    end = first.latestOffset(start, MANY)
    planned = ranges(first.partitions(start, end))
    crash()
    second = sources.reader(options)
    second.partitions(end, end)
    read = ranges(second.partitions(start, end))
    assert read == planned or accepts
    crash()
    third = sources.reader(options)

    def is_done() -> bool:
        nonlocal end
        before, end = end, third.latestOffset(end, MANY)
        read.update(ranges(third.partitions(before, end)) if end != before else ())
        return not any(lags(client))

    eventually(is_done)
    assert read == planned
    assert sum(int(one.position or 0) for one in client.partitions("flights")) == 20


def ranges(groups: Sequence[Any]) -> set[tuple[int, str, str]]:
    return {(one.partition, one.start, one.end) for group in groups for one in group.slices}


def lags(client: Client) -> list[int | None]:
    return [one.lag for one in client.partitions("flights")]


def test_a_driver_names_the_sources_of_running_queries(tmp_path: Path) -> None:
    one, other = (read_options({"queue": name, "logUrl": "x://secret"}) for name in ("a", "b"))
    put_state(tmp_path, "query", "run-1", [one])
    assert keeps_state(tmp_path, one)
    assert not keeps_state(tmp_path, other)
    assert "secret" not in "".join(path.read_text() for path in tmp_path.glob("*/state.json"))
    # A restart of the query; the end of the run before is told late.
    put_state(tmp_path, "query", "run-2", [one])
    drop_state(tmp_path, "run-1")
    assert keeps_state(tmp_path, one)
    drop_state(tmp_path, "run-2")
    assert not keeps_state(tmp_path, one)
    put_state(tmp_path, "query", "run-3", [one])
    put_state(tmp_path, "query", "run-4", [])
    assert not keeps_state(tmp_path, one)


# ------------------------------------------------------------------ the rules, case by case


def held(epoch: int, position: str | None, how: str, state: str = "owned") -> dict[int, Owned]:
    return {0: Owned(0, epoch, state, position, how)}


def begun(ranges: Mapping[int, Range], view: Mapping[int, Owned], **kept: Any) -> Progress:
    progress = Progress(keeps_state=True, **kept)
    progress.finished(Offset("q", ranges, "me", "log-1"), view)
    return progress


READ = {0: Range(4, "0", "9")}
OTHER = {1: Range(4, "0", "9")}


@pytest.mark.parametrize(
    ("ranges", "view", "found"),
    [
        # It begins, and nobody has processed anything before.
        ({}, held(1, None, "initial"), []),
        ({}, held(1, "5", "initial"), []),  # `start` is latest
        ({}, held(3, None, "orphaned"), []),
        # Others have, or this instance with another checkpoint.
        ({}, held(3, "5", "orphaned"), [Lacking(0, "5", None)]),
        ({}, held(3, "5", "replaced"), [Lacking(0, "5", None)]),
        (OTHER, held(3, "5", "graceful"), [Lacking(0, "5", None)]),
        (OTHER, held(3, "5", "replaced"), []),
        # It goes on, or nobody has held the partition in between: an administrator set positions.
        (READ, held(4, "9", "graceful"), []),
        (READ, held(5, "9", "replaced"), []),
        (READ, held(5, "2", "forced"), []),
        # Somebody has, and has processed nothing.
        (READ, held(6, "9", "graceful"), []),
        (READ, held(6, "12", "graceful"), [Lacking(0, "12", "9")]),
        (READ, held(6, None, "forced"), [Lacking(0, None, "9")]),
    ],
)
def test_what_a_granted_partition_lacks(
    ranges: Mapping[int, Range], view: Mapping[int, Owned], found: list[Lacking]
) -> None:
    progress = begun(ranges, view)
    assert progress.lacking(view) == found
    assert progress.lacking(view) == [], "said once"


def test_a_partition_that_comes_back_in_the_same_run_is_compared_too() -> None:
    progress = begun(READ, held(4, "9", "graceful"))
    progress.lacking(held(4, "9", "graceful"))
    assert progress.lacking({}) == []
    assert progress.lacking(held(6, "9", "graceful")) == []
    assert progress.lacking({}) == []
    back = held(8, "11", "orphaned")
    assert progress.lacking(back) == [Lacking(0, "11", "9")]


def test_positions_that_are_set_again_and_again_are_followed() -> None:
    """Each time the epoch rises by one, and no other consumer holds the partition."""
    progress = begun(READ, held(4, "9", "graceful"))
    for epoch, position in ((5, "2"), (6, "20"), (7, None)):
        assert progress.lacking(held(epoch, position, "forced")) == []


def test_what_is_in_the_state_is_not_read_again_after_an_expired_lease() -> None:
    """The last commit has not reached the service, and no other consumer came in between."""
    view = held(5, "6", "orphaned")
    progress = begun(READ, view)
    assert progress.lacking(view) == []
    assert progress.wanted(view) == {0: "9"}
    later = held(6, "6", "orphaned")
    assert begun(READ, later).wanted(later) == {0: "6"}, "another may have been the owner before"
    without = Progress()
    without.finished(Offset("q", READ, "me", "log-1"), view)
    assert without.wanted(view) == {0: "6"}


def watched(view: Mapping[int, Owned], *, draining: bool = False, **options: str) -> KeptState:
    flow = cast(Flow, SimpleNamespace(partitions=view, draining=draining, status="bound"))
    place = Place("q", "log-1", "id")
    shared = SharedProgress(flow, place, threading.Event(), Handoffs(), begun(READ, view))
    return KeptState(read_options({"queue": "q", **options}), flow, shared)


def test_a_partition_that_goes_to_another_consumer_ends_the_query() -> None:
    going = held(4, "9", "graceful", "revoking")
    with pytest.raises(StateLost, match=r"partition 0 goes to another consumer.*not exclusive"):
        watched(going).check()
    watched(going, draining=True).check()
    accepting = watched(going, stateOnHandoff="lose")
    accepting.check()
    assert list(accepting.conditions()) == []


def test_a_loss_that_is_accepted_is_a_condition_of_the_flow_that_has_it() -> None:
    back = held(6, "12", "graceful")
    with pytest.raises(StateLost, match=r"partition 0 up to position 12.*ends at 9"):
        watched(back).check()
    accepting = watched(back, stateOnHandoff="lose")
    accepting.check()
    [condition] = accepting.conditions()
    assert (condition.kind, condition.partition) == ("state_lost", None)
    assert condition.text.endswith("partition 0 from 12")


def test_outside_of_a_task_nothing_is_known_of_a_query() -> None:
    refuse_state(read_options({"queue": "q"}))


@pytest.mark.parametrize("also", [{}, {"spark.sql.adaptive.streaming.stateless.enabled": "false"}])
def test_a_task_takes_a_query_without_adaptive_execution_for_one_with_state(
    also: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"spark.sql.adaptive.enabled": "false", **also}
    task = SimpleNamespace(getLocalProperty=settings.get)
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: task)
    with pytest.raises(StateLost, match="its session was not registered"):
        refuse_state(read_options({"queue": "q"}))
    for accepted in ({"stateOnHandoff": "lose"}, {"warmup": "true"}):
        refuse_state(read_options({"queue": "q", **accepted}))
