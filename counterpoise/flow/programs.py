"""A flow's methods, written once for threads and for asyncio; their docstrings are the methods'.

A program is a generator. It yields an effect (`Send` a call, `Pause`, ask whether it `MayRenew`)
and gets back the result with the time. It does nothing else itself. The shells carry out the
effects, and hold the flow's lock only while a program runs from one effect to the next.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from msgspec import structs

from counterpoise import calls
from counterpoise.backoff import Backoff
from counterpoise.calls import Call
from counterpoise.errors import (
    CounterpoiseError,
    FlowGone,
    FlowNotFound,
    Forbidden,
    Invalid,
    ServiceUnavailable,
    Unauthorized,
    as_passing,
)
from counterpoise.flow.core import FLOW_GONE, FlowCore, Item, Request
from counterpoise.options import check_seconds, check_time_left
from counterpoise.wire import (
    Child,
    ChildrenItem,
    CommitItem,
    LogAccess,
    ReadyItem,
    ReleaseItem,
    Update,
    check_partition,
)

R = TypeVar("R")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
# The contract's limit for the request.
LONGEST_DRAIN_SECONDS = 86400.0
# The shortest time between polls that a service answers at once, to avoid a tight loop.
SHORTEST_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Send:
    """Send this call; the result is a `Sent`."""

    call: Call[Any]


@dataclass(frozen=True)
class Pause:
    """Wait so long (in the background at most until closed); the result is a `Sent`."""

    seconds: float


@dataclass(frozen=True)
class MayRenew:
    """May the lease be renewed? The result is a `Sent` with a bool as `value`."""


Effect: TypeAlias = Send | Pause | MayRenew


@dataclass(frozen=True)
class Sent:
    """The result of an effect: `value` or `error`; times of `lease_time`; `chance` in 0..1."""

    sent_at: float
    now: float
    chance: float
    value: Any = None
    error: CounterpoiseError | None = None


Program: TypeAlias = Generator[Effect, Sent, R]


def pause_after(failures: int, chance: float, error: CounterpoiseError, longest: float) -> float:
    """The pause in seconds after so many failures in a row (>= 1).

    It doubles each time, up to `longest`. It is drawn from its upper half, so that clients do not
    all come back at once when the service does. The pause that the service asked for is the
    minimum, but at most `longest`.
    """
    grown = Backoff(FIRST_PAUSE_SECONDS, longest).after(failures)
    asked = error.retry_after if isinstance(error, ServiceUnavailable) else None
    spread = 0.5 + 0.5 * chance
    return max(grown * spread, min((asked or 0.0) * (0.5 + spread), longest))


def keep_bound(core: FlowCore) -> Program[None]:
    """The background work: bind, poll, bind again, until the flow is gone."""
    failures = 0
    while core.status in ("binding", "bound"):
        may = yield MayRenew()
        if not may.value:
            yield Pause(min(0.25, core.lease_seconds / 10))
            continue
        core.tries(may.now)
        sent = yield from (_bind(core) if core.bound is None else _poll(core))
        if sent.error is None:
            failures = 0
            continue
        core.tries(sent.now)
        failures += 1
        longest = LONGEST_PAUSE_SECONDS
        if core.bound is not None:
            # Reconnect within the lease, once the service is back.
            longest = min(longest, core.lease_seconds / 5)
        if core.status in ("binding", "bound"):
            yield Pause(pause_after(failures, sent.chance, sent.error, longest))


def _bind(core: FlowCore) -> Program[Sent]:
    sent = yield Send(core.bind_call())
    if sent.error is not None:
        core.call_failed(None, sent.error)
        return sent
    undo = core.bind_answered(sent.value, sent.sent_at, sent.now)
    if undo is not None:
        yield Send(undo)
    return sent


def _poll(core: FlowCore) -> Program[Sent]:
    assert core.bound is not None
    flow_id, revision = core.bound.flow_id, core.view.revision
    sent = yield Send(core.poll_call())
    if sent.error is not None:
        core.call_failed(flow_id, sent.error)
        return sent
    update: Update | None = sent.value
    core.poll_answered(flow_id, update, sent.sent_at, sent.now)
    news = update is not None and update.revision > revision
    if not news and sent.now - sent.sent_at < SHORTEST_POLL_SECONDS:
        yield Pause(SHORTEST_POLL_SECONDS)
    return sent


def commit(
    core: FlowCore,
    positions: Mapping[int, str] | Iterable[CommitItem | tuple[int, int, str]],
    *,
    timeout_seconds: float | None = None,
) -> Program[dict[int, str]]:
    """Commit positions (next to read); returns the outcome for each partition.

    A mapping means the present epochs. Give (partition, epoch, position), with the epoch of the
    work, or a `CommitItem`, if the partition may have been lost and granted again meanwhile.
    Outcomes: `ok`, the only one with an effect; `stale_epoch`, `not_owner`, `no_such_partition`;
    `flow_gone` when the lease expired (the flow is binding again).
    """
    _check(core, timeout_seconds)
    items: list[CommitItem] = []
    outcomes: dict[int, str] = {}
    if isinstance(positions, Mapping):
        for partition, position in positions.items():
            check_partition(partition)
            epoch = core.epoch_of(partition)
            if epoch is None:
                outcomes[partition] = "not_owner"
            else:
                items.append(CommitItem(partition, epoch, position))
    else:
        wanted = "{partition: position} or [(partition, epoch, position)]"
        items.extend(
            one if isinstance(one, CommitItem) else CommitItem(*_fields(one, wanted, 3))
            for one in positions
        )
    request = core.commit(items) if items else None
    return outcomes | (yield from _submit(core, request, items, timeout_seconds))


def release(
    core: FlowCore,
    partition: int,
    position: str | None = None,
    finished: bool = False,
    epoch: int | None = None,
    *,
    timeout_seconds: float | None = None,
) -> Program[str]:
    """Release a partition that is `revoking` or `retiring`, or any while draining.

    Commits `position` with it, atomically. `finished`: a retiring partition is drained to its end.
    Outcomes: as for `commit`, or `not_revoking`, or `not_ended` (the log goes on).
    """
    item: ReleaseItem | tuple[int, str | None, bool] = (partition, position, finished)
    if epoch is not None:
        item = ReleaseItem(partition, epoch, position, finished)
    outcomes = yield from release_many(core, [item], timeout_seconds=timeout_seconds)
    return outcomes[partition]


def release_many(
    core: FlowCore,
    items: Iterable[ReleaseItem | tuple[int, str | None, bool]],
    *,
    timeout_seconds: float | None = None,
) -> Program[dict[int, str]]:
    """Release several partitions in one call: items, or (partition, position, finished)."""
    _check(core, timeout_seconds)
    named: list[ReleaseItem] = []
    outcomes: dict[int, str] = {}
    for one in items:
        if isinstance(one, ReleaseItem):
            named.append(one)
            continue
        partition, position, finished = _fields(one, "(partition, position, finished)", 3)
        check_partition(partition)
        epoch = core.epoch_of(partition)
        if epoch is None:
            outcomes[partition] = "not_owner"
        else:
            named.append(ReleaseItem(partition, epoch, position, finished))
    request = core.release(named) if named else None
    return outcomes | (yield from _submit(core, request, named, timeout_seconds))


def children(
    core: FlowCore,
    partition: int,
    children: Iterable[Child],
    *,
    position: str | None = None,
    finished: bool = False,
    epoch: int | None = None,
    timeout_seconds: float | None = None,
) -> Program[str]:
    """Report what comes after a partition of a dynamic queue (the contract, *Lineage*).

    Do it before you commit past the record that named the children. `position` is committed with
    it, and with `finished` the partition ends: all of it happens or nothing. A child without
    parents follows this partition alone. Outcomes: as for `children_many`.
    """
    core.check()
    check_partition(partition)
    owned = core.view.partitions.get(partition)
    if epoch is None:
        epoch = core.epoch_of(partition)
    if epoch is None:
        return "not_owner"
    own = () if owned is None or owned.key is None else (owned.key,)
    named = tuple(
        child if child.parents else structs.replace(child, parents=own) for child in children
    )
    item = ChildrenItem(partition, epoch, position, finished, named)
    outcomes = yield from children_many(core, [item], timeout_seconds=timeout_seconds)
    return outcomes[partition]


_children = children


def finish(
    core: FlowCore,
    partition: int,
    position: str | None = None,
    children: Iterable[Child] = (),
    *,
    epoch: int | None = None,
    timeout_seconds: float | None = None,
) -> Program[str]:
    """A partition of a dynamic queue, or one that retires, was processed to its end.

    `children` come after it (see `children`). After a lost answer the outcome may be
    `no_such_partition`: the partition was finished and removed.
    """
    found = tuple(children)
    if not found:
        return (
            yield from release(
                core, partition, position, True, epoch, timeout_seconds=timeout_seconds
            )
        )
    return (
        yield from _children(
            core,
            partition,
            found,
            position=position,
            finished=True,
            epoch=epoch,
            timeout_seconds=timeout_seconds,
        )
    )


def children_many(
    core: FlowCore, items: Iterable[ChildrenItem], *, timeout_seconds: float | None = None
) -> Program[dict[int, str]]:
    """`children` for several partitions, in one call.

    Outcomes: as for `commit`, or `unknown_parent` (the owner of another parent lags; try again),
    `not_ended`, `conflicting_child`, `too_many_partitions`.
    """
    _check(core, timeout_seconds)
    named = list(items)
    request = core.children(named) if named else None
    return (yield from _submit(core, request, named, timeout_seconds))


def ready(
    core: FlowCore,
    partition: int,
    epoch: int | None = None,
    *,
    timeout_seconds: float | None = None,
) -> Program[str]:
    """Report that the warm-up of a partition is done; returns the outcome."""
    _check(core, timeout_seconds)
    check_partition(partition)
    if epoch is None:
        warming = core.view.warming.get(partition)
        if warming is None:
            return "not_warming"
        epoch = warming.epoch
    items = [ReadyItem(partition, epoch)]
    outcomes = yield from _submit(core, core.ready(items), items, timeout_seconds)
    return outcomes[partition]


def refresh(core: FlowCore, *, timeout_seconds: float | None = None) -> Program[None]:
    """Fetch the committed positions of `warming` partitions, of which no update tells; renews the
    lease.

    Does nothing while not bound.
    """
    _check(core, timeout_seconds)
    asked = core.refresh_call()
    if asked is None:
        return
    flow_id, call = asked
    answer = yield from _until(core, call, flow_id, timeout_seconds)
    core.poll_answered(flow_id, answer.value, answer.sent_at, answer.now)


def drain(core: FlowCore, timeout_seconds: float | None = None) -> Program[None]:
    """Begin to hand off all partitions. Keep working until `drained`, then close.

    `timeout_seconds`: after that, warm-ups of the successors are cut short. Raises
    `ServiceUnavailable`, and `NotBound` while binding.
    """
    core.check()
    if timeout_seconds is not None:
        check_seconds(0, LONGEST_DRAIN_SECONDS, timeout_seconds=timeout_seconds)
    flow_id, call = core.drain_call(timeout_seconds)
    answer = yield from _until(core, call, flow_id)
    core.poll_answered(flow_id, answer.value, answer.sent_at, answer.now)


def unbind(core: FlowCore) -> Program[None]:
    """Give up all partitions at once; to hand them off in order, drain first.

    The flow is closed from then on, also if this is interrupted or raises `ServiceUnavailable`.
    Then `unbind` and `close` try again; else the lease has to expire.
    """
    if not (yield from leave(core, core.settings.timeout_seconds)):
        raise core.last_error or ServiceUnavailable("the service did not answer")


def leave(core: FlowCore, timeout_seconds: float, reason: str | None = None) -> Program[bool]:
    """Unbind. False if the service was not reached in time; then the lease has to expire, or the
    program leaves again, as after an interruption.

    `reason`: what the service is to record instead of `unbound`.
    """
    bound = core.leave()
    if bound is None:
        return True
    who = (core.settings.queue, bound.flow_id, bound.flow_token)
    try:
        try:
            yield from _until(core, calls.unbind(*who, reason), None, timeout_seconds)
        except Invalid:
            # The service is of a release that takes no reason.
            yield from _until(core, calls.unbind(*who), None, timeout_seconds)
    except ServiceUnavailable:
        return False
    except CounterpoiseError:
        pass  # it is gone already, perhaps with its queue
    core.left()
    return True


def log_access(core: FlowCore, fresh: bool = False) -> Program[LogAccess | None]:
    """Credentials for reading the log, renewed before they expire; None if there are none.

    `fresh`: new ones, because the log has refused the present ones. Otherwise the present ones stay
    in use while the service is away.
    """
    core.check()
    now = (yield Pause(0)).now
    if not fresh and not core.log_access_ends_soon(now):
        return core.log_access
    queue = core.settings.queue
    token = None if core.bound is None else core.bound.flow_token
    call = calls.log_access(queue, "read", refused=fresh, flow_token=token)
    try:
        answer = yield from _until(core, call, None)
    except (Unauthorized, Forbidden, Invalid):
        # The flow has left, or the service is of a release that takes neither.
        call = calls.log_access(queue, "read")
        answer = yield from _until(core, call, None)
    except ServiceUnavailable:
        if fresh or core.log_access is None:
            raise
        return core.log_access
    core.log_access = answer.value.access
    return core.log_access


def _check(core: FlowCore, timeout_seconds: float | None) -> None:
    """Raise if the flow cannot be used, or with this time limit."""
    check_time_left(timeout_seconds=timeout_seconds)
    core.check()


def _fields(item: object, wanted: str, *counts: int) -> Sequence[Any]:
    """The fields of an item of a program; TypeError if there are not so many."""
    if isinstance(item, str) or not isinstance(item, Sequence) or len(item) not in counts:
        raise TypeError(f"give {wanted}; an item is {item!r}")
    return item


def _submit(
    core: FlowCore,
    request: Request | None,
    items: Sequence[Item],
    timeout_seconds: float | None = None,
) -> Program[dict[int, str]]:
    """Send a request until it is answered, as long as `_until`.

    Returns the outcome for each partition: `flow_gone` for all if the flow is over and binding
    again. Raises `ServiceUnavailable` when time is up: then it is unknown whether the call took
    effect, and it may be repeated.
    """
    gone = {item.partition: FLOW_GONE for item in items}
    if request is None:
        return gone
    try:
        answer = yield from _until(core, request.call, request.flow_id, timeout_seconds)
    except CounterpoiseError as error:
        core.unanswered(request)
        if core.error is None and isinstance(error, FlowGone | FlowNotFound):
            return gone
        raise
    except GeneratorExit:  # the caller was interrupted
        core.unanswered(request)
        raise
    results = core.answered(request, answer.value, answer.sent_at, answer.now)
    return {result.partition: result.outcome for result in results}


def _until(
    core: FlowCore, call: Call[Any], flow_id: str | None, timeout_seconds: float | None = None
) -> Program[Sent]:
    """Send until answered. Permanent errors are raised at once, transient ones after
    `timeout_seconds` (None: those of the flow); of a flow that was bound, the answers of a proxy in
    the service's place are among these.
    """
    failures = 0
    left = core.settings.timeout_seconds if timeout_seconds is None else timeout_seconds
    # A single attempt that hangs leaves time for another.
    share = max(1.0, core.lease_seconds / 3)
    while True:
        sent = yield Send(structs.replace(call, timeout_seconds=max(0.05, min(share, left))))
        if sent.error is None:
            return sent
        failures += 1
        error = as_passing(sent.error) if core.was_bound else sent.error
        if flow_id is not None:
            core.call_failed(flow_id, error)
        pause = pause_after(failures, sent.chance, error, core.lease_seconds / 5)
        left -= sent.now - sent.sent_at + pause
        if not isinstance(error, ServiceUnavailable) or left <= 0:
            raise error
        yield Pause(pause)
