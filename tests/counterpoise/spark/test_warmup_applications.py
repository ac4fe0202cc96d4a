"""Stateful applications that share a queue: every count is right, whatever applications do.

Each output row has its message's number and the count of its key at that moment. The number implies
the right count, so each row checks all the state before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.counterpoise.spark.application import Row
from tests.counterpoise.spark.jobs.drivers import Drivers
from tests.counterpoise.spark.stage import KEYS, Stage, staged
from tests.counterpoise.spark.state.application import StatefulApplication
from tests.counterpoise.spark.waiting import until
from tests.service import Service

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("drivers 1")]


class WarmStage(Stage):
    def learning_queue(self, partitions: int, **settings: object) -> None:
        """The queue, and another one that keeps the history (docs, *What the log must keep*)."""
        self.queue(partitions, **{"rebalance_delay": 0, "max_handoff_time": 600, **settings})
        self.client.create_queue("flights-history", log="builtin:flights", ordered_resize=False)

    def stateful(
        self,
        name: str,
        kind: str,
        *,
        kind_of: Callable[..., StatefulApplication] = StatefulApplication,
        **options: Any,
    ) -> StatefulApplication:
        """`kind_of`: StatefulApplication, or one that is started in another way."""
        application = kind_of(
            name,
            self.directory,
            self.url,
            "flights",
            self.drivers,
            kind,
            maxMessagesPerTrigger=200,
            **options,
        )
        return self.add(application)

    def seen(self) -> set[int]:
        return {number_of(row) for row in self.rows()}

    def phases(self) -> list[str]:
        return [one.phase for one in self.client.rebalance_status("flights").handoffs]

    def done(self, name: str) -> bool:
        """Whether all messages of its partitions are processed, and there are some."""
        owners = self.owners()
        left = [
            one.lag for one in self.client.partitions("flights") if owners[one.partition] == name
        ]
        return bool(left) and not any(left)

    def settled(self) -> bool:
        return self.ready() and self.all_seen() and self.committed() == self.published

    def work(self, count: int) -> None:
        """Publish, and wait until everything is processed."""
        self.publish(count)
        # The first micro-batch starts Spark's processes on its executors.
        until(self.seen_or_over, f"{self.published} messages are seen")
        assert self.all_seen(), "an application has failed"
        until(lambda: self.committed() == self.published, "and committed")

    def seen_or_over(self) -> bool:
        ended = [one for one in self.applications if one.running() and one.over()]
        return bool(ended) or self.all_seen()

    def check_counts(self) -> None:
        for row in self.rows():
            number, count = (int(part) for part in row.value.split(":"))
            assert count == number // KEYS + 1, row


def number_of(row: Row) -> int:
    return int(row.value.partition(":")[0])


@pytest.fixture
def stage(service: Service, drivers: Drivers, tmp_path: Path) -> Iterator[WarmStage]:
    with staged(WarmStage, service, tmp_path, drivers) as stage:
        yield stage


def drained(stage: WarmStage, name: str) -> None:
    (flow,) = [one for one in stage.client.flows("flights") if one.client_name == name]
    stage.client.drain("flights", flow.flow_id)


def there_and_back(
    stage: WarmStage, first: StatefulApplication, second: StatefulApplication
) -> None:
    """A → B → A: nothing of A's first tenure is left in its second. B has left."""
    stage.learning_queue(2)
    first.start()
    stage.work(600)
    second.start()
    # While the second learns, the first continues undisturbed.
    stage.work(300)
    until(lambda: stage.ready() and stage.owned("second") == 1, "the second has its share")
    stage.work(300)
    drained(stage, "second")
    until(lambda: stage.owned("first") == 2 and stage.ready(), "the first has all again")
    second.drained_from_outside()
    stage.work(300)


def check_there_and_back(stage: WarmStage) -> None:
    """Every count of both is right, and no message came twice."""
    stage.check_counts()
    assert {row.application for row in stage.rows()} == {"first", "second"}
    assert len(stage.rows()) == len(stage.seen())


@pytest.mark.matrix(of="warm-ups")
def test_there_and_back_again_the_state_is_right(stage: WarmStage) -> None:
    """With snapshots. With replay: `cluster/test_cluster.py`."""
    first, second = (stage.stateful(name, "snapshot") for name in ("first", "second"))
    there_and_back(stage, first, second)
    # And once more, so that the second also comes back.
    second.start()
    until(lambda: stage.ready() and stage.owned("second") == 1, "the second is back")
    stage.work(300)
    assert first.stop() == 0
    until(lambda: stage.owned("second") == 2, "the second has all")
    stage.work(100)
    assert second.stop() == 0
    check_there_and_back(stage)
    assert stage.moves()["graceful"] >= 3


