"""An application goes on across ordered resizes: its micro-batches stop at the cuts.

The backlog of a partition takes several micro-batches. A micro-batch that read past the cut of
another one would give newer messages to the sink before the older ones of the same key.
"""

from __future__ import annotations

import contextlib

import pytest

from counterpoise.errors import ResizeUnsettled
from tests.counterpoise.spark.application import Application
from tests.counterpoise.spark.stage import Stage
from tests.counterpoise.spark.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("drivers 2"),
    pytest.mark.matrix(of="applications"),
]

# A backlog of 60 messages takes three of these.
BATCH = 20


def overtaken(stage: Stage) -> list[tuple[str | None, int]]:
    """Messages that came for the first time after a newer one of their key."""
    newest: dict[str | None, int] = {}
    seen: set[int] = set()
    found = []
    for row in stage.rows():
        number = int(row.value)
        if number not in seen and number < newest.get(row.key, 0):
            found.append((row.key, number))
        seen.add(number)
        newest[row.key] = max(newest.get(row.key, 0), number)
    return found


def resize_amid_backlog(stage: Stage, application: Application, target: int) -> None:
    """A resize with old messages before the cuts and new ones past them, none of them read."""
    application.hold("before")
    stage.publish(60)
    until(application.held, "the sink holds")

    def resized() -> bool:
        with contextlib.suppress(ResizeUnsettled):
            stage.client.change_queue("flights", partition_count=target)
            return True
        return False

    until(resized, f"resized to {target}")
    stage.publish(60)
    application.go_on()


def test_micro_batches_stop_at_the_cuts_and_go_on(stage: Stage) -> None:
    stage.queue(2, rebalance_delay=0, ordered_resize=True)
    one = stage.application("one", maxMessagesPerTrigger=BATCH).start()
    for target in (4, 3):
        resize_amid_backlog(stage, one, target)
        until(stage.all_seen, f"all messages with {target} partitions")
    assert overtaken(stage) == []
    # What nobody reads any more settles, too: the last resize was heard of to its end.
    until(lambda: "resize" not in stage.client.rebalance_status("flights").raw, "settled")
    # Nothing came twice, and one application reads all partitions.
    assert len(stage.rows()) == stage.published
    assert one.stop() == 0


def test_without_ordered_resizes_newer_messages_come_first(stage: Stage) -> None:
    stage.queue(2, rebalance_delay=0, ordered_resize=False)
    one = stage.application("one", maxMessagesPerTrigger=BATCH).start()
    resize_amid_backlog(stage, one, 4)
    until(stage.all_seen, "all messages")
    assert overtaken(stage)
    assert one.stop() == 0
