"""Short ways to write answers of the service, for tests of the flow without one."""

from datetime import UTC, datetime, timedelta

from counterpoise.errors import FlowGone
from counterpoise.flow.core import FlowCore, FlowSettings
from counterpoise.wire import Bound, Result, Results, Update, UpdatePartition

EPOCH = datetime(2026, 11, 20, 10, 0, 0, tzinfo=UTC)


def partition(number, epoch, state="owned", position=None, deadline=None, handed_over="initial"):
    """`deadline` in seconds after EPOCH."""
    return UpdatePartition(
        number,
        epoch,
        state,
        position,
        handed_over,
        None if deadline is None else EPOCH + timedelta(seconds=deadline),
    )


def update(revision, *partitions, flow_id="f1", draining=False, now=0.0):
    """`now` in seconds after EPOCH."""
    owned = any(one.state != "warming" for one in partitions)
    time = EPOCH + timedelta(seconds=now)
    return Update("flights", flow_id, revision, owned, draining, time, tuple(partitions))


def bound(revision, *partitions, flow_id="f1", lease_seconds=9.0, now=0.0, queue_id="q1"):
    view = update(revision, *partitions, flow_id=flow_id, now=now)
    log = "builtin:flights"
    return Bound(flow_id, queue_id, "secret", lease_seconds, log, view, None)


def results(*outcomes, view=None):
    """`outcomes` as (partition, outcome)."""
    return Results(tuple(Result(number, outcome) for number, outcome in outcomes), view)


def gone(reason):
    return FlowGone("The flow has left.", 410, {"code": "flow_gone", "reason": reason})


def core(**settings):
    settings = {"queue": "flights", "client_name": "c", "instance_id": "i1"} | settings
    return FlowCore(FlowSettings(**settings))


def bound_core(revision, *partitions, **settings):
    """A core that bound at its time 0, with its first notices taken."""
    flow = core(**settings)
    flow.open()
    flow.bind_answered(bound(revision, *partitions), sent_at=0.0, now=0.0)
    flow.notices.take()
    return flow


def told(flow):
    """The notices since the last call, as text: `granted 3@2`, ..."""
    said = []
    for notice in flow.notices.take():
        about = getattr(notice, "owned", None) or notice.warming
        said.append(f"{type(notice).__name__.lower()} {about.partition}@{about.epoch}")
    return said
