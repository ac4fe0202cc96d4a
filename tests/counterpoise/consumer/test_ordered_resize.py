"""Consumers of a queue that is resized while they work: the order of each key across partitions.

A publisher runs all the time. At each resize one worker is held with a message of a partition for
which others have to wait, so the new partitions have newer messages of its keys long before the
older ones are handled. A consumer that went past its cut would be found at once. The same run
without ordered resizes, and with consumers that do not know the rule, must be found out.
"""

import threading
from itertools import pairwise

import pytest

from counterpoise.calls import Call
from counterpoise.errors import ResizeUnsettled
from counterpoise.publisher import Publisher
from tests.counterpoise.consumer.conftest import Running
from tests.counterpoise.leases import LONG_SECONDS
from tests.service import eventually

pytestmark = pytest.mark.long

KEYS = 48
# So many messages the publisher is ahead of the handlers. While a partition is held, it goes on by
# so many anyhow.
AHEAD = 2000
MEANWHILE = 500


class Ended(Exception):
    """The process of the consumer is gone."""


class Stage:
    """What was handled, and the gate at which a worker is held."""

    def __init__(self):
        self.handled = []
        self.partitions = set()
        self.held_partition = None
        self.holding = threading.Event()
        self.gate = threading.Event()

    def act(self, consumer):
        def handle(message):
            if message.partition == self.held_partition and not self.gate.is_set():
                self.holding.set()
                assert self.gate.wait(240)
            if consumer.is_dead.is_set():
                raise Ended
            self.handled.append((message.key, int(message.value)))
            self.partitions.add(message.partition)

        return handle

    def hold(self, partition):
        """Until `let_go`, the next message of the partition is not handled."""
        self.holding.clear()
        self.gate.clear()
        self.held_partition = partition
        eventually(self.holding.is_set)

    def let_go(self):
        self.held_partition = None
        self.gate.set()

    def violations(self):
        """Messages that were handled for the first time after a newer one of their key."""
        newest: dict[str, int] = {}
        seen, found = set(), []
        for key, number in tuple(self.handled):
            if number not in seen and number < newest.get(key, 0):
                found.append((key, number, newest[key]))
            seen.add(number)
            newest[key] = max(newest.get(key, 0), number)
        return found


class Publishing(threading.Thread):
    """Publishes numbers until it is told to stop."""

    def __init__(self, url, stage):
        super().__init__()
        self.url, self.stage = url, stage
        self.count = self.demanded = 0
        self.over = threading.Event()

    def run(self):
        with Publisher("flights", url=self.url) as publisher:
            while not self.over.is_set():
                number = self.count
                publisher.publish(str(number).encode(), f"k{number % KEYS}")
                self.count += 1
                while self.count >= self.limit and not self.over.wait(0.01):
                    pass

    @property
    def limit(self):
        return max(self.demanded, len(self.stage.handled) + AHEAD)

    def go_on(self):
        """Wait for some more messages, with all keys among them."""
        self.demanded = self.count + MEANWHILE
        eventually(lambda: self.count >= self.demanded)


class Mortal(Running):
    """A consumer that can end like a killed process: nothing more is said or handled."""

    def __init__(self, url, stage):
        self.is_dead = threading.Event()
        super().__init__(
            url,
            stage.act(self),
            concurrency=3,
            idle_seconds=0.05,
            commit_seconds=0.1,
            lease_seconds=LONG_SECONDS,
        )

    def die(self):
        self.is_dead.set()
        self.consumer.flow.close()


@pytest.fixture
def scene(service, client):
    """The stage, the publisher and three consumers, all at work."""
    stage = Stage()
    publishing = Publishing(service.url, stage)
    consumers = [Mortal(service.url, stage) for _ in range(3)]
    publishing.start()
    for one in consumers:
        one.thread.start()
    eventually(lambda: all(one.partitions for one in consumers) and len(stage.handled) > MEANWHILE)
    yield stage, publishing, consumers
    stage.let_go()
    publishing.over.set()
    publishing.join()
    for one in consumers:
        one.consumer.stop(now=True)
        one.join()


def waited_for(count, target):
    """An old partition for which another one has to wait."""
    return 0 if target > count else count - 1


def waiting(client):
    """The partitions that wait for others."""
    call = Call("GET", "/queues/flights/partitions", lambda body: body["items"])
    return [one for one in client.send(call) if one.get("waits_for")]


def lanes(one):
    return one.consumer.status().partitions.values()


def resize(client, target):
    """The resize, as soon as the one before is settled."""

    def done():
        try:
            client.change_queue("flights", partition_count=target)
        except ResizeUnsettled:
            return False
        return True

    eventually(done)


def resize_while_held(client, scene, count, target, die=False):
    """A resize from `count`, with newer messages long before the older ones can be handled.

    `die`: the consumer that holds these does not survive it.
    """
    stage, publishing, consumers = scene
    held = waited_for(count, target)
    stage.hold(held)
    publishing.go_on()
    resize(client, target)
    eventually(lambda: any(held in one["waits_for"] for one in waiting(client)))
    publishing.go_on()
    eventually(lambda: any("for" in each.waits for one in consumers for each in lanes(one)))
    with pytest.raises(ResizeUnsettled):
        client.change_queue("flights", partition_count=target + 1)
    if die:
        (owner,) = (one for one in consumers if held in one.partitions)
        owner.die()
        eventually(lambda: any(held in one.partitions for one in consumers if one is not owner))
    assert stage.violations() == []
    stage.let_go()


def test_keys_stay_in_order_across_resizes_and_the_death_of_a_consumer(client, scene):
    client.change_queue("flights", ordered_resize=True)
    stage, publishing, _ = scene
    counts = (4, 6, 3, 8, 4, 5, 2)
    for count, target in pairwise(counts):
        resize_while_held(client, scene, count, target, die=target == 8)
    resize(client, 3)
    publishing.over.set()
    publishing.join()
    eventually(lambda: {number for _, number in stage.handled} == set(range(publishing.count)))
    assert stage.violations() == []


@pytest.mark.matrix("ordered")
@pytest.mark.parametrize("ordered", [False, True])
def test_consumers_that_do_not_stop_at_the_cut_are_found(client, scene, monkeypatch, ordered):
    """Without ordered resizes, and with the rule taken out of the consumers."""
    client.change_queue("flights", ordered_resize=ordered)
    monkeypatch.setattr("counterpoise.consumer.reading.within", lambda bounds, *_: bounds)
    stage, publishing, _ = scene
    stage.hold(waited_for(4, 6))
    publishing.go_on()
    resize(client, 6)
    # Its messages are newer than those of partition 0, and have the same keys.
    eventually(lambda: 4 in stage.partitions)
    stage.let_go()
    eventually(stage.violations)
