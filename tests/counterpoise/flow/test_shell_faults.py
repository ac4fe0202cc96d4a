"""Both shells of the flow against a service that cuts, stalls and sends nonsense."""

import asyncio
import inspect
import logging
import math
import os
import pickle
import sys
import threading

import pytest

from counterpoise.errors import (
    FlowGone,
    NotBound,
    QueueNotFound,
    ServiceUnavailable,
    Unreachable,
)
from counterpoise.flow import AsyncFlow, Flow, Owned
from counterpoise.wire import ReleaseItem
from tests.counterpoise.faulty import Answer, Cut, Stall, faulty_service, problem
from tests.counterpoise.leases import Health, sleeping
from tests.log_support import until


@pytest.fixture
def faulty():
    with faulty_service() as service:
        yield service


class Awaited:
    """An `AsyncFlow` on a loop in a thread, with the methods of `Flow`: so one test covers both."""

    def __init__(self, *args, **options):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._flow = AsyncFlow(*args, **options)

    def __getattr__(self, name):
        attribute = getattr(self._flow, name)
        if not callable(attribute):
            return attribute

        def method(*args, **options):
            future = asyncio.run_coroutine_threadsafe(attribute(*args, **options), self._loop)
            return future.result(240)

        return method

    def __enter__(self):
        try:
            self.open()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_):
        self.close()
        self._stop()

    def _stop(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(240)
        self._loop.close()


@pytest.fixture(params=[Flow, Awaited], ids=["blocking", "asyncio"])
def make(request, faulty):
    def make_flow(**options):
        return request.param("flights", url=faulty.url, **options)

    return make_flow


def failing(verb, behaviour, times):
    """A script that answers the first requests for `verb` badly."""
    left = [times]

    def script(seen):
        if seen.path.partition("?")[0].endswith(verb) and left[0] > 0:
            left[0] -= 1
            return behaviour
        return None

    return script


FAULTS = {
    "cut": Cut(),
    "cut short": Cut(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"),
    "not JSON": Answer(200, text="<html>"),
    "not an answer": Answer(200, body={}),
    "a proxy": Answer(502, text="Bad gateway"),
    "unavailable": problem(503, "unavailable"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_bind_that_fails_is_repeated_as_the_same_instance(faulty, make, fault):
    faulty.script = failing("/flows", fault, 2)
    with make() as flow:
        assert list(flow.partitions) == [0]
        instances = {seen.body["instance_id"] for seen in faulty.requests("/flows")}
        assert instances == {flow.instance_id}
        assert len(faulty.requests("/flows")) == 3


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_polls_that_fail_cost_nothing(faulty, make, fault):
    faulty.script = failing("/updates", fault, 3)
    with make() as flow:
        until(lambda: len(faulty.requests("/updates")) >= 4)
        assert flow.status == "bound"
        assert list(flow.partitions) == [0]
        faulty.show(faulty.owned(0, 1), faulty.owned(1, 1))
        until(lambda: list(flow.partitions) == [0, 1])
        assert flow.last_error is None


PROXIED = {
    "404": Answer(404, text="<html>default backend - 404</html>"),
    "302": Answer(302, text="", headers={"Location": "/login"}),
    "403": Answer(403, text="<html>blocked</html>"),
}


@pytest.mark.parametrize("answer", PROXIED.values(), ids=PROXIED)
def test_once_bound_a_proxy_s_answers_are_a_service_that_is_away(faulty, make, answer):
    with make() as flow:
        for call, run in (
            ("/commit", lambda: flow.commit({0: "5"}, timeout_seconds=5)),
            ("/release", lambda: flow.release(0, timeout_seconds=5)),
        ):
            faulty.script = failing(call, answer, 1)
            assert run() in ({0: "ok"}, "ok")
        faulty.script = failing("/commit", answer, 99)
        with pytest.raises(ServiceUnavailable):
            flow.commit({0: "5"}, timeout_seconds=0.3)
        assert flow.status == "bound"


@pytest.mark.long
@pytest.mark.matrix("make")
def test_a_poll_that_is_never_answered_is_repeated_within_the_lease(faulty, make):
    faulty.lease_seconds = 8
    faulty.script = failing("/updates", Stall(), 1)
    with make():
        until(lambda: len(faulty.requests("/updates")) >= 2)
        first, second = faulty.requests("/updates")[:2]
        assert second.at - first.at < faulty.lease_seconds


def test_after_a_sleep_of_the_machine_the_partitions_are_in_doubt_before_any_timer(
    make, monkeypatch
):
    sleep, health = sleeping(monkeypatch), Health()
    with make(renew_while=health) as flow:
        health.rest()
        sleep(flow.lease_seconds)
        assert flow.in_doubt
        seen = flow.version
        health.recover()
        assert flow.wait(60, after=seen)
        assert not flow.in_doubt


def test_a_commit_whose_answer_was_cut_is_repeated_with_its_seq(faulty, make):
    faulty.script = failing("/commit", Cut(), 2)
    with make() as flow:
        assert flow.commit({0: "5"}) == {0: "ok"}
        assert flow.commit([(0, 1, "6")]) == {0: "ok"}
        numbers = [seen.body["seq"] for seen in faulty.requests("/commit")]
        assert numbers == [1, 1, 1, 2]
        assert flow.partitions[0].position == "6"


def test_a_commit_ends_when_its_time_is_up(faulty, make):
    """A second attempt would be answered."""
    faulty.script = failing("/commit", Stall(), 1)
    with make() as flow:
        with pytest.raises(ServiceUnavailable):
            flow.commit({0: "5"}, timeout_seconds=0.5)
        assert list(flow.partitions) == [0]


def test_nothing_is_sent_for_what_was_never_owned(faulty, make):
    with make() as flow:
        assert flow.commit({7: "5"}) == {7: "not_owner"}
        assert flow.release(7) == "not_owner"
        assert flow.ready(7) == "not_warming"
        assert flow.commit({}) == {}
        assert faulty.requests("/commit") == []


def test_an_expired_lease_is_bound_again_and_the_old_epochs_are_over(faulty, make):
    told = []
    with make(
        on_granted=lambda owned: told.append(("granted", owned.epoch)),
        on_lost=lambda owned: told.append(("lost", owned.epoch)),
    ) as flow:
        faulty.view = {"revision": 1, "partitions": [faulty.owned(0, 3)]}
        faulty.script = lambda seen: (
            problem(410, "flow_gone", reason="lease_expired") if "/flows/f1/" in seen.path else None
        )
        assert flow.commit([(0, 1, "5")]) == {0: "flow_gone"}
        until(lambda: flow.status == "bound" and flow.partitions[0].epoch == 3)
        until(lambda: len(told) == 3)
        assert told == [("granted", 1), ("lost", 1), ("granted", 3)]
        assert len({seen.body["instance_id"] for seen in faulty.requests("/flows")}) == 1


def test_an_ingress_without_a_service_behind_it_does_not_end_a_flow_that_binds_again(faulty, make):
    def script(seen):
        if "/flows/f1/" in seen.path:
            return problem(410, "flow_gone", reason="lease_expired")
        rollout = faulty.binds == 1 and len(faulty.requests("/flows")) < 4
        return Answer(404, text="default backend - 404") if rollout else None

    with make() as flow:
        faulty.script = script
        until(lambda: flow.flow_id == "f2")
        assert flow.last_error is None


def test_a_queue_made_again_ends_the_flow_and_the_new_queue_is_left_alone(faulty, make):
    told = []
    with make(on_granted=lambda owned: told.append(owned.epoch)) as flow:
        faulty.script = lambda seen: (
            problem(410, "flow_gone", reason="lease_expired") if "/flows/f1/" in seen.path else None
        )
        faulty.queue_id = "q2"
        until(lambda: flow.status == "gone")
        until(lambda: faulty.unbound == {"f2"})
        with pytest.raises(FlowGone, match="deleted and made again"):
            flow.commit([(0, 1, "5")])
        assert flow.gone_reason == "queue_recreated"
        assert [seen for seen in faulty.requests("/commit") if "/flows/f2/" in seen.path] == []
    assert told == [1]


def test_replaced_it_does_not_bind_again_and_says_so(faulty, make):
    with make() as flow:
        faulty.script = lambda seen: (
            problem(410, "flow_gone", reason="replaced") if "/flows/f1/" in seen.path else None
        )
        until(lambda: flow.status == "gone")
        assert flow.gone_reason == "replaced"
        assert dict(flow.partitions) == {}
        for use in (lambda: flow.commit({0: "5"}), lambda: flow.wait(1), flow.drain):
            with pytest.raises(FlowGone) as raised:
                use()
            assert raised.value.reason == "replaced"
        assert len(faulty.requests("/flows")) == 1


def test_a_queue_that_does_not_exist(faulty, make):
    faulty.script = lambda _: problem(404, "queue_not_found", detail="No queue is named flights.")
    with pytest.raises(QueueNotFound, match="No queue is named flights"):
        make().__enter__()
    assert len(faulty.seen) == 1


def test_a_service_that_is_away_when_the_flow_opens(faulty, make):
    faulty.script = lambda _: Cut()
    flow = make()
    with pytest.raises(Unreachable):
        flow.open(wait_seconds=0.5)
    assert flow.status == "gone"


def test_opening_does_not_have_to_wait(faulty, make):
    faulty.script = failing("/flows", Stall(0.5), 1)
    flow = make()
    flow.open(wait_seconds=0)
    try:
        assert flow.status == "binding"
        assert flow.wait(60)
        assert flow.status == "bound"
    finally:
        flow.close()


def test_wait_sees_a_change_that_came_before_it(faulty, make):
    with make() as flow:
        seen = flow.version
        faulty.show(faulty.owned(0, 1), faulty.owned(1, 1))
        until(lambda: len(flow.partitions) == 2)
        assert flow.wait(0, after=seen)
        assert not flow.wait(0.05)


def test_callbacks_may_use_the_flow_and_fail_without_harm(faulty, make, caplog):
    released = []

    def granted(owned):
        raise RuntimeError("a defect of the program's")

    with (
        make(
            on_granted=granted, on_revoking=lambda owned, left: released.append((owned, left))
        ) as flow,
        caplog.at_level(logging.ERROR),
    ):
        in_an_hour = "2026-11-20T11:00:00.000Z"
        faulty.show(faulty.owned(0, 1, "revoking", deadline=in_an_hour))
        until(lambda: released)
        owned, left = released[0]
        assert owned.partition == 0
        assert 3000 < left <= 3600
        assert "a defect of the program's" in caplog.text
        assert flow.status == "bound"


def test_a_slow_callback_does_not_cost_the_lease(faulty):
    blocked = threading.Event()
    with Flow("flights", url=faulty.url, on_granted=lambda _: blocked.wait()) as flow:
        try:
            count = len(faulty.requests("/updates"))
            faulty.show(faulty.owned(0, 1), faulty.owned(1, 1))
            until(lambda: len(faulty.requests("/updates")) > count + 1)
            assert len(flow.partitions) == 2
        finally:
            blocked.set()


def test_a_callback_may_commit(faulty):
    flow = Flow("flights", url=faulty.url, on_granted=lambda owned: flow.commit({0: "5"}))
    with flow:
        until(lambda: faulty.requests("/commit"))


def test_nothing_is_renewed_while_the_program_says_so(faulty, make):
    well, refused = [True], [0]

    def is_well():
        refused[0] += not well[0]
        return well[0]

    with make(renew_while=is_well):
        until(lambda: faulty.requests("/updates"))
        well[0] = False
        faulty.show(faulty.owned(0, 1))  # ends the poll under way
        until(lambda: refused[0])
        count = len(faulty.requests("/updates"))
        until(lambda: refused[0] >= 3)
        assert len(faulty.requests("/updates")) == count
        well[0] = True
        until(lambda: len(faulty.requests("/updates")) > count)


def test_a_service_that_answers_polls_at_once_is_not_hammered(faulty, make):
    faulty.script = lambda seen: Answer(204) if "/updates" in seen.path else None
    with make():
        until(lambda: len(faulty.requests("/updates")) >= 20)
        seen = faulty.requests("/updates")
        assert seen[19].at - seen[0].at >= 0.6


def test_closing_ends_in_time_without_an_answer(faulty, make):
    """A second attempt would be answered."""
    with make() as flow:
        faulty.script = failing("/f1", Stall(), 1)
        flow.close(timeout_seconds=0.5)
        assert faulty.unbound == set()
        flow.close()
        with pytest.raises(NotBound):
            flow.commit({0: "5"})


def test_unbinding_is_told_and_repeated(faulty, make):
    faulty.script = failing("/f1", Cut(), 1)
    with make():
        pass
    unbinds = [seen for seen in faulty.seen if seen.method == "DELETE"]
    assert [seen.path for seen in unbinds] == ["/v1/queues/flights/flows/f1"] * 2


def test_a_flow_is_used_after_open_only(faulty):
    flow = Flow("flights", url=faulty.url)
    assert flow.status == "new"
    with pytest.raises(NotBound, match="open"):
        flow.commit({0: "5"})
    flow.close()


def test_a_flow_cannot_be_pickled(faulty):
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(Flow("flights", url=faulty.url))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_cannot_use_it_nor_end_it(faulty):
    with Flow("flights", url=faulty.url) as flow:
        child = os.fork()
        if child == 0:
            try:
                flow.close()
                flow.commit({0: "5"})
            except NotBound as error:
                os._exit(0 if "forked process" in str(error) else 2)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert flow.commit({0: "5"}) == {0: "ok"}
        assert [seen for seen in faulty.seen if seen.method == "DELETE"] == []


async def test_a_commit_that_is_cancelled_leaves_the_flow_whole(faulty):
    faulty.script = failing("/release", Stall(), 1)
    lost: list[Owned] = []
    async with AsyncFlow("flights", url=faulty.url, on_lost=lost.append) as flow:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await flow.release(0, epoch=1)
        faulty.show()
        async with asyncio.timeout(240):
            while not lost:
                await flow.wait(1)
        assert [owned.partition for owned in lost] == [0]


async def test_a_close_that_is_cancelled_leaves_nothing_behind(faulty):
    flow = AsyncFlow("flights", url=faulty.url, on_granted=lambda _: None)
    await flow.open()
    faulty.script = lambda seen: Stall() if seen.method == "DELETE" else None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await flow.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("flow-")]
    assert flow._client is not None
    assert flow._client._http.is_closed


async def test_an_unbind_that_is_cancelled_is_made_up_for_by_close(faulty):
    faulty.script = failing("/f1", Stall(), 1)
    async with AsyncFlow("flights", url=faulty.url) as flow:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await flow.unbind()
        assert flow.status == "gone"
        assert faulty.unbound == set()
    assert faulty.unbound == {"f1"}


async def test_a_close_that_is_cancelled_says_so(faulty, caplog):
    flow = AsyncFlow("flights", url=faulty.url)
    await flow.open()
    faulty.script = failing("/f1", Stall(), 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await flow.close()
    assert "the unbind did not reach the service" in caplog.text


def test_an_unbind_that_did_not_reach_the_service_can_be_repeated(faulty, make):
    faulty.script = lambda seen: problem(503, "unavailable") if seen.method == "DELETE" else None
    with make(timeout_seconds=0.2) as flow:
        for _ in range(2):
            with pytest.raises(ServiceUnavailable):
                flow.unbind()
        faulty.script = lambda _: None
        flow.unbind()
        assert faulty.unbound == {"f1"}
        count = len(faulty.seen)
        flow.unbind()
        assert len(faulty.seen) == count


WRONG_SHAPES = {
    "no epoch": (
        lambda flow: flow.commit([(0, "1")]),
        r"\[\(partition, epoch, position\)\]; an item",
    ),
    "one item": (lambda flow: flow.commit((0, 1, "5")), "an item is 0"),
    "text": (lambda flow: flow.commit("0"), "an item is '0'"),
    "an item of release": (lambda flow: flow.commit([ReleaseItem(0, 1)]), "an item is ReleaseItem"),
    "a number as the position": (lambda flow: flow.commit({0: 5}), "position must be a str, not 5"),
    "no position": (lambda flow: flow.commit({0: None}), "must be a str, not None"),
    "keys of JSON": (lambda flow: flow.commit({"0": "5"}), "partition must be an int, not '0'"),
    "a float": (lambda flow: flow.commit([(0.0, 1, "5")]), r"partition must be an int, not 0\.0"),
    "True": (lambda flow: flow.commit([(True, 1, "5")]), "partition must be an int, not True"),
    "swapped": (lambda flow: flow.commit([(0, "5", 1)]), "epoch must be an int, not '5'"),
    "a partition as text": (lambda flow: flow.release("0"), "partition must be an int, not '0'"),
    "an Owned": (lambda flow: flow.release(flow.partitions[0]), "must be an int, not Owned"),
    "a position": (lambda flow: flow.release(0, 5, epoch=1), "position must be a str, not 5"),
    "a short item": (lambda flow: flow.release_many([(0, "5")]), r"position, finished\); an item"),
    "numbers": (lambda flow: flow.release_many([0]), "an item is 0"),
    "ready": (lambda flow: flow.ready("0"), "partition must be an int, not '0'"),
    "finish": (lambda flow: flow.finish("0"), "partition must be an int, not '0'"),
    "children": (lambda flow: flow.children("0", ()), "partition must be an int, not '0'"),
}


@pytest.mark.parametrize(("call", "said"), WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_what_cannot_be_sent_is_refused_at_once(faulty, make, call, said):
    lost: list[Owned] = []
    with make(on_lost=lost.append) as flow:
        count = len(faulty.seen)
        with pytest.raises(TypeError, match=said):
            call(flow)
        assert not [seen for seen in faulty.seen[count:] if seen.method == "POST"]
        faulty.show()
        until(lambda: lost)


def test_a_close_while_another_thread_opens_it_ends_it(faulty, monkeypatch):
    flow = Flow("flights", url=faulty.url)

    class Late(threading.Thread):
        def start(self):
            if self.name.startswith("flow-"):
                flow.close()
            super().start()

    monkeypatch.setattr(threading, "Thread", Late)
    flow.open(wait_seconds=0)
    keeper = flow._keeper
    assert keeper is not None
    until(lambda: not keeper.is_alive())
    assert flow.status == "gone"


@pytest.mark.parametrize("nonsense", [math.nan, True, "5"])
def test_a_time_limit_without_sense_is_refused_at_once(faulty, make, nonsense):
    limits = {"timeout_seconds": nonsense}
    said = "timeout_seconds must be "
    with make() as flow:
        for call in (
            lambda: flow.commit({0: "5"}, **limits),
            lambda: flow.release(0, **limits),
            lambda: flow.children(0, (), **limits),
            lambda: flow.finish(0, **limits),
            lambda: flow.ready(0, 1, **limits),
            lambda: flow.report((), **limits),
            lambda: flow.refresh(**limits),
            lambda: flow.drain(**limits),
            lambda: flow.wait(**limits),
            lambda: flow.close(**limits),
        ):
            with pytest.raises((TypeError, ValueError), match=said):
                call()
        assert flow.status == "bound"
        with pytest.raises((TypeError, ValueError), match="wait_seconds must be"):
            make().open(wait_seconds=nonsense)


def test_a_caller_may_have_no_time_left_or_all_of_it(faulty, make):
    with make() as flow:
        assert not flow.wait(-1)
        assert flow.commit({0: "5"}, timeout_seconds=math.inf) == {0: "ok"}
        seen = flow.version
        faulty.show(faulty.owned(0, 1), faulty.owned(1, 1))
        assert flow.wait(math.inf, after=seen)


@pytest.mark.parametrize("method", ["close", "report", "wait"])
def test_both_flows_take_the_same_arguments(method):
    blocking, awaited = (getattr(one, method) for one in (Flow, AsyncFlow))
    assert inspect.signature(blocking).parameters == inspect.signature(awaited).parameters


async def test_a_callback_that_is_cancelled_ends_only_itself(faulty, caplog):
    told: list[int] = []

    async def on_granted(owned):
        told.append(owned.partition)
        work = asyncio.get_running_loop().create_future()
        work.cancel()
        await work

    async with AsyncFlow("flights", url=faulty.url, on_granted=on_granted) as flow:
        faulty.show(faulty.owned(0, 1), faulty.owned(1, 1))
        async with asyncio.timeout(240):
            while told != [0, 1]:
                await flow.wait(0.05)
    assert "a callback was cancelled for Granted" in caplog.text


async def never_awaited(_owned):
    raise AssertionError


def cancelled(_owned):
    raise asyncio.CancelledError


@pytest.mark.parametrize("callback", [lambda _owned: sys.exit(1), cancelled, never_awaited])
def test_a_callback_that_fails_in_whatever_way_is_logged_and_others_come(faulty, caplog, callback):
    told: list[int] = []

    def on_granted(owned):
        told.append(owned.partition)
        return callback(owned)

    with Flow("flights", url=faulty.url, on_granted=on_granted):
        faulty.show(faulty.owned(0, 1), faulty.owned(1, 1))
        until(lambda: caplog.text.count("a callback failed for Granted") == 2)
    assert told == [0, 1]


async def test_async_callbacks_are_awaited(faulty):
    granted = asyncio.Event()

    async def on_granted(owned):
        await asyncio.sleep(0)
        granted.set()

    async with AsyncFlow("flights", url=faulty.url, on_granted=on_granted):
        async with asyncio.timeout(240):
            await granted.wait()
