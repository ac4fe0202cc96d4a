"""When a flow that polls is in doubt (rule 8 of `counterpoise.flow.core`), in virtual time."""

import pytest

from counterpoise.errors import Unreachable
from counterpoise.flow import programs
from counterpoise.flow.programs import MayRenew, Pause, Send, Sent
from counterpoise.wire import CommitItem
from tests.counterpoise.flow.answers import bound_core, partition, results

LEASE_SECONDS = 9.0


class Polling:
    """A bound flow that polls. Its clock moves when a poll or a pause takes its time, and by
    `sleep`, as when the machine sleeps: no step of the flow is made meanwhile.
    """

    def __init__(self):
        self.now = 0.0
        self.core = bound_core(7, partition(0, 1))
        self._polls = programs.keep_bound(self.core)
        self._effect = next(self._polls)

    @property
    def in_doubt(self):
        return self.core.in_doubt(self.now)

    def sleep(self, seconds):
        self.now += seconds

    def step(self, error=None, takes=0.0):
        """Carry out effects up to the answer to the next poll, which is just sent or on its way."""
        self.send()
        sent_at = self.now
        self.now += takes
        self._go_on(Sent(sent_at, self.now, 0.5, error=error))

    def send(self):
        """Carry out effects until a poll is sent."""
        while not isinstance(self._effect, Send):
            if isinstance(self._effect, Pause):
                self.now += self._effect.seconds
            self._go_on(Sent(self.now, self.now, 0.5, value=isinstance(self._effect, MayRenew)))

    def refuse(self):
        """The program does not let it renew, for a moment."""
        assert isinstance(self._effect, MayRenew)
        self._go_on(Sent(self.now, self.now, 0.5, value=False))
        assert isinstance(self._effect, Pause)
        self.now += self._effect.seconds
        self._go_on(Sent(self.now, self.now, 0.5))

    def answered(self, sent_at):
        """The answer to the poll on its way, which was sent then."""
        self._go_on(Sent(sent_at, self.now, 0.5))

    def _go_on(self, sent):
        self._effect = self._polls.send(sent)


@pytest.fixture
def flow():
    flow = Polling()
    flow.step(takes=3.0)
    return flow


def test_a_flow_that_polls_is_never_in_doubt(flow):
    for _ in range(100):
        flow.step(takes=LEASE_SECONDS / 3)
        assert not flow.in_doubt


def test_a_lost_connection_is_no_doubt(flow):
    for takes in [0.0, LEASE_SECONDS / 3 + LEASE_SECONDS / 4] * 50:
        flow.step(Unreachable("away"), takes)
        assert not flow.in_doubt
    assert flow.core.lease_expires_at < flow.now


def test_after_a_sleep_it_is_in_doubt_until_a_poll_that_was_sent_since_is_answered(flow):
    flow.send()
    sent_at = flow.now
    flow.sleep(LEASE_SECONDS)
    assert not flow.in_doubt  # The lease may just last.
    flow.sleep(0.001)
    assert flow.in_doubt
    # The answer may lie around since before the sleep.
    flow.answered(sent_at)
    assert flow.in_doubt
    version = flow.core.version
    flow.step(takes=0.1)
    assert not flow.in_doubt
    assert flow.core.version > version, "`wait` returns"


def test_a_poll_that_fails_after_a_sleep_leaves_the_doubt(flow):
    flow.send()
    flow.sleep(3600)
    flow.step(Unreachable("the connection is gone"))
    for _ in range(10):
        assert flow.in_doubt
        flow.step(Unreachable("the network is not up yet"), takes=1.0)
    flow.step()
    assert not flow.in_doubt


def test_a_commit_that_is_sent_after_the_sleep_ends_the_doubt(flow):
    flow.send()
    flow.sleep(3600)
    request = flow.core.commit([CommitItem(0, 1, "5")])
    flow.core.answered(request, results((0, "ok")), sent_at=flow.now, now=flow.now)
    assert not flow.in_doubt


def test_a_commit_that_was_sent_before_the_sleep_ends_no_doubt(flow):
    request = flow.core.commit([CommitItem(0, 1, "5")])
    sent_at = flow.now
    flow.sleep(3600)
    flow.core.answered(request, results((0, "ok")), sent_at=sent_at, now=flow.now)
    assert flow.in_doubt


def test_a_program_that_does_not_let_it_renew_puts_it_in_doubt(flow):
    for _ in range(100):
        flow.refuse()
    assert flow.in_doubt
    flow.step(takes=0.1)
    assert not flow.in_doubt


def test_a_flow_without_partitions_to_lose_is_not_in_doubt(flow):
    flow.core.leave()
    flow.sleep(3600)
    assert not flow.in_doubt
