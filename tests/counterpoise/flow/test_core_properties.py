"""The flow's rules hold for all decisions, and all delays, losses, repetitions and reorderings."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from counterpoise.flow.view import Granted, Lost, Retiring, Revoking
from counterpoise.wire import ReleaseItem
from tests.budgets import budget
from tests.counterpoise.flow.answers import (
    bound,
    core,
    gone,
    partition,
    results,
    update,
)

NUMBERS = range(2)


class Service:
    """One flow's part of a queue, decided at random: epochs only rise, one view per revision."""

    def __init__(self):
        self.epochs = dict.fromkeys(NUMBERS, 0)
        self.owned = {}
        self.revision = 0
        self.flow_number = 1

    @property
    def flow_id(self):
        return f"f{self.flow_number}"

    def grant(self, number):
        self.epochs[number] += 1
        self.owned[number] = "owned"
        self.revision += 1

    def turn(self, number, state):
        if number in self.owned and self.owned[number] != state:
            self.owned[number] = state
            self.revision += 1

    def take_away(self, number):
        if self.owned.pop(number, None):
            self.revision += 1

    def expire(self):
        self.owned.clear()
        self.flow_number += 1
        self.revision += 1

    def release(self, number, epoch):
        if self.epochs[number] == epoch and self.owned.get(number) == "revoking":
            self.take_away(number)
            return "ok"
        return "stale_epoch" if epoch < self.epochs[number] else "not_revoking"

    def parts(self):
        return [
            partition(number, self.epochs[number], state, deadline=3)
            for number, state in sorted(self.owned.items())
        ]

    def view(self):
        return update(self.revision, *self.parts(), flow_id=self.flow_id)


class Program:
    """Believes its notices, and fails if they contradict each other."""

    def __init__(self):
        self.held = {}
        self.seen = set()

    def hear(self, notice):
        number, epoch = notice.owned.partition, notice.owned.epoch
        match notice:
            case Granted():
                assert number not in self.held, "held under two epochs"
                assert (number, epoch) not in self.seen, "granted twice"
                assert all(epoch > e for n, e in self.seen if n == number)
                self.seen.add((number, epoch))
                self.held[number] = epoch
            case Lost():
                assert self.held.pop(number) == epoch
            case Revoking() | Retiring():
                assert self.held[number] == epoch


numbers = st.sampled_from(list(NUMBERS))


class WhatAProgramIsTold(RuleBasedStateMachine):
    """The notices are consistent at every step, and true once the latest update has arrived."""

    def __init__(self):
        super().__init__()
        self.service, self.program, self.flow = Service(), Program(), core()
        self.flow.open()
        self.flow.bind_answered(bound(0), sent_at=0.0, now=0.0)
        self.updates = [self.service.view()]
        self.pending = []

    def hear(self):
        for notice in self.flow.notices.take():
            self.program.hear(notice)

    def deliver(self, view):
        self.flow.poll_answered(self.flow.bound.flow_id, view, sent_at=0.0, now=0.0)
        self.hear()

    def settle(self, lost):
        request, outcome, number, epoch, view = self.pending.pop(0)
        if lost:
            self.flow.unanswered(request)
        else:
            if outcome == "ok":
                assert self.program.held.pop(number) == epoch
            self.flow.answered(request, results((number, outcome), view=view), 0.0, 0.0)
        self.hear()

    # ---------------------------------------------------------- decisions of the service

    def decided(self, deliver):
        self.updates.append(self.service.view())
        if deliver:
            self.deliver(self.service.view())

    @rule(number=numbers, deliver=st.booleans())
    def grant(self, number, deliver):
        self.service.grant(number)
        self.decided(deliver)

    @rule(number=numbers, state=st.sampled_from(["revoking", "retiring"]), deliver=st.booleans())
    def turn(self, number, state, deliver):
        self.service.turn(number, state)
        self.decided(deliver)

    @rule(number=numbers, deliver=st.booleans())
    def take_away(self, number, deliver):
        self.service.take_away(number)
        self.decided(deliver)

    @rule()
    def expire(self):
        self.service.expire()
        self.flow.call_failed(self.flow.bound.flow_id, gone("lease_expired"))
        self.hear()
        while self.pending:
            self.settle(lost=True)
        assert self.program.held == {}
        anew = bound(self.service.revision, flow_id=self.service.flow_id)
        self.flow.bind_answered(anew, sent_at=0.0, now=0.0)

    # ---------------------------------------------------------- arrivals

    @rule(age=st.integers(0, 5))
    def deliver_some_update_late_or_again(self, age):
        self.deliver(self.updates[-1 - age % len(self.updates)])

    @precondition(lambda self: self.program.held)
    @rule(choice=st.integers(0, 5))
    def release(self, choice):
        held = sorted(self.program.held.items())
        number, epoch = held[choice % len(held)]
        if any(one[2:4] == (number, epoch) for one in self.pending):
            return
        request = self.flow.release([ReleaseItem(number, epoch)])
        outcome = self.service.release(number, epoch)
        self.pending.append((request, outcome, number, epoch, self.service.view()))
        self.updates.append(self.service.view())

    @precondition(lambda self: self.pending)
    @rule(lost=st.booleans())
    def answer_a_release(self, lost):
        self.settle(lost)

    def teardown(self):
        while self.pending:
            self.settle(lost=False)
        self.deliver(self.service.view())
        truth = {number: self.service.epochs[number] for number in self.service.owned}
        assert self.program.held == truth
        assert {n: owned.epoch for n, owned in self.flow.view.partitions.items()} == truth


TestWhatAProgramIsTold = WhatAProgramIsTold.TestCase
TestWhatAProgramIsTold.settings = settings(
    max_examples=budget(300), stateful_step_count=40, deadline=None
)
