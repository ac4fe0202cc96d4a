"""The rules of a flow, without clock, network or threads. Start reading here.

A flow is one consumer's binding to a queue. It follows these rules (the contract, *Flow*):

1. **The latest update is the view.** Updates are level-triggered. An update of a lower or equal
   revision was overtaken on its way and is ignored. A program's notices (granted, lost, revoking,
   ...) are the difference between two views (`view.py`). So each is given once for each (partition,
   epoch), even if updates are lost, repeated or reordered.
2. **The flow's own calls renew the lease.** A poll renews when it arrives, and it asks for an
   answer within a third of the lease. So a lost poll is detected and repeated before the lease is
   over, without heartbeats. A frozen process stops renewing.
3. **A lost connection changes nothing.** Without an answer the flow keeps its partitions and tries
   again with growing pauses. If it has lost a partition meanwhile, the epoch fences it: its commits
   are refused.
4. **Gone is final, except for an expired lease.** After `lease_expired`, `restored` (the service
   was restored from a backup), or if the service does not know the flow, all partitions are lost
   and the flow binds again with the same instance_id. After `replaced`, another process has taken
   its place: two processes that bind again would take the partitions from each other for ever.
   After `unbound`, an administrator has removed it. In these two cases, or when its queue was
   deleted, the flow stops, and its methods raise. A draining flow whose lease expired has nothing
   left to hand off and stops too. While the flow binds again, only a refusal by the service itself
   is final, not the answer of a proxy in its place.
5. **Every call has a higher `seq`** than earlier calls, and a retry keeps its `seq`: so a delayed
   retry cannot move a position back.
6. **A release is the program's own act**, so it is not reported back as lost (`notices.py`).
7. **A flow stays with one queue.** When the flow binds again, the name may belong to a new queue,
   whose epochs begin anew. The program would mistake the new partitions and positions for its old
   ones. So the new queue's view is not shown: the new binding is unbound and the flow is over
   (`queue_recreated`).

8. **A flow that has not tried for a lease is in doubt.** If it has sent nothing for longer than its
   lease (the machine slept, the process was stopped, `renew_while` said no), others may own its
   partitions, and it was not told. So it is `in_doubt`, from the first look at the clock on, until
   a call that was sent after that has renewed the lease. A lost connection is different: then the
   flow tries, and fails (rule 3).

Bind always carries an `instance_id`. So a bind that is repeated after a lost answer replaces the
flow of the first bind. It also carries the number of the attempt, so that a delayed bind does not
replace the flow of a later one.

Times are seconds of `counterpoise.lease_time` and are arguments. Nothing here is thread-safe; the
shells hold a lock.

Two small parts stand before the core. `Acknowledged`: an update may be made before a commit and
delivered after it, so for each grant a view shows the position that was acknowledged last, in the
order in which the commits were sent. `Notices`: the order of a program's notices, and those that
first wait for the answer to a release.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from counterpoise import calls
from counterpoise.calls import Call
from counterpoise.errors import (
    CounterpoiseError,
    FlowGone,
    FlowNotFound,
    Forbidden,
    Invalid,
    NotBound,
    QueueNotFound,
    ServiceUnavailable,
    StateKept,
    Unauthorized,
)
from counterpoise.flow.view import (
    NOTHING,
    GrantId,
    Lost,
    Notice,
    Owned,
    View,
    WarmingEnded,
    WarmingStarted,
    changes,
    view_of,
    with_owners_of,
)
from counterpoise.wire import (
    Bound,
    ChildrenItem,
    CommitItem,
    LogAccess,
    ReadyItem,
    ReleaseItem,
    Result,
    Results,
    Update,
)

Item: TypeAlias = CommitItem | ReleaseItem | ChildrenItem | ReadyItem
# The outcome of every item of a call whose flow was over before the service could accept it.
FLOW_GONE = "flow_gone"
LOG_ACCESS_LEFT_SECONDS = 3600.0
# Of so many partitions that were lost last a program may still name the number alone.
LOST_EPOCHS = 1000
ItemT = TypeVar("ItemT", CommitItem, ReleaseItem, ChildrenItem, ReadyItem)
Build: TypeAlias = Callable[[str, str, str, Sequence[ItemT], int], Call[Results]]
_ENDS_A_FLOW = (FlowGone, FlowNotFound, QueueNotFound, Unauthorized, Forbidden)
# Errors that end a flow while it binds again.
_ENDS_A_REBIND = (*_ENDS_A_FLOW, Invalid, StateKept)


class Acknowledged:
    """By grant: the number of the latest call and the position that it carried."""

    def __init__(self) -> None:
        self._latest: dict[GrantId, tuple[int, str]] = {}

    def take(
        self, partitions: Mapping[int, Owned], accepted: Sequence[object], seq: int
    ) -> Mapping[int, Owned]:
        """The partitions after these items of call `seq` took effect; the later call wins.

        Of the items, those that commit a position and keep the partition count.
        """
        changed = dict(partitions)
        for item in accepted:
            if not isinstance(item, CommitItem | ChildrenItem) or item.position is None:
                continue
            owned = changed.get(item.partition)
            grant = (item.partition, item.epoch)
            seen, _ = self._latest.get(grant, (0, ""))
            if owned is not None and owned.epoch == item.epoch and seen < seq:
                self._latest[grant] = (seq, item.position)
                changed[item.partition] = replace(owned, position=item.position)
        return MappingProxyType(changed)

    def positions(self) -> Mapping[GrantId, str]:
        """The positions that were acknowledged last."""
        return {grant: position for grant, (_, position) in self._latest.items()}

    def keep(self, held: Collection[GrantId]) -> None:
        """Forget all grants except these."""
        for grant in [grant for grant in self._latest if grant not in held]:
            del self._latest[grant]


@dataclass
class Request:
    """A commit, release or ready on its way; repetitions of the call are identical.

    `withheld` are the notices that wait for its answer.
    """

    flow_id: str
    call: Call[Results]
    items: Sequence[Item]
    seq: int
    withheld: list[Notice] = field(default_factory=list)


class Notices:
    """The notices of one flow."""

    def __init__(self) -> None:
        self._due: list[Notice] = []
        # Releases without an answer, and those among them that a partition's notices wait for.
        self._releasing: dict[GrantId, Request] = {}
        self._withholding: dict[int, Request] = {}
        # Released grants that are still in the view.
        self._released: set[GrantId] = set()

    def take(self) -> list[Notice]:
        """The notices that are due; each is returned once."""
        due, self._due = self._due, []
        return due

    def add(self, notices: Iterable[Notice]) -> None:
        """Add these notices. Those that depend on an unanswered release are withheld."""
        for notice in notices:
            self._add(notice)

    def releasing(self, request: Request) -> None:
        """A release is sent. Until `settle`, its partitions are not reported as lost."""
        for item in request.items:
            self._releasing.setdefault((item.partition, item.epoch), request)

    def released(self, items: Iterable[Item]) -> None:
        """The service has accepted these: of releases and finished partitions, that they leave."""
        self._released.update(
            (item.partition, item.epoch)
            for item in items
            if isinstance(item, ReleaseItem) or (isinstance(item, ChildrenItem) and item.finished)
        )

    def settle(self, request: Request) -> None:
        """This request is settled: give the notices that waited for it."""
        for item in request.items:
            grant = (item.partition, item.epoch)
            if self._releasing.get(grant) is request:
                del self._releasing[grant]
            if self._withholding.get(item.partition) is request:
                del self._withholding[item.partition]
        withheld = list(request.withheld)
        request.withheld.clear()
        self.add(withheld)

    def still_held(self, grants: set[GrantId]) -> None:
        """`grants` is what the view holds now. Forget releases that have left the view."""
        self._released &= grants

    def forget_released(self) -> None:
        """The flow that made the releases is over."""
        self._released.clear()

    def _add(self, notice: Notice) -> None:
        about = (
            notice.warming if isinstance(notice, WarmingStarted | WarmingEnded) else notice.owned
        )
        holder = self._withholding.get(about.partition)
        if holder is not None:
            holder.withheld.append(notice)
            return
        if isinstance(notice, Lost):
            grant = (about.partition, about.epoch)
            if grant in self._released:
                self._released.discard(grant)
                return
            if grant in self._releasing:
                self._withholding[about.partition] = self._releasing[grant]
                self._releasing[grant].withheld.append(notice)
                return
        self._due.append(notice)


@dataclass(frozen=True)
class FlowSettings:
    """The settings of a bind. `lease_seconds`: 1..3600. `at_once`: no holddown if no other flow is
    bound. `keeps_state`: it has state that no handoff takes along. `rebind`: the exception in rule
    4. `weight`, `max_partitions`: its share of the partitions. `binder`: a random name of this flow
    object, by which the service recognizes its binds. `timeout_seconds`: how long a method tries.
    """

    queue: str
    client_name: str
    instance_id: str
    lease_seconds: float = 10.0
    warmup: bool = False
    at_once: bool = False
    keeps_state: bool = False
    weight: int = 1
    max_partitions: int | None = None
    rebind: bool = True
    binder: str | None = None
    timeout_seconds: float = 10.0


class FlowCore:
    """The state of one flow. `status` goes new → binding ⇄ bound → gone."""

    def __init__(self, settings: FlowSettings) -> None:
        self.settings = settings
        self.status = "new"
        self.bound: Bound | None = None
        self.update: Update | None = None
        self.view: View = NOTHING
        # Raised at every change that a program can see; `wait` waits for it.
        self.version = 0
        self.notices = Notices()
        # Why the flow is gone, and the exception to raise on use.
        self.gone_reason: str | None = None
        self.error: CounterpoiseError | None = None
        # The last error, None once the service answers again.
        self.last_error: CounterpoiseError | None = None
        self.lease_expires_at: float | None = None
        # Rule 8: when it last tried to renew, and since when the view must be confirmed.
        self._tried_at = float("-inf")
        self._doubts_since: float | None = None
        # The queue it stays with, once a service has named its id (rule 7).
        self.queue_id: str | None = None
        # From the latest bind.
        self.log: str | None = None
        self.log_access: LogAccess | None = None
        # The service's clock (Unix seconds) minus the own clock, from the latest update.
        self.clock_offset: float | None = None
        self.was_bound = False
        # The binding that the program has given up, until the service knows.
        self._leaving: Bound | None = None
        self._binds = 0
        self._seq = 0
        self._acknowledged = Acknowledged()
        self._last_epochs: dict[int, int] = {}

    # -------------------------------------------------------------- binding and polling

    def open(self) -> None:
        """Begin to bind."""
        if self.status != "new":
            raise NotBound("a flow can be opened only once")
        self.status = "binding"
        self.version += 1

    def bind_call(self) -> Call[Bound]:
        """The bind to send while `binding`: a new attempt at each call."""
        settings = self.settings
        self._binds += 1
        return calls.bind(
            settings.queue,
            settings.client_name,
            settings.instance_id,
            settings.lease_seconds,
            settings.warmup,
            settings.binder,
            self._binds,
            settings.at_once,
            settings.keeps_state,
            settings.weight,
            settings.max_partitions,
        )

    def bind_answered(self, bound: Bound, sent_at: float, now: float) -> Call[None] | None:
        """The bind succeeded. Returns the unbind to send if the flow is over: it was closed
        meanwhile, or the queue is another one (rule 7).
        """
        if self.status == "binding" and self._was_bound_elsewhere(bound):
            self._end(_queue_recreated(self.settings.queue))
        if self.status != "binding":
            return calls.unbind(self.settings.queue, bound.flow_id, bound.flow_token)
        self.status = "bound"
        self.was_bound = True
        self.bound = bound
        self.queue_id = self.queue_id or bound.queue_id
        self.log, self.log_access = bound.log, bound.log_access
        self.last_error = None
        self._doubts_since = None
        self._renewed(sent_at)
        self._show(bound.update, now)
        self.version += 1
        return None

    @property
    def lease_seconds(self) -> float:
        """The granted lease, or the lease to ask for."""
        return self.bound.lease_seconds if self.bound else self.settings.lease_seconds

    def tries(self, now: float) -> None:
        """A call that renews the lease is being sent, or has failed just now."""
        if self._has_paused(now):
            self._doubts_since = now
        self._tried_at = now

    def in_doubt(self, now: float) -> bool:
        """Whether others may own the partitions of the view (rule 8)."""
        return self.bound is not None and (self._doubts_since is not None or self._has_paused(now))

    def _has_paused(self, now: float) -> bool:
        return now - self._tried_at > self.lease_seconds

    def poll_call(self) -> Call[Update | None]:
        """The poll to send while `bound` (rule 2)."""
        assert self.bound is not None
        lease = self.bound.lease_seconds
        return calls.poll(
            self.settings.queue,
            self.bound.flow_id,
            self.bound.flow_token,
            after=self.view.revision,
            wait_seconds=min(60.0, lease / 3),
            # Late enough for a slow answer, early enough to repeat the poll within the lease.
            grace_seconds=min(10.0, max(0.5, lease / 4)),
        )

    def refresh_call(self) -> tuple[str, Call[Update | None]] | None:
        """The call for the current view, and its flow; None while not bound.

        Commits raise no revision, so no update tells the committed positions of warming partitions.
        """
        self.check()
        if self.bound is None:
            return None
        flow_id, token = self.bound.flow_id, self.bound.flow_token
        return flow_id, calls.poll(self.settings.queue, flow_id, token, after=0, wait_seconds=0)

    def poll_answered(
        self, flow_id: str, update: Update | None, sent_at: float, now: float
    ) -> None:
        """An answer to a poll or a drain: the lease starts anew, and there may be a new view."""
        if self.bound is None or self.bound.flow_id != flow_id:
            return
        self.last_error = None
        self._renewed(sent_at)
        if update is not None:
            self._take(update, now)

    def call_failed(self, flow_id: str | None, error: CounterpoiseError) -> None:
        """The answer to a call of this flow, or to a bind (`flow_id` None), was `error`."""
        current = self.bound.flow_id if self.bound is not None else None
        if self.status not in ("binding", "bound") or flow_id != current:
            return
        self.last_error = error
        if isinstance(error, ServiceUnavailable):
            return
        final = _ENDS_A_REBIND if current is None else _ENDS_A_FLOW
        if self.was_bound and not isinstance(error, final):
            return  # a single call was refused, or a proxy answered in place of the service
        if self._may_bind_again(error):
            # Of a bind: the new flow had left before the answer.
            if current is not None:
                self._forget_flow("binding")
            return
        self._end(error)

    def leave(self) -> Bound | None:
        """The program has closed the flow. Returns the binding to end, if there is one; also when
        it is asked again, until `left`.
        """
        if self.status == "gone":
            return self._leaving
        bound = self._leaving = self.bound
        self.gone_reason = "unbound"
        self.error = NotBound("the flow has been closed")
        self._forget_flow("gone", tell=False)
        return bound

    def left(self) -> None:
        """The service knows that the binding is given up."""
        self._leaving = None

    def _was_bound_elsewhere(self, bound: Bound) -> bool:
        """Whether the name belongs to another queue than before."""
        return self.queue_id not in (None, bound.queue_id)

    def _end(self, error: CounterpoiseError) -> None:
        """Gone for good, because of this error."""
        self.error = self.last_error = error
        self.gone_reason = error.reason if isinstance(error, FlowGone) else error.code
        self._forget_flow("gone")

    def _may_bind_again(self, error: CounterpoiseError) -> bool:
        expired = isinstance(error, FlowGone) and error.reason in ("lease_expired", "restored")
        unknown = isinstance(error, FlowNotFound)
        return self.settings.rebind and (expired or unknown) and not self.view.draining

    def _forget_flow(self, status: str, tell: bool = True) -> None:
        """The flow owns nothing any more."""
        lost = list(changes(self.view, NOTHING)) if tell else []
        self.notices.add(lost)
        self.notices.forget_released()
        self.status = status
        self.bound = None
        self.update = None
        self.view = NOTHING
        self.lease_expires_at = None
        self._acknowledged.keep(())
        self.version += 1

    def log_access_ends_soon(self, now: float) -> bool:
        """Whether the log's credentials expire within an hour, as far as known.

        The service's credentials are valid for an hour and a half at first. Spark tasks get the
        present credentials and cannot fetch others.
        """
        access = self.log_access
        if access is None or access.expires_at is None or self.clock_offset is None:
            return False
        return access.expires_at.timestamp() - self.clock_offset < now + LOG_ACCESS_LEFT_SECONDS

    # -------------------------------------------------------------- calls of the program

    def check(self) -> None:
        """Raise if the flow cannot be used: it was not opened, or it is gone."""
        if self.status == "new":
            raise NotBound("the flow has not been opened: use it in a with block or call open()")
        if self.error is not None:
            raise self.error

    def epoch_of(self, partition: int) -> int | None:
        """The epoch under which the flow owns the partition, or owned it last."""
        owned = self.view.partitions.get(partition)
        return owned.epoch if owned is not None else self._last_epochs.get(partition)

    def commit(self, items: Sequence[CommitItem]) -> Request | None:
        """A commit to send, or None while the flow is not bound."""
        return self._request(calls.commit, items)

    def release(self, items: Sequence[ReleaseItem]) -> Request | None:
        """A release to send, or None while the flow is not bound. Until it is answered, rule 6."""
        request = self._request(calls.release, items)
        if request is not None:
            self.notices.releasing(request)
        return request

    def children(self, items: Sequence[ChildrenItem]) -> Request | None:
        """A report to send, or None while the flow is not bound. Finishing is releasing: rule 6."""
        request = self._request(calls.children, items)
        if request is not None:
            self.notices.releasing(request)
        return request

    def ready(self, items: Sequence[ReadyItem]) -> Request | None:
        """A ready to send, or None while the flow is not bound."""

        def build(
            queue: str, flow_id: str, token: str, items: Sequence[ReadyItem], _seq: int
        ) -> Call[Results]:
            return calls.ready(queue, flow_id, token, items)

        return self._request(build, items)

    def drain_call(self, timeout_seconds: float | None) -> tuple[str, Call[Update]]:
        """The drain to send and its flow. Raises `NotBound` while binding."""
        if self.bound is None:
            raise NotBound("the flow is not bound yet")
        flow_id, token = self.bound.flow_id, self.bound.flow_token
        return flow_id, calls.drain(self.settings.queue, flow_id, token, timeout_seconds)

    def answered(
        self, request: Request, results: Results, sent_at: float, now: float
    ) -> tuple[Result, ...]:
        """The answer to a request: record the accepted items, then take over the view in the
        answer.
        """
        answers = zip(request.items, results.results, strict=True)
        accepted = [item for item, result in answers if result.outcome == "ok"]
        self.notices.released(accepted)
        partitions = self._acknowledged.take(self.view.partitions, accepted, request.seq)
        self.view = replace(self.view, partitions=partitions)
        self.notices.settle(request)
        if self.bound is not None and self.bound.flow_id == request.flow_id:
            self.last_error = None
            self._renewed(sent_at)
            if results.update is not None:
                self._take(results.update, now)
        return results.results

    def unanswered(self, request: Request) -> None:
        """The request was given up: no answer is expected any more."""
        self.notices.settle(request)

    def _request(self, build: Build[ItemT], items: Sequence[ItemT]) -> Request | None:
        self.check()
        if self.bound is None:
            return None
        self._seq += 1
        flow_id, token = self.bound.flow_id, self.bound.flow_token
        call = build(self.settings.queue, flow_id, token, items, self._seq)
        return Request(flow_id, call, items, self._seq)

    # -------------------------------------------------------------- the view

    def _take(self, update: Update, now: float) -> None:
        assert self.bound is not None
        if update.flow_id != self.bound.flow_id:
            return
        if update.revision > self.view.revision:
            self._show(update, now)
        elif update.revision == self.view.revision:
            view = with_owners_of(self.view, update)
            self.version += view is not self.view
            self.view = view

    def _show(self, update: Update, now: float) -> None:
        old, self.view = self.view, view_of(update, now, self._acknowledged.positions())
        self.update = update
        self.clock_offset = update.now.timestamp() - now
        self.notices.add(changes(old, self.view))
        held = {(owned.partition, owned.epoch) for owned in self.view.partitions.values()}
        self.notices.still_held(held)
        self._acknowledged.keep(held)
        lost = [one for one in self._last_epochs.items() if one[0] not in self.view.partitions]
        self._last_epochs = dict(lost[-LOST_EPOCHS:]) | dict(held)
        self.version += 1

    def _renewed(self, sent_at: float) -> None:
        self._tried_at = max(self._tried_at, sent_at)
        if self._doubts_since is not None and sent_at >= self._doubts_since:
            self._doubts_since = None
            self.version += 1
        expires_at = sent_at + self.lease_seconds
        if self.lease_expires_at is None or expires_at > self.lease_expires_at:
            self.lease_expires_at = expires_at


def _queue_recreated(queue: str) -> FlowGone:
    return FlowGone(
        f"queue {queue!r} was deleted and made again since this flow was bound; "
        "open a new flow to consume the new queue",
        problem={"code": FlowGone.code, "reason": "queue_recreated"},
    )
