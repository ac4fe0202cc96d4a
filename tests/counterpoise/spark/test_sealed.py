"""An application on a dynamic queue: it reads each sealed partition to its end, and goes on.

Of the first split only the log knows, as if the service had died before it told the queue. So the
application itself must report what comes after the sealed partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from broker.calls.bound_flows import BoundFlow
from broker.calls.commits import CommitCalls
from broker.calls.flows import FlowCalls
from counterpoise import wire
from counterpoise.logs.ranges import HASHES
from tests.counterpoise.spark.stage import Stage
from tests.counterpoise.spark.test_ordered_resize import BATCH, overtaken
from tests.counterpoise.spark.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("drivers 2"),
    pytest.mark.matrix(of="applications"),
]

MIDDLE = HASHES // 2
WHOLE, LOWER, UPPER = "00000000-ffffffff.0", "00000000-7fffffff.1", "80000000-ffffffff.2"


class Told:
    """The calls that told the service a position of a partition, in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: dict[int, list[tuple[str, str | None]]] = {}
        for calls, name in (
            (CommitCalls, "commit"),
            (FlowCalls, "release"),
            (FlowCalls, "children"),
        ):
            monkeypatch.setattr(calls, name, self._heard(name, getattr(calls, name)))

    def _heard(self, name: str, call: Any) -> Any:
        async def heard(
            calls: CommitCalls | FlowCalls, flow: BoundFlow, seq: int | None, items: Sequence[Any]
        ) -> wire.Results:
            answer: wire.Results = await call(calls, flow, seq, items)
            for item in items:
                self.of.setdefault(item.partition, []).append((name, item.position))
            return answer

        return heard


def split_in_the_log_alone(database_url: str) -> None:
    """Seal partition 0 at its end, in the transaction in which its halves begin."""
    after = [(1, LOWER, 0, MIDDLE - 1), (2, UPPER, MIDDLE, HASHES - 1)]
    told = ",".join(
        f'{{"partition": {number}, "key": "{key}", "parents": ["{WHOLE}"]}}'
        for number, key, *_ in after
    )
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "UPDATE counterpoise_log.partitions SET successors = %s::jsonb WHERE partition = 0",
            [f"[{told}]"],
        )
        for number, _, first, last in after:
            connection.execute(
                "INSERT INTO counterpoise_log.partitions (log_id, partition, first_hash, last_hash)"
                " SELECT log_id, %s, %s, %s FROM counterpoise_log.logs",
                [number, first, last],
            )


def left(stage: Stage) -> dict[int, str]:
    """The states of the partitions that are not finished."""
    listed = {one.partition: one.state for one in stage.client.partitions("flights")}
    return {number: state for number, state in listed.items() if state != "finished"}


def test_what_comes_after_a_sealed_partition_is_reported_with_its_end_and_read_in_order(
    stage: Stage, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(monkeypatch)
    stage.queue(1, rebalance_delay=0, partitioning="dynamic")
    one = stage.application("one", maxMessagesPerTrigger=BATCH).start()
    one.hold("before")
    stage.publish(60)
    until(one.held, "the sink holds")
    split_in_the_log_alone(migrated_url)
    stage.publish(60)
    assert left(stage) == {0: "owned"}, "the queue knows nothing of the split"
    one.go_on()
    until(stage.all_seen, "all messages")
    until(lambda: left(stage) == {1: "owned", 2: "owned"}, "both halves are owned")
    # The end is told with what comes after it, and not before.
    assert next(call for call in told.of[0] if call[1] == "60") == ("children", "60")
    assert overtaken(stage) == []

    # The service tells the queue of these; the application notices each end all the same.
    one.hold("before")
    stage.publish(60)
    until(one.held, "the sink holds")
    merged = stage.client.merge_partitions("flights", 1, 2)
    stage.publish(60)
    stage.client.split_partition("flights", merged["children"][0]["partition"])
    stage.publish(60)
    assert set(left(stage).values()) == {"owned", "waiting"}
    one.go_on()
    until(stage.all_seen, "all messages after the merge and the split")
    until(lambda: left(stage) == {4: "owned", 5: "owned"}, "the last halves are owned")
    assert overtaken(stage) == []
    assert len(stage.rows()) == stage.published
    assert one.stop() == 0