@pytest.mark.matrix(of="warm-ups")
def test_learners_and_owners_come_go_and_die(stage: WarmStage) -> None:
    """The examples of the literature on streams, with a learner that is held while it learns."""
    stage.learning_queue(3)
    # From an empty queue.
    owner, *joiners = [
        stage.stateful(name, "snapshot", leaseSeconds=600) for name in ("owner", "one", "two")
    ]
    owner.start()
    stage.work(300)
    # Scale up with two joiners: both learn at once.
    for joiner in joiners:
        joiner.hold("warm")
        joiner.start()
    one, two = joiners
    until(lambda: one.held() and two.held(), "both learn")
    assert stage.phases() == ["warming", "warming"]
    # The owner notices nothing: it owns all partitions, and works.
    stage.work(300)
    assert stage.owned("owner") == 3
    assert stage.phases() == ["warming", "warming"]
    # A learner dies: the other continues.
    two.kill()
    stage.unbind("two")
    stage.work(100)
    one.go_on()
    until(lambda: stage.ready() and stage.owned("one") == 1, "the other has learned")
    stage.work(300)
    # It comes back, and while it learns the owner dies: granted at once, although not warm.
    two.hold("warm")
    two.start()
    until(two.held, "it learns again")
    assert stage.owned("two") == 0
    owner.kill()
    stage.unbind("owner")
    until(lambda: stage.owned("two") >= 1 and not stage.owned("owner"), "orphaned and granted")
    stage.publish(300)
    two.go_on()
    until(stage.settled, "everything is done")
    assert {one.stop(), two.stop()} == {0}
    stage.check_counts()
    assert {row.application for row in stage.rows()} == {"owner", "one", "two"}


@pytest.mark.matrix(of="warm-ups")
def test_three_applications_start_and_leave_while_the_others_warm_up(stage: WarmStage) -> None:
    """A leaving application works until the others have learned; a learner dies, then a leaving
    one.
    """
    stage.learning_queue(6, rebalance_delay=600)
    stage.publish(300)
    applications = [
        stage.stateful(name, "replay", leaseSeconds=600) for name in ("one", "two", "three")
    ]
    one, two, three = applications
    for application in applications:
        application.launch()
    for application in applications:
        application.until_started()
    until(lambda: len(stage.client.flows("flights")) == 3, "all are bound")
    stage.client.change_queue("flights", rebalance_delay=0)
    stage.client.rebalance_now("flights")
    until(stage.settled, "all from empty")
    # There was no state yet, so there was nothing to learn.
    assert stage.moves() == {"initial": 6}
    assert [stage.owned(name) for name in ("one", "two", "three")] == [2, 2, 2]
    # Scale down: each remaining application learns one of the leaving one's partitions.
    for survivor in (two, three):
        survivor.hold("warm")
    drained(stage, "one")
    until(lambda: stage.phases() == ["warming", "warming"], "both are to learn")
    stage.publish(300)
    until(lambda: two.held() and three.held(), "both learn")
    until(lambda: stage.done("one"), "the leaver works")
    assert stage.phases() == ["warming", "warming"]
    assert stage.owned("one") == 2
    # A learner dies: the other takes over its warm-ups, its own partitions are granted at once.
    two.kill()
    stage.unbind("two")
    until(lambda: stage.owned("three") == 4, "orphaned and granted")
    stage.publish(100)
    until(lambda: stage.done("one"), "the leaver works on")
    assert stage.phases() == ["warming", "warming"]
    assert (stage.owned("one"), stage.moves()["graceful"]) == (2, 0)
    three.go_on()
    until(lambda: stage.owned("three") == 6 and stage.ready(), "the other has learned all")
    one.drained_from_outside()
    until(stage.settled, "everything is done")
    assert stage.moves()["graceful"] == 2
    # Scale up with one joiner; the owner notices nothing.
    two.hold("warm")
    two.start()
    until(two.held, "the joiner learns")
    stage.work(200)
    assert stage.phases() == ["warming"] * 3
    assert stage.owned("three") == 6
    two.go_on()
    until(lambda: stage.owned("two") == 3 and stage.ready(), "the joiner has learned")
    # Scale down again, and the leaving application dies: granted at once, although not warm.
    three.hold("warm")
    drained(stage, "two")
    until(lambda: stage.phases() == ["warming"] * 3, "the other is to learn")
    stage.publish(200)
    until(three.held, "the other learns")
    until(lambda: stage.done("two"), "the leaver works")
    assert stage.owned("two") == 3
    two.kill()
    stage.unbind("two")
    until(lambda: stage.owned("three") == 6 and stage.ready(), "granted at once")
    assert three.held()
    stage.publish(100)
    three.go_on()
    until(stage.settled, "everything is done")
    assert three.stop() == 0
    stage.check_counts()
    assert {row.application for row in stage.rows()} == {"one", "two", "three"}
    assert stage.moves()["forced"] == 0
