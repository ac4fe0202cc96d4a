"""Delayed redelivery while consumers die, leave, come, lose their leases, and partitions split.

Some messages fail, up to a few times, so keys are held all the time. Whatever happens to the
consumers, a message is done (handled, or a dead letter) for the first time only after all earlier
ones of its key. Consumers that do not hold keys must be found by the same run.
"""

import random
import threading
from collections import defaultdict

import pytest

from counterpoise.consumer import DeadLetter, Retry, retry_queue
from counterpoise.consumer.redelivery import Redelivery
from counterpoise.publisher import Publisher
from tests.counterpoise.consumer.conftest import Running, on_each_log
from tests.counterpoise.leases import LONG_SECONDS, Health
from tests.service import eventually

pytestmark = pytest.mark.long

KEYS = 12
# Of so many messages one fails.
SICK = 7
# So many messages are handled between two blows.
BETWEEN = 60


class Killed(BaseException):
    """The process of the consumer is gone."""


class Stage:
    """What was done, and how often each message was tried."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.done: list[tuple[str, int]] = []
        self.count = 0
        self.fails = defaultdict[int, int](int)

    def publish(self, url, count):
        with Publisher("flights", url=url) as publisher:
            for number in range(self.count, self.count + count):
                if self.random.randrange(SICK) == 0:
                    self.fails[number] = self.random.randrange(1, 6)
                publisher.publish(str(number).encode(), f"k{number % KEYS}")
        self.count += count

    def handle(self, message):
        number = int(message.value)
        with self.lock:
            if self.fails[number] > 0:
                self.fails[number] -= 1
                raise ValueError(f"{number} is sick")
            self.done.append((message.key, number))

    def letter(self, message, failure):
        with self.lock:
            self.done.append((message.key, int(message.value)))

    @property
    def finished(self):
        return {number for _, number in self.done}

    def violations(self):
        """Messages that were done for the first time while an earlier one of their key was not."""
        finished, found = set(), []
        for key, number in tuple(self.done):
            if number not in finished and number >= KEYS and number - KEYS not in finished:
                found.append((key, number))
            finished.add(number)
        return found


class Mortal(Running):
    """A consumer that can end like a killed process, also around a record of the retry queue."""

    def __init__(self, url, stage, **options):
        self.is_dead = threading.Event()
        self.health = Health()
        super().__init__(
            url,
            stage.handle,
            on_poison=Retry("retries", after_seconds=[0.02, 0.05], then=DeadLetter(stage.letter)),
            concurrency=2,
            idle_seconds=0.05,
            commit_seconds=0.1,
            lease_seconds=LONG_SECONDS,
            timeout_seconds=60,
            renew_while=self.health,
            **options,
        )
        retries = self.consumer._retries
        assert retries is not None
        write = retries.write

        def mortal(*arguments):
            self.check()
            write(*arguments)
            self.check()

        retries.write = mortal  # type: ignore[method-assign]

    def check(self):
        if self.is_dead.is_set():
            raise Killed

    def each(self, message):
        self.check()
        super().each(message)
        self.check()

    def run(self):
        try:
            super().run()
        finally:
            if isinstance(self.error, Killed):
                self.error = None

    def die(self):
        self.is_dead.set()
        self.consumer.flow.close()


@pytest.fixture
def retries(client, log_of, monkeypatch):
    monkeypatch.setattr(retry_queue, "SWEEP_SECONDS", 0.5)
    monkeypatch.setattr(retry_queue, "CALL_SECONDS", 60)
    client.create_queue("retries", rebalance_delay=0, **log_of(3))


@pytest.fixture
def troupe(service):
    """`troupe(stage)` starts one more consumer; all end with the test."""
    made = []

    def start(stage):
        made.append(Mortal(service.url, stage))
        made[-1].thread.start()
        return made[-1]

    yield start
    for one in made:
        one.consumer.stop(now=True)
    for one in made:
        one.join()


def goes_on(stage):
    """Wait until some more messages are done."""
    target = min(len(stage.finished) + BETWEEN, stage.count)
    eventually(lambda: len(stage.finished) >= target)


def play(stage, service, troupe, blows):
    """Some blows, and the end of all work. `blows`: functions of the consumer that is hit."""
    team = [troupe(stage) for _ in range(3)]
    for blow in blows:
        stage.publish(service.url, 2 * BETWEEN)
        goes_on(stage)
        one = team.pop(stage.random.randrange(len(team)))
        blow(one)
        team.append(troupe(stage))
    eventually(lambda: stage.finished == set(range(stage.count)))


@pytest.mark.matrix("log_of")
@on_each_log
def test_handoffs_repeat_nothing_and_no_key_is_overtaken(service, client, retries, troupe):
    stage = Stage(1)
    play(stage, service, troupe, [lambda one: one.consumer.stop()] * 3)
    assert stage.violations() == []
    numbers = [number for _, number in stage.done]
    assert sorted(numbers) == sorted(set(numbers))
    outcomes = {move.outcome for r in client.rebalances("flights") for move in r.moves}
    assert outcomes == {"initial", "graceful"}


@pytest.mark.matrix("log_of", "seed")
@on_each_log
@pytest.mark.parametrize(("seed", "rounds"), [(2, 1), (3, 3)])
def test_kills_and_lost_leases_lose_nothing_and_no_key_is_overtaken(
    service, client, retries, troupe, migrated_url, seed, rounds
):
    stage = Stage(seed)

    def lose_its_lease(one):
        if one.consumer.flow.flow_id is not None:
            one.health.end_lease(migrated_url, one.consumer.flow.flow_id)
            one.health.recover()

    blows = [Mortal.die, lose_its_lease, lambda one: one.consumer.stop()] * rounds
    stage.random.shuffle(blows)
    play(stage, service, troupe, blows)
    assert stage.violations() == []


def test_splits_and_merges_wait_for_what_is_set_aside(service, client, retries, troupe):
    client.delete_queue("flights")
    client.create_queue("flights", partitioning="dynamic", rebalance_delay=0, max_handoff_time=600)
    stage = Stage(4)
    team = [troupe(stage) for _ in range(2)]
    for _ in range(2):
        stage.publish(service.url, 2 * BETWEEN)
        for number in {number for one in team for number in one.partitions}:
            client.split_partition("flights", number)
        stage.publish(service.url, BETWEEN)
        goes_on(stage)
    eventually(lambda: stage.finished == set(range(stage.count)))
    assert stage.violations() == []


def test_consumers_that_hold_no_key_are_found(service, client, retries, troupe, monkeypatch):
    monkeypatch.setattr(Redelivery, "must_wait", lambda *_: False)
    stage = Stage(1)
    play(stage, service, troupe, [lambda one: one.consumer.stop()])
    assert stage.violations()
