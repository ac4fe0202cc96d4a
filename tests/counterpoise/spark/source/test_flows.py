"""Several flows of one application, seen as one, on a real service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from counterpoise.client import Client
from counterpoise.errors import ServiceUnavailable
from counterpoise.flow import Flow
from counterpoise.flow.core import FLOW_GONE
from counterpoise.flow.view import Owned
from counterpoise.spark.channel.status import Handoffs
from counterpoise.spark.errors import CannotStart
from counterpoise.spark.options import SourceOptions
from counterpoise.spark.source.bound_flow import BoundFlow
from counterpoise.spark.source.flows import FlowGroup, bind
from counterpoise.wire import ReleaseItem
from tests.counterpoise.faulty import Answer, Seen, faulty_service
from tests.counterpoise.spark.queries import Collected, publish, start
from tests.log_support import until
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Binder = Callable[..., BoundFlow]


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url) as client:
        client.create_queue("flights", 6, rebalance_delay=0, max_handoff_time=600)
        yield client


@pytest.fixture
def bound(service: Service, client: Client) -> Iterator[Binder]:
    opened: list[BoundFlow] = []

    def bind_flows(count: int, instance_id: str = "app") -> BoundFlow:
        options = SourceOptions("flights", service.url, client_name="app", flows=count)
        flow = bind(
            options,
            instance_id,
            warmup=False,
            renew_while=lambda: True,
            wake=threading.Event(),
            handoffs=Handoffs(),
        )
        opened.append(flow)
        return flow

    yield bind_flows
    for flow in opened:
        flow.close(timeout_seconds=2)


def obliging(flow: BoundFlow | Flow, condition: Callable[[], object]) -> None:
    """Wait until the condition holds; meanwhile release revoked partitions."""

    def holds() -> object:
        items = [
            ReleaseItem(number, held.epoch, held.position)
            for number, held in flow.partitions.items()
            if held.state == "revoking"
        ]
        if items:
            flow.release_many(items)
        return condition()

    until(holds)


def test_n_flows_hold_n_shares_and_each_call_goes_to_the_holding_flow(
    service: Service, client: Client, bound: Binder
) -> None:
    flows = bound(2)
    obliging(flows, lambda: len(flows.partitions) == 6)
    with Flow("flights", url=service.url) as other:
        obliging(flows, lambda: len(other.partitions) == 2)
        until(lambda: len(flows.partitions) == 4)
        assert flows.commit([(n, one.epoch, "7") for n, one in flows.partitions.items()]) == (
            dict.fromkeys(flows.partitions, "ok")
        )
        theirs = next(iter(other.partitions.values()))
        outcomes = flows.commit([(theirs.partition, theirs.epoch - 1, "9")])
        assert outcomes == {theirs.partition: "stale_epoch"}
        summaries = {one.instance_id: one for one in client.flows("flights")}
        assert summaries["app"].partitions == summaries["app#2"].partitions == 2
        assert {summaries["app"].client_name, summaries["app#2"].client_name} == {"app", "app#2"}
    assert len(flows.flow_ids) == 2
    # Nothing changes: the source compares views by identity.
    obliging(flows, lambda: len(flows.partitions) == 6)
    assert flows.partitions is flows.partitions


def test_a_restart_takes_the_places_of_all_and_the_ones_before_are_over(
    client: Client, bound: Binder
) -> None:
    first = bound(2)
    obliging(first, lambda: len(client.flows("flights")) == 2)
    obliging(first, lambda: [one.partitions for one in client.flows("flights")] == [3, 3])
    second = bound(2)
    until(lambda: len(second.partitions) == 6)
    assert {one.handed_over for one in second.partitions.values()} == {"replaced"}
    until(lambda: first.status == "gone")
    assert first.gone_reason == "replaced"


def test_a_flow_that_an_administrator_unbinds_is_left_out_and_the_last_ends_the_query(
    client: Client, bound: Binder, caplog: pytest.LogCaptureFixture
) -> None:
    flows = bound(2)
    until(lambda: len(flows.partitions) == 6)
    ids = {one.instance_id: one.flow_id for one in client.flows("flights")}
    client.unbind("flights", ids["app#2"], None)
    until(lambda: len(flows.flow_ids) == 1)
    assert (flows.status, flows.gone_reason, flows.last_error) == ("bound", None, None)
    assert "flow app#2 is over (unbound): the query goes on with 1 of its flows" in caplog.text
    obliging(flows, lambda: len(flows.partitions) == 6)
    client.unbind("flights", ids["app"], None)
    until(lambda: flows.status == "gone")
    assert flows.gone_reason == "unbound"


def test_drain_and_close_reach_all(client: Client, bound: Binder) -> None:
    flows = bound(3)
    assert not flows.draining
    flows.drain(5)
    until(lambda: flows.draining)
    assert all(one.draining for one in client.flows("flights"))
    flows.close()
    assert client.flows("flights") == []


def test_an_unavailable_service_is_raised_after_all_calls(service: Service, bound: Binder) -> None:
    flows = bound(2)
    until(lambda: len(flows.partitions) == 6)
    service.stop()
    held = [(n, one.epoch, "1") for n, one in flows.partitions.items()]
    with pytest.raises(ServiceUnavailable):
        flows.commit(held, timeout_seconds=0.2)
    until(lambda: flows.last_error is not None)
    assert flows.status == "bound"
    assert len(flows.partitions) == 6


def test_an_unknown_queue_leaves_no_flow_behind(service: Service, client: Client) -> None:
    options = SourceOptions("nobody", service.url, flows=3)
    with pytest.raises(CannotStart, match="nobody"):
        bind(
            options,
            None,
            warmup=False,
            renew_while=lambda: True,
            wake=threading.Event(),
            handoffs=Handoffs(),
        )


# ------------------------------------------------------------------ between flows of one query


def test_flows_that_were_bound_to_two_queues_of_one_name_are_not_taken_for_one() -> None:
    with faulty_service() as faulty:
        faulty.queue_id = "q1"

        def made_again(seen: Seen) -> Answer | None:
            if not seen.path.endswith("/flows") or not seen.body["instance_id"].endswith("#2"):
                return None
            answer = {"flow_id": "f9", "flow_token": "t", "lease_seconds": 3.0, "queue_id": "q2"}
            answer |= {"log": "builtin:flights", "log_access": None}
            return Answer(201, answer | {"update": faulty.update() | {"flow_id": "f9"}})

        faulty.script = made_again
        options = SourceOptions("flights", faulty.url, flows=2)
        with pytest.raises(CannotStart, match="deleted and made again"):
            bind(
                options,
                "app",
                warmup=False,
                renew_while=lambda: True,
                wake=threading.Event(),
                handoffs=Handoffs(),
            )
        assert faulty.unbound == {"f1", "f9"}


class Fixed(SimpleNamespace):
    """A flow that does nothing, with a fixed view."""

    def commit(
        self, positions: list[tuple[int, int, str]], *, timeout_seconds: float | None = None
    ) -> dict[int, str]:
        self.told = [*getattr(self, "told", []), *positions]
        return {one[0]: "ok" for one in positions}


def fixed(status: str = "bound", reason: str | None = None, **epochs: int) -> Any:
    view: Mapping[int, Owned] = {
        int(name[1:]): Owned(int(name[1:]), epoch, "owned", None, "graceful")
        for name, epoch in epochs.items()
    }
    return Fixed(status=status, gone_reason=reason, partitions=view, instance_id="app")


def together(*flows: Any) -> FlowGroup:
    return FlowGroup(cast("list[BoundFlow]", list(flows)))


def test_a_partition_on_its_way_is_seen_once_under_the_epoch_that_counts() -> None:
    before, after = fixed(p1=3, p2=1), fixed(p1=4)
    flows = together(after, before)
    assert {n: one.epoch for n, one in flows.partitions.items()} == {1: 4, 2: 1}
    flows.commit([(1, 3, "5"), (2, 1, "6")])
    flows.commit([(1, 4, "7")])
    assert before.told == [(1, 3, "5"), (2, 1, "6")]
    assert after.told == [(1, 4, "7")]
    # Also after the former holder has lost it.
    before.partitions = {}
    assert set(flows.partitions) == {1}
    flows.commit([(2, 1, "8")])
    assert before.told[-1] == (2, 1, "8")


def test_while_one_flow_binds_the_partitions_of_all_are_uncertain() -> None:
    assert together(fixed(), fixed("binding")).status == "binding"
    assert together(fixed(), fixed("gone", "lease_expired")).status == "bound"
    assert together(fixed("binding"), fixed("gone", "replaced")).status == "gone"
    assert together(fixed(), fixed("gone", "queue_not_found")).gone_reason == "queue_not_found"


def test_calls_to_a_flow_that_is_left_out_have_no_effect() -> None:
    class Over(Fixed):
        def commit(self, positions: Any, *, timeout_seconds: float | None = None) -> Any:
            raise ServiceUnavailable("gone")

    over = Over(status="gone", gone_reason="unbound", partitions={}, instance_id="app")
    over.partitions = {1: Owned(1, 2, "owned", None, "graceful")}
    flows = together(over, fixed(p2=1))
    assert flows.commit([(1, 2, "5"), (2, 1, "6")]) == {1: FLOW_GONE, 2: "ok"}


# ------------------------------------------------------------------ in Spark


@pytest.mark.long
@pytest.mark.xdist_group("spark")
def test_an_application_with_two_flows_works_for_two_also_after_a_restart(
    spark: SparkSession, service: Service, client: Client, tmp_path: Path
) -> None:
    sink = Collected()

    def run() -> Any:
        options: dict[str, str | int] = {"url": service.url, "queue": "flights", "flows": 2}
        return start(spark, sink, tmp_path / "checkpoint", **options)

    def committed_by_us() -> int:
        at = {one.partition: int(one.position or 0) for one in client.partitions("flights")}
        return sum(at[number] for number in {row.partition for row in sink.rows})

    def held() -> dict[str | None, int]:
        return {one.instance_id: one.partitions for one in client.flows("flights")}

    with Flow("flights", url=service.url, instance_id="other") as other:
        until(lambda: len(other.partitions) == 6)
        query = run()
        try:
            obliging(other, lambda: sorted(held().values()) == [2, 2, 2])
            publish(service, "flights", 120)
            theirs = set(other.partitions)
            until(lambda: {row.partition for row in sink.rows} | theirs == set(range(6)))
            ours = {row.partition for row in sink.rows}
            assert len(ours) == 4
            # A holddown that outlasts the restart: its partitions wait for it.
            client.change_queue("flights", rebalance_delay=600)
            epochs = {one.partition: one.epoch for one in client.partitions("flights")}
            # If it were stopped before the last micro-batch is in Spark's commit log, that would be
            # repeated.
            until(lambda: committed_by_us() == len(sink.rows))
        finally:
            query.stop()
        until(lambda: set(held()) == {"other"})
        query = run()
        try:
            until(lambda: len(held()) == 3 and sorted(held().values()) == [2, 2, 2])
            publish(service, "flights", 120, first=120)
            seen = len(sink.rows)
            until(lambda: {row.partition for row in sink.rows[seen:]} == ours)
        finally:
            query.stop()
    again = {row.partition: row.epoch for row in sink.rows}
    assert all(again[number] == epochs[number] + 1 for number in ours)
    values = [int(row.value[1:]) for row in sink.rows]
    assert len(set(values)) == len(values), "each message once"
