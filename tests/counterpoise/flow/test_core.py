"""The rules of the flow, one by one (see the docstring of `counterpoise.flow.core`)."""

from datetime import timedelta

import pytest

from counterpoise.errors import (
    FlowGone,
    FlowNotFound,
    Forbidden,
    Invalid,
    NotBound,
    NotCounterpoise,
    QueueNotFound,
    Refused,
    StateKept,
    Unauthorized,
    Unreachable,
    error_of,
)
from counterpoise.flow import programs
from counterpoise.flow.core import LOST_EPOCHS
from counterpoise.wire import CommitItem, LogAccess, ReadyItem, ReleaseItem
from tests.counterpoise.flow.answers import (
    EPOCH,
    bound,
    bound_core,
    core,
    gone,
    partition,
    results,
    told,
    update,
)


def take(flow, view, now=0.0, flow_id="f1"):
    flow.poll_answered(flow_id, view, sent_at=now, now=now)


# ------------------------------------------------------------------ 1. the view


def test_grants_in_the_answer_to_bind_are_told():
    flow = core()
    flow.open()
    flow.bind_answered(bound(7, partition(0, 1), partition(1, 4)), sent_at=0.0, now=0.0)
    assert flow.status == "bound"
    assert told(flow) == ["granted 0@1", "granted 1@4"]


def test_updates_that_were_overtaken_are_ignored():
    flow = bound_core(7, partition(0, 1))
    take(flow, update(9, partition(1, 1)))
    told(flow)
    version = flow.version
    take(flow, update(8, partition(0, 1)))
    take(flow, update(9, partition(0, 1)))
    assert told(flow) == []
    assert list(flow.view.partitions) == [1]
    assert flow.version == version


@pytest.mark.parametrize("step", [-3600.0, -2.0, 2.0, 3600.0])
def test_a_deadline_is_by_the_clock_of_the_update_that_tells_it(step):
    """The service's clock was set between two updates."""
    flow = bound_core(7, partition(0, 1), partition(1, 1))
    take(flow, update(8, partition(0, 1, "revoking", deadline=8.0), now=2.0), now=102.0)
    assert flow.view.partitions[0].deadline == 108.0
    later = update(9, partition(0, 1, "revoking", deadline=8.0 + step), now=4.0 + step)
    take(flow, later, now=104.0)
    assert flow.view.partitions[0].deadline == 108.0
    assert flow.lease_expires_at == 104.0 + flow.lease_seconds


def test_an_update_of_another_flow_is_ignored():
    flow = bound_core(7, partition(0, 1))
    take(flow, update(9, flow_id="f0"))
    take(flow, update(9, flow_id="f0"), flow_id="f0")
    assert list(flow.view.partitions) == [0]


def test_a_partition_granted_anew_to_its_owner_is_lost_and_granted():
    flow = bound_core(7, partition(0, 1), partition(1, 1))
    take(flow, update(8, partition(0, 2), partition(1, 1)))
    assert told(flow) == ["lost 0@1", "granted 0@2"]


def test_losses_are_told_before_grants():
    flow = bound_core(7, partition(5, 1))
    take(flow, update(8, partition(0, 2)))
    assert told(flow) == ["lost 5@1", "granted 0@2"]


def test_a_partition_first_seen_as_revoking_is_granted_then_revoking():
    flow = bound_core(7)
    take(flow, update(8, partition(3, 2, "revoking", deadline=3)))
    assert told(flow) == ["granted 3@2", "revoking 3@2"]


def test_revoking_is_told_once():
    flow = bound_core(7, partition(3, 2))
    take(flow, update(8, partition(3, 2, "revoking", deadline=3)))
    take(flow, update(9, partition(3, 2, "revoking", deadline=4)))
    assert told(flow) == ["revoking 3@2"]


def test_retiring_is_told_again_after_it_was_taken_back():
    flow = bound_core(7, partition(3, 2))
    take(flow, update(8, partition(3, 2, "retiring")))
    take(flow, update(9, partition(3, 2)))
    take(flow, update(10, partition(3, 2, "retiring")))
    assert told(flow) == ["retiring 3@2", "retiring 3@2"]


def test_deadlines_are_converted_to_our_clock():
    flow = bound_core(7, partition(3, 2))
    take(flow, update(8, partition(3, 2, "revoking", deadline=13), now=10), now=1000.0)
    assert flow.view.partitions[3].deadline == pytest.approx(1003.0)


