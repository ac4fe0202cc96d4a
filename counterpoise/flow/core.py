"""The rules of a flow, with neither clock nor network nor thread. Start reading here.

A flow is one consumer's binding to a queue. This is what it holds to (the contract, *Flow*):

1. **The view is what the latest update says.** Updates are level-triggered; one of a lower or
   equal revision was overtaken on its way and is ignored. What a program is told (granted, lost,
   revoking, ...) is the difference between two views (`view.py`), so each is told once for each
   (partition, epoch), whatever is lost, repeated or reordered in between.
2. **The lease is renewed by what the flow does.** A poll renews when it arrives, and it asks to be
   answered within a third of the lease; so a poll that is lost can be noticed and repeated before
   the lease is over, and no heartbeat is needed. A process that freezes stops renewing.
3. **Being cut off changes nothing.** Without an answer the flow goes on with what it owns and
   tries again with growing pauses. Should it have lost a partition meanwhile, the epoch fences it:
   its commits are refused and change nothing.
4. **Gone is final, except for an expired lease.** Told `lease_expired` (or that the service does
   not know the flow at all, or `restored`: it was restored from a backup), the flow has lost
   everything and binds again with the same instance_id. Told `replaced`, another process has taken
   its place: binding again would take the partitions back from it, and back and forth for ever.
   Told `unbound`, an administrator wants it away. In these two cases, or when its queue was
   deleted, it stops and says so on use. A draining flow whose lease expired has nothing left to
   hand off and stops as well. While it binds again, only the service's own refusal is final, not
   what answers in its place.
5. **Every call has a higher `seq`** than those before it, retries keep theirs: a delayed retry
   cannot move a position back.
6. **A release is the program's own act** and not told back as lost (`notices.py`).
7. **Bound once, bound to one queue.** The name may be that of another queue by the time it binds
   again: that one's epochs begin anew, and so the program would take its partitions for those it
   had, and their positions too. Nothing of it is shown; the new flow is unbound, the old one over
   (`queue_recreated`).

Bind always carries an `instance_id`, so a bind that is repeated because its answer was lost
replaces the flow that nobody knows of. And it carries the number of the attempt, so that one that
was long on its way does not replace the flow of a later one.

Times are seconds by a monotonic clock and are arguments. Nothing here is thread-safe; the shells
hold a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    Unauthorized,
)
from counterpoise.flow.acknowledged import Acknowledged
from counterpoise.flow.notices import Notices, Request
from counterpoise.flow.view import NOTHING, View, changes, view_of, with_owners_of
from counterpoise.wire import (
    Bound,
    CommitItem,
    LogAccess,
    ReadyItem,
    ReleaseItem,
    Result,
    Results,
    Update,
)

# The outcome of every item of a call whose flow was over before the service could take it.
FLOW_GONE = "flow_gone"
LOG_ACCESS_LEFT_SECONDS = 3600.0

ItemT = TypeVar("ItemT", CommitItem, ReleaseItem, ReadyItem)
Build: TypeAlias = Callable[[str, str, str, Sequence[ItemT], int], Call[Results]]

_ENDS_A_FLOW = (FlowGone, FlowNotFound, QueueNotFound, Unauthorized, Forbidden)
# What ends it while it binds again.
_ENDS_A_REBIND = (*_ENDS_A_FLOW, Invalid)


@dataclass(frozen=True)
class FlowSettings:
    """What a flow binds with. `lease_seconds`: 1..3600. `rebind`: rule 4's exception. `binder`: a
    random name of this flow object, by which the service tells its binds from others'.
    """

    queue: str
    client_name: str
    instance_id: str
    lease_seconds: float = 10.0
    warmup: bool = False
    rebind: bool = True
    binder: str | None = None


class FlowCore:
    """The state of one flow. `status` goes new → binding ⇄ bound → gone."""

    def __init__(self, settings: FlowSettings) -> None:
        self.settings = settings
        self.status = "new"
        self.bound: Bound | None = None
        self.update: Update | None = None
        self.view: View = NOTHING
        # Raised at every change that a program can see; what `wait` waits for.
        self.version = 0
        self.notices = Notices()
        # Why the flow is gone, and the exception to raise on use.
        self.gone_reason: str | None = None
        self.error: CounterpoiseError | None = None
        # The last thing that went wrong, None once the service answers again.
        self.last_error: CounterpoiseError | None = None
        self.lease_expires_at: float | None = None
        # The queue it is bound to for good, once a service has named it (rule 7).
        self.queue_id: str | None = None
        # As told at the latest bind.
        self.log: str | None = None
        self.start: str | None = None
        self.log_access: LogAccess | None = None
        # The service's clock (Unix seconds) minus ours, from the latest update.
        self.clock_offset: float | None = None
        self._was_bound = False
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
        """The bind to send while `binding`: a new one each time, none is sent again."""
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
        )

    def bind_answered(self, bound: Bound, sent_at: float, now: float) -> Call[None] | None:
        """Bound. Returns the unbind to send if the flow is over: it was closed while the bind was
        under way, or the queue is another one (rule 7).
        """
        if self.status == "binding" and self._was_bound_elsewhere(bound):
            self._end(_queue_recreated(self.settings.queue))
        if self.status != "binding":
            return calls.unbind(self.settings.queue, bound.flow_id, bound.flow_token)
        self.status = "bound"
        self._was_bound = True
        self.bound = bound
        self.queue_id = self.queue_id or bound.queue_id
        self.log, self.start, self.log_access = bound.log, bound.start, bound.log_access
        self.last_error = None
        self._renewed(sent_at)
        self._show(bound.update, now)
        self.version += 1
        return None

    @property
    def lease_seconds(self) -> float:
        """The lease that was granted, or the one to ask for."""
        return self.bound.lease_seconds if self.bound else self.settings.lease_seconds

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
            # Noticed late enough for a slow answer, early enough to repeat it within the lease.
            grace_seconds=min(10.0, max(0.5, lease / 4)),
        )

    def refresh_call(self) -> tuple[str, Call[Update | None]] | None:
        """The call for the view as it is now, and the flow it is for; None while not bound.

        Commits raise no revision, so no update tells how far the owners of what we warm up are.
        """
        self.check()
        if self.bound is None:
            return None
        flow_id, token = self.bound.flow_id, self.bound.flow_token
        return flow_id, calls.poll(self.settings.queue, flow_id, token, after=0, wait_seconds=0)

    def poll_answered(
        self, flow_id: str, update: Update | None, sent_at: float, now: float
    ) -> None:
        """An answer to a poll or a drain: the lease runs anew, and maybe there is a new view."""
        if self.bound is None or self.bound.flow_id != flow_id:
            return
        self.last_error = None
        self._renewed(sent_at)
        if update is not None:
            self._take(update, now)

    def call_failed(self, flow_id: str | None, error: CounterpoiseError) -> None:
        """A call of this flow, or a bind (`flow_id` None), got `error` for an answer."""
        current = self.bound.flow_id if self.bound is not None else None
        if self.status not in ("binding", "bound") or flow_id != current:
            return
        self.last_error = error
        if isinstance(error, ServiceUnavailable):
            return
        final = _ENDS_A_REBIND if current is None else _ENDS_A_FLOW
        if self._was_bound and not isinstance(error, final):
            return  # one call was refused; or something in between answers in the service's place
        if current is not None and self._may_bind_again(error):
            self._forget_flow("binding")
            return
        self._end(error)

    def leave(self) -> Call[None] | None:
        """The program is done with the flow. Returns the unbind to send, if it was bound."""
        if self.status == "gone":
            return None
        bound = self.bound
        self.gone_reason = "unbound"
        self.error = NotBound("the flow has been closed")
        self._forget_flow("gone", tell=False)
        if bound is None:
            return None
        return calls.unbind(self.settings.queue, bound.flow_id, bound.flow_token)

    def _was_bound_elsewhere(self, bound: Bound) -> bool:
        """Whether the queue of this name is another than before; an older service cannot tell."""
        return None not in (self.queue_id, bound.queue_id) and self.queue_id != bound.queue_id

    def _end(self, error: CounterpoiseError) -> None:
        """Gone for good, because of this."""
        self.error = self.last_error = error
        self.gone_reason = error.reason if isinstance(error, FlowGone) else error.code
        self._forget_flow("gone")

    def _may_bind_again(self, error: CounterpoiseError) -> bool:
        expired = isinstance(error, FlowGone) and error.reason in ("lease_expired", "restored")
        unknown = isinstance(error, FlowNotFound)
        return self.settings.rebind and (expired or unknown) and not self.view.draining

    def _forget_flow(self, status: str, tell: bool = True) -> None:
        """Nothing is owned any more, by the flow as it was."""
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
        """Whether the log's credentials expire within an hour, as far as that is known.

        The service's are good for an hour and a half when handed out. Tasks of Spark are given what
        is at hand, and cannot fetch others.
        """
        access = self.log_access
        if access is None or access.expires_at is None or self.clock_offset is None:
            return False
        return access.expires_at.timestamp() - self.clock_offset < now + LOG_ACCESS_LEFT_SECONDS

    # -------------------------------------------------------------- what the program asks for

    def check(self) -> None:
        """Raise what stands against using the flow: not opened, gone."""
        if self.status == "new":
            raise NotBound("the flow has not been opened: use it in a with block or call open()")
        if self.error is not None:
            raise self.error

    def epoch_of(self, partition: int) -> int | None:
        """The epoch under which the flow owns the partition, or owned it last."""
        owned = self.view.partitions.get(partition)
        return owned.epoch if owned is not None else self._last_epochs.get(partition)

    def commit(self, items: Sequence[CommitItem]) -> Request | None:
        """A commit to send, or None when there is no flow to commit to (yet, or just now)."""
        return self._request(calls.commit, items)

    def release(self, items: Sequence[ReleaseItem]) -> Request | None:
        """A release to send, or None as above. Until it is answered, rule 6."""
        request = self._request(calls.release, items)
        if request is not None:
            self.notices.releasing(request)
        return request

    def ready(self, items: Sequence[ReadyItem]) -> Request | None:
        """A ready to send, or None as above."""

        def build(
            queue: str, flow_id: str, token: str, items: Sequence[ReadyItem], _seq: int
        ) -> Call[Results]:
            return calls.ready(queue, flow_id, token, items)

        return self._request(build, items)

    def drain_call(self, timeout_seconds: float | None) -> tuple[str, Call[Update]]:
        """The drain to send and the flow it is for. Raises `NotBound` while binding."""
        if self.bound is None:
            raise NotBound("the flow is not bound yet")
        flow_id, token = self.bound.flow_id, self.bound.flow_token
        return flow_id, calls.drain(self.settings.queue, flow_id, token, timeout_seconds)

    def answered(
        self, request: Request, results: Results, sent_at: float, now: float
    ) -> tuple[Result, ...]:
        """The answer to a request: note what took effect, then take the view that came along."""
        accepted = [
            item
            for item, result in zip(request.items, results.results, strict=True)
            if result.outcome == "ok"
        ]
        self.notices.released([item for item in accepted if isinstance(item, ReleaseItem)])
        commits = [item for item in accepted if isinstance(item, CommitItem)]
        partitions = self._acknowledged.take(self.view.partitions, commits, request.seq)
        self.view = replace(self.view, partitions=partitions)
        self.notices.settle(request)
        if self.bound is not None and self.bound.flow_id == request.flow_id:
            self.last_error = None
            self._renewed(sent_at)
            if results.update is not None:
                self._take(results.update, now)
        return results.results

    def unanswered(self, request: Request) -> None:
        """Nobody waits for the answer to this request any more."""
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
        self.notices.held(held)
        self._acknowledged.keep(held)
        self._last_epochs.update(held)
        self.version += 1

    def _renewed(self, sent_at: float) -> None:
        expires_at = sent_at + self.lease_seconds
        if self.lease_expires_at is None or expires_at > self.lease_expires_at:
            self.lease_expires_at = expires_at


def _queue_recreated(queue: str) -> FlowGone:
    return FlowGone(
        f"queue {queue!r} was deleted and made again since this flow was bound; "
        "open a new flow to consume the new queue",
        problem={"code": FlowGone.code, "reason": "queue_recreated"},
    )