def test_warming_is_told_for_each_epoch_and_ends_with_the_grant_or_when_called_off():
    flow = bound_core(7)
    take(flow, update(8, partition(3, 2, "warming"), partition(4, 5, "warming")))
    assert told(flow) == ["warmingstarted 3@2", "warmingstarted 4@5"]
    take(flow, update(9, partition(3, 3), partition(4, 6, "warming")))
    assert told(flow) == ["granted 3@3", "warmingstarted 4@6"]
    take(flow, update(10, partition(3, 3)))
    assert told(flow) == ["warmingended 4@6"]


def test_a_refresh_of_the_same_view_shows_the_owners_position():
    flow = bound_core(1, partition(0, 2, "warming", position="5"))
    flow_id, call = flow.refresh_call()
    assert call.query["after"] == "0"
    version = flow.version
    flow.poll_answered(flow_id, update(1, partition(0, 2, "warming", position="9")), 1.0, 1.0)
    assert flow.view.warming[0].position == "9"
    assert flow.version > version
    assert told(flow) == []
    # A position belongs to an epoch.
    flow.poll_answered(flow_id, update(1, partition(0, 1, "warming", position="3")), 1.0, 1.0)
    assert flow.view.warming[0].position == "9"


def test_there_is_nothing_to_refresh_while_not_bound():
    flow = core()
    flow.open()
    assert flow.refresh_call() is None


def test_states_that_a_newer_service_may_invent_are_ignored():
    flow = bound_core(7, partition(0, 1))
    take(flow, update(8, partition(0, 1), partition(1, 1, "waiting")))
    assert told(flow) == []


# ------------------------------------------------------------------ 2. the lease


def test_a_poll_asks_for_at_most_half_the_lease_and_fails_within_it():
    flow = bound_core(7)
    call = flow.poll_call()
    wait = float(call.query["wait"])
    assert wait <= 4.5
    assert call.timeout_seconds is not None
    assert wait < call.timeout_seconds < 9.0
    assert call.query["after"] == "7"


def test_the_lease_runs_from_when_the_renewing_call_was_sent():
    flow = bound_core(7)
    assert flow.lease_expires_at == 9.0
    flow.poll_answered("f1", None, sent_at=3.0, now=6.0)
    assert flow.lease_expires_at == 12.0
    flow.poll_answered("f1", None, sent_at=2.0, now=7.0)
    assert flow.lease_expires_at == 12.0


# ------------------------------------------------------------------ 3. cut off


@pytest.mark.parametrize("error", [Unreachable("cut"), NotCounterpoise("a proxy's page")])
def test_without_the_service_the_flow_keeps_its_partitions(error):
    flow = bound_core(7, partition(0, 1))
    flow.call_failed("f1", error)
    assert (flow.status, flow.last_error) == ("bound", error)
    assert list(flow.view.partitions) == [0]
    take(flow, None)
    assert flow.last_error is None


def test_a_call_refused_as_invalid_does_not_end_the_flow():
    flow = bound_core(7, partition(0, 1))
    flow.call_failed("f1", Invalid("no", 422, {"code": "invalid"}))
    assert flow.status == "bound"


# ------------------------------------------------------------------ 4. gone


@pytest.mark.parametrize(
    "error",
    [
        gone("lease_expired"),
        gone("restored"),
        FlowNotFound("unknown", 404, {"code": "flow_not_found"}),
    ],
)
def test_an_expired_flow_binds_again_with_the_same_instance(error):
    flow = bound_core(7, partition(0, 1))
    flow.call_failed("f1", error)
    assert flow.status == "binding"
    assert told(flow) == ["lost 0@1"]
    assert flow.bind_call().body.instance_id == "i1"
    # The new flow's revisions are not compared with the old one's.
    flow.bind_answered(bound(3, partition(0, 2), flow_id="f2"), sent_at=1.0, now=1.0)
    assert told(flow) == ["granted 0@2"]
    assert flow.gone_reason is None


def test_told_not_to_bind_again_it_does_not():
    flow = bound_core(7, partition(0, 1), rebind=False)
    flow.call_failed("f1", gone("lease_expired"))
    assert (flow.status, flow.gone_reason) == ("gone", "lease_expired")


@pytest.mark.parametrize("reason", ["replaced", "unbound", "key_ended"])
def test_replaced_or_removed_it_stops_and_says_so(reason):
    flow = bound_core(7, partition(0, 1))
    flow.call_failed("f1", gone(reason))
    assert (flow.status, flow.gone_reason) == ("gone", reason)
    assert told(flow) == ["lost 0@1"]
    with pytest.raises(FlowGone):
        flow.check()


@pytest.mark.parametrize(
    "error",
    [
        QueueNotFound("no queue", 404, {"code": "queue_not_found"}),
        Unauthorized("no key", 401, {"code": "unauthorized"}),
        Forbidden("not this key", 403, {"code": "forbidden"}),
    ],
)
def test_the_queue_deleted_or_the_key_refused_it_stops_and_says_so(error):
    flow = bound_core(7, partition(0, 1))
    flow.call_failed("f1", error)
    with pytest.raises(type(error)):
        flow.check()


def test_the_end_of_an_earlier_flow_does_not_end_the_present_one():
    flow = bound_core(7, partition(0, 1))
    flow.call_failed("f1", gone("lease_expired"))
    flow.bind_answered(bound(3, partition(0, 2), flow_id="f2"), sent_at=1.0, now=1.0)
    flow.call_failed("f1", gone("replaced"))
    assert flow.status == "bound"


def test_a_draining_flow_whose_lease_expired_is_done():
    flow = bound_core(7, partition(0, 1))
    take(flow, update(8, partition(0, 1), draining=True))
    flow.call_failed("f1", gone("lease_expired"))
    assert flow.status == "gone"


def test_a_bind_that_is_refused_ends_the_flow_and_one_that_fails_does_not():
    flow = core()
    flow.open()
    flow.call_failed(None, Unreachable("away"))
    assert flow.status == "binding"
    flow.call_failed(None, NotCounterpoise("a web server"))
    assert flow.status == "gone"
    with pytest.raises(NotCounterpoise):
        flow.check()


@pytest.mark.parametrize(
    "error",
    [NotCounterpoise("default backend - 404"), Refused("a gateway", 404, {"code": 5})],
    ids=["no problem document", "a problem document of somebody else"],
)
def test_an_answer_of_a_proxy_does_not_end_a_flow_that_binds_again(error):
    flow = bound_core(7, partition(0, 1))
    flow.call_failed("f1", gone("lease_expired"))
    flow.call_failed(None, error)
    assert (flow.status, flow.last_error) == ("binding", error)
    flow.bind_answered(bound(3, partition(0, 2), flow_id="f2"), sent_at=1.0, now=1.0)
    assert (flow.status, flow.last_error) == ("bound", None)


@pytest.mark.parametrize("was_bound", [False, True])
def test_a_flow_whose_lease_ended_before_its_bind_was_answered_binds_again(was_bound):
    flow = bound_core(7, partition(0, 1)) if was_bound else core()
    if was_bound:
        flow.call_failed("f1", gone("lease_expired"))
    else:
        flow.open()
    flow.call_failed(None, gone("lease_expired"))
    assert flow.status == "binding"
    flow.bind_answered(bound(3, partition(0, 2), flow_id="f3"), sent_at=1.0, now=1.0)
    assert flow.status == "bound"


@pytest.mark.parametrize(
    "error",
    [
        QueueNotFound("no queue", 404, {"code": "queue_not_found"}),
        Invalid("no", 422, {"code": "invalid"}),
        StateKept("no", 409, {"code": "state_kept"}),
        Unauthorized("no key", 401, {"code": "unauthorized"}),
        Forbidden("not this key", 403, {"code": "forbidden"}),
        gone("replaced"),
    ],
)
def test_a_refusal_of_the_service_ends_a_flow_that_binds_again(error):
    flow = bound_core(7, partition(0, 1))
    flow.call_failed("f1", gone("lease_expired"))
    flow.call_failed(None, error)
    assert (flow.status, flow.error) == ("gone", error)


def test_a_flow_closed_during_a_bind_unbinds_the_new_flow():
    flow = core()
    flow.open()
    assert flow.leave() is None
    undo = flow.bind_answered(bound(3, partition(0, 2)), sent_at=1.0, now=1.0)
    assert undo is not None
    assert (undo.method, undo.path) == ("DELETE", "/queues/flights/flows/f1")
    assert told(flow) == []


def test_leaving_tells_no_losses():
    flow = bound_core(7, partition(0, 1))
    binding = flow.leave()
    assert binding is not None
    assert flow.leave() is binding, "the service may not know yet"
    flow.left()
    assert flow.leave() is None
    assert told(flow) == []
    with pytest.raises(NotBound):
        flow.check()


# ------------------------------------------------------------------ 5. seq, commits


def test_seq_rises_with_every_call_also_over_a_new_bind():
    flow = bound_core(7, partition(0, 1))
    first = flow.commit([CommitItem(0, 1, "5")])
    second = flow.release([ReleaseItem(0, 1, "6")])
    flow.call_failed("f1", gone("lease_expired"))
    flow.bind_answered(bound(3, partition(0, 2), flow_id="f2"), sent_at=1.0, now=1.0)
    third = flow.commit([CommitItem(0, 2, "7")])
    assert first.call.body.seq < second.call.body.seq < third.call.body.seq
    assert "seq" not in flow.ready([ReadyItem(0, 2)]).call.body.__struct_fields__


def test_the_view_has_the_last_position_acknowledged_whatever_the_order_of_answers():
    flow = bound_core(7, partition(0, 1, position="1"))
    first = flow.commit([CommitItem(0, 1, "5")])
    second = flow.commit([CommitItem(0, 1, "6")])
    flow.answered(second, results((0, "ok")), 1.0, 1.0)
    flow.answered(first, results((0, "ok")), 1.0, 2.0)
    assert flow.view.partitions[0].position == "6"
    # An update that was made before the commit and delivered after it.
    take(flow, update(8, partition(0, 1, position="1"), partition(1, 1)))
    assert flow.view.partitions[0].position == "6"


def test_a_commit_that_was_refused_changes_nothing():
    flow = bound_core(7, partition(0, 1, position="1"))
    request = flow.commit([CommitItem(0, 1, "5")])
    view = update(8, partition(0, 2, position="3"))
    outcome = flow.answered(request, results((0, "stale_epoch"), view=view), 1.0, 1.0)
    assert [result.outcome for result in outcome] == ["stale_epoch"]
    assert flow.view.partitions[0].position == "3"
    assert told(flow) == ["lost 0@1", "granted 0@2"]


def test_nothing_can_be_committed_while_binding_again():
    flow = bound_core(7, partition(0, 1))
    flow.call_failed("f1", gone("lease_expired"))
    assert flow.commit([CommitItem(0, 1, "5")]) is None


# ------------------------------------------------------------------ 6. releases


def revoked_core():
    flow = bound_core(7, partition(0, 1, "revoking", deadline=3), partition(1, 1))
    return flow, flow.release([ReleaseItem(0, 1, "9")])


def test_a_released_partition_is_not_reported_as_lost():
    flow, request = revoked_core()
    flow.answered(request, results((0, "ok"), view=update(8, partition(1, 1))), 1.0, 1.0)
    assert told(flow) == []
    assert list(flow.view.partitions) == [1]


def test_nor_if_the_update_comes_after_the_answer_or_before_it():
    flow, request = revoked_core()
    flow.answered(request, results((0, "ok")), 1.0, 1.0)
    take(flow, update(8, partition(1, 1)))
    assert told(flow) == []

    flow, request = revoked_core()
    take(flow, update(8, partition(1, 1)))
    assert told(flow) == []
    flow.answered(request, results((0, "ok")), 1.0, 1.0)
    assert told(flow) == []


@pytest.mark.parametrize("answered", [True, False])
def test_a_release_that_came_too_late_is_a_loss(answered):
    flow, request = revoked_core()
    take(flow, update(8, partition(1, 1)))
    assert told(flow) == []
    if answered:
        flow.answered(request, results((0, "stale_epoch")), 1.0, 1.0)
    else:
        flow.unanswered(request)
    assert told(flow) == ["lost 0@1"]


def test_epochs_of_partitions_that_were_lost_are_kept_of_the_last_ones():
    """The partitions of a dynamic queue have ever higher numbers."""
    flow = bound_core(1, partition(0, 1))
    for number in range(1, 2 * LOST_EPOCHS):
        take(flow, update(1 + number, partition(number, 7)))
    number = 2 * LOST_EPOCHS - 1
    assert [flow.epoch_of(n) for n in (0, number - LOST_EPOCHS, number)] == [None, 7, 7]
    assert flow.epoch_of(number - LOST_EPOCHS - 1) is None


def test_a_grant_does_not_overtake_the_loss_that_waits_for_a_release():
    flow, request = revoked_core()
    take(flow, update(8, partition(0, 2), partition(1, 1), partition(2, 1)))
    assert told(flow) == ["granted 2@1"]
    flow.answered(request, results((0, "stale_epoch")), 1.0, 1.0)
    assert told(flow) == ["lost 0@1", "granted 0@2"]


def test_released_and_granted_again_for_want_of_a_successor():
    flow, request = revoked_core()
    view = update(8, partition(0, 2), partition(1, 1))
    flow.answered(request, results((0, "ok"), view=view), 1.0, 1.0)
    assert told(flow) == ["granted 0@2"]


def test_a_lease_that_expires_during_a_release():
    flow, request = revoked_core()
    flow.call_failed("f1", gone("lease_expired"))
    assert told(flow) == ["lost 1@1"]
    flow.unanswered(request)
    assert told(flow) == ["lost 0@1"]
    assert flow.status == "binding"


# ------------------------------------------------------------------ 7. one queue


def test_bound_again_to_another_queue_of_the_same_name_it_leaves_that_alone_and_is_over():
    flow = bound_core(7, partition(0, 1))
    request = flow.commit([CommitItem(0, 1, "5")])
    flow.call_failed("f1", gone("lease_expired"))
    told(flow)
    version = flow.version
    another = bound(3, partition(0, 1), flow_id="f2", queue_id="q2")
    undo = flow.bind_answered(another, sent_at=1.0, now=1.0)
    assert (undo.method, undo.path) == ("DELETE", "/queues/flights/flows/f2")
    assert (flow.status, flow.gone_reason) == ("gone", "queue_recreated")
    assert flow.version > version
    assert told(flow) == []
    assert dict(flow.view.partitions) == {}
    assert flow.queue_id == "q1"
    for use in (flow.check, lambda: flow.commit([CommitItem(0, 1, "5")])):
        with pytest.raises(FlowGone, match="deleted and made again") as raised:
            use()
        assert raised.value.reason == "queue_recreated"
    assert flow.last_error is flow.error
    flow.unanswered(request)
    assert told(flow) == []


# ------------------------------------------------------------------ access to the log


def test_credentials_are_renewed_an_hour_before_they_expire_by_the_service_s_clock():
    flow = bound_core(7)
    assert not flow.log_access_ends_soon(0.0)
    # The service's clock shows EPOCH at the flow's time 0; the credentials last two hours.
    flow.log_access = LogAccess("postgresql://u@h/d", EPOCH + timedelta(hours=2))
    assert not flow.log_access_ends_soon(3599.0)
    assert flow.log_access_ends_soon(3601.0)


@pytest.mark.parametrize("fresh", [False, True])
def test_credentials_stay_in_use_while_the_service_is_away_unless_the_log_refuses_them(fresh):
    flow = bound_core(7)
    flow.log_access = present = LogAccess("postgresql://u@h/d", EPOCH + timedelta(minutes=59))
    asking = programs.log_access(flow, fresh)
    now = 0.0

    def outcome():
        nonlocal now
        effect = next(asking)
        while True:
            now += 1.0
            away = Unreachable("away") if isinstance(effect, programs.Send) else None
            try:
                effect = asking.send(programs.Sent(now, now, 0.5, error=away))
            except StopIteration as end:
                return end.value

    if fresh:
        with pytest.raises(Unreachable):
            outcome()
    else:
        assert outcome() is present


def test_each_bind_has_an_attempt_number():
    flow = core(binder="me")
    flow.open()
    first, second = flow.bind_call(), flow.bind_call()
    assert [call.body.attempt for call in (first, second)] == [1, 2]
    assert {call.body.binder for call in (first, second)} == {"me"}


def test_a_bind_that_was_overtaken_is_tried_again():
    """It was sent twice, for example by a proxy: the client does not know the flow of the first
    bind.
    """
    flow = core(binder="me")
    flow.open()
    flow.call_failed(None, error_of(409, {"code": "overtaken", "detail": "late"}))
    assert flow.status == "binding"
    flow.bind_answered(bound(1), sent_at=0.0, now=0.0)
    assert flow.status == "bound"
