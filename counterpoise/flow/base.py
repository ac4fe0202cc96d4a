"""The common part of the blocking and the asyncio flow: settings, properties, callbacks, reports.

**Callbacks.** A program registers callbacks by keyword; a notice becomes a call of one of them.

**Log lines.** Bound, granted, revoked, retiring and lost are lines at the level INFO of the logger
`counterpoise.flow`, whether the program has callbacks or not. Partitions that come or go together
share a line, with the first twenty of them.

**Reports of conditions.** A report has all conditions. It is sent only when they differ from those
that the service has acknowledged under this binding, so a program may report as often as it likes,
and a healthy flow sends none. After a refusal nothing is sent for a while: it is no reason to stop
the work.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NoReturn, TypeAlias

from msgspec import structs

from counterpoise import conditions
from counterpoise.calls import Call, check_queue
from counterpoise.client import Settings
from counterpoise.errors import (
    CounterpoiseError,
    FlowGone,
    FlowNotFound,
    Forbidden,
    NotBound,
    QueueNotFound,
    ServiceUnavailable,
    Unauthorized,
)
from counterpoise.flow.core import FlowCore, FlowSettings
from counterpoise.flow.programs import Program, Send, Sent
from counterpoise.flow.view import (
    Granted,
    Lost,
    Notice,
    Owned,
    Retiring,
    Revoking,
    Warming,
    WarmingEnded,
    WarmingStarted,
)
from counterpoise.lease_time import lease_time
from counterpoise.options import check_counts, check_seconds, suggesting
from counterpoise.wire import Condition, Update

OnOwned: TypeAlias = Callable[[Owned], Any] | None
OnRevoking: TypeAlias = Callable[[Owned, float], Any] | None
OnWarming: TypeAlias = Callable[[Warming, float | None], Any] | None
OnWarmingEnded: TypeAlias = Callable[[Warming], Any] | None
MOST_IN_A_LINE = 20
logger = logging.getLogger("counterpoise.flow")
REFUSED_REPORT_SECONDS = 60.0


@dataclass(frozen=True)
class Callbacks:
    """Functions to call, each once for a (partition, epoch).

    on_granted(owned): work on the partition may begin at `owned.position`. on_revoking(owned,
    seconds_left): finish outstanding messages, commit, release in that time. on_retiring(owned):
    drain the partition to its end, then release it with finished=True. on_lost(owned): the
    partition is lost under this epoch, and not by the program's release. on_warming(warming,
    seconds_left): restore its state in that time (None: unknown), then call ready.
    on_warming_ended(warming): the handoff was called off.
    """

    on_granted: OnOwned = None
    on_revoking: OnRevoking = None
    on_retiring: OnOwned = None
    on_lost: OnOwned = None
    on_warming: OnWarming = None
    on_warming_ended: OnWarmingEnded = None

    @property
    def any(self) -> bool:
        """Whether any callback is registered."""
        return any(vars(self).values())

    def call_for(self, notice: Notice, now: float) -> Callable[[], Any] | None:
        """The call for `notice`, at `now` (`lease_time`); None if no callback wants it."""
        match notice:
            case Granted(owned) if self.on_granted:
                return partial(self.on_granted, owned)
            case Revoking(owned) if self.on_revoking:
                return partial(self.on_revoking, owned, _left(owned.deadline, now) or 0.0)
            case Retiring(owned) if self.on_retiring:
                return partial(self.on_retiring, owned)
            case Lost(owned) if self.on_lost:
                return partial(self.on_lost, owned)
            case WarmingStarted(warming) if self.on_warming:
                return partial(self.on_warming, warming, _left(warming.deadline, now))
            case WarmingEnded(warming) if self.on_warming_ended:
                return partial(self.on_warming_ended, warming)
        return None


def _left(deadline: float | None, now: float) -> float | None:
    return None if deadline is None else max(0.0, deadline - now)


class LogLines:
    """The lines of one flow."""

    def __init__(self) -> None:
        self._flow_id: str | None = None
        self._held_until: datetime | None = None

    def write(self, core: FlowCore, notices: Sequence[Notice]) -> None:
        """What has changed since the last call."""
        if not logger.isEnabledFor(logging.INFO):
            return
        queue = core.settings.queue
        flow_id = core.bound.flow_id if core.bound is not None else None
        _write(queue, "lost", [one.owned for one in notices if isinstance(one, Lost)])
        if flow_id != self._flow_id:
            self._flow_id = flow_id
            if flow_id is not None:
                client = core.settings.client_name
                logger.info("queue %s: bound as %s (flow %s)", queue, client, flow_id)
            else:
                logger.info("queue %s: not bound (%s)", queue, core.gone_reason or core.last_error)
        if core.view.held_until != self._held_until:
            self._held_until = held_until = core.view.held_until
            if held_until is not None:
                why = "its key has moved as much of the queue as it may in an hour"
                logger.warning("queue %s: waits until %s: %s", queue, held_until, why)
        granted = [one.owned for one in notices if isinstance(one, Granted)]
        for how in dict.fromkeys(owned.handed_over for owned in granted):
            together = [owned for owned in granted if owned.handed_over == how]
            _write(queue, f"granted ({how})", together)
        _write(queue, "revoked", [one.owned for one in notices if isinstance(one, Revoking)])
        _write(queue, "retiring", [one.owned for one in notices if isinstance(one, Retiring)])


def _write(queue: str, said: str, partitions: Sequence[Owned]) -> None:
    if not partitions:
        return
    first = [f"{one.partition} epoch {one.epoch}" for one in partitions[:MOST_IN_A_LINE]]
    more = len(partitions) - len(first)
    rest = f" and {more} more" if more else ""
    logger.info("queue %s: %s: partition %s%s", queue, said, ", ".join(first), rest)


class Reports:
    """The reports of one flow."""

    def __init__(self) -> None:
        self._seq = 0
        self._acknowledged: tuple[str, tuple[Condition, ...]] = ("", ())
        self._not_before = float("-inf")

    def report(
        self, core: FlowCore, wanted: Iterable[Condition], now: float, timeout_seconds: float
    ) -> Program[None]:
        """Report these conditions, if that is due; does nothing while the flow is not bound.

        One attempt: the caller asks again. Raises `ServiceUnavailable`, and the reason once the
        flow is gone for good.
        """
        core.check()
        found = tuple(wanted)
        if core.bound is None or now < self._not_before:
            return
        flow_id = core.bound.flow_id
        acknowledged = self._acknowledged[1] if self._acknowledged[0] == flow_id else ()
        if found == acknowledged:
            return
        self._seq += 1
        call: Call[None] = conditions.report(
            core.settings.queue, flow_id, core.bound.flow_token, found, self._seq
        )
        sent = yield Send(structs.replace(call, timeout_seconds=timeout_seconds))
        match sent.error:
            case None:
                self._acknowledged = (flow_id, found)
            case ServiceUnavailable():
                core.call_failed(flow_id, sent.error)
                raise sent.error
            case FlowGone() | FlowNotFound() | QueueNotFound() | Unauthorized() | Forbidden():
                core.call_failed(flow_id, sent.error)
                core.check()
            case _:
                self._not_before = sent.now + REFUSED_REPORT_SECONDS
                logger.warning(
                    "flow on %s: a report was refused: %s", core.settings.queue, sent.error
                )


class BaseFlow:
    """The reading half of a flow. Every property is a snapshot and never blocks or raises."""

    @suggesting
    def __init__(
        self,
        queue: str,
        *,
        url: str | None = None,
        token: str | None = None,
        client_name: str | None = None,
        instance_id: str | None = None,
        lease_seconds: float = 10.0,
        warmup: bool = False,
        at_once: bool = False,
        keeps_state: bool = False,
        weight: int = 1,
        max_partitions: int | None = None,
        rebind: bool = True,
        timeout_seconds: float = 10.0,
        renew_while: Callable[[], bool] | None = None,
        on_granted: OnOwned = None,
        on_revoking: OnRevoking = None,
        on_retiring: OnOwned = None,
        on_lost: OnOwned = None,
        on_warming: OnWarming = None,
        on_warming_ended: OnWarmingEnded = None,
    ) -> None:
        check_queue(queue)
        # Refuses what no client could use.
        self._root = Settings(url, token, timeout_seconds).url
        check_seconds(1, 3600, lease_seconds=lease_seconds)
        check_counts(weight=weight)
        if max_partitions is not None:
            check_counts(max_partitions=max_partitions)
        settings = FlowSettings(
            queue=queue,
            client_name=client_name or f"{socket.gethostname()}:{os.getpid()}",
            instance_id=instance_id or str(uuid.uuid4()),
            lease_seconds=lease_seconds,
            warmup=warmup,
            at_once=at_once,
            keeps_state=keeps_state,
            weight=weight,
            max_partitions=max_partitions,
            rebind=rebind,
            binder=str(uuid.uuid4()),
            timeout_seconds=timeout_seconds,
        )
        self._core = FlowCore(settings)
        self._callbacks = Callbacks(
            on_granted, on_revoking, on_retiring, on_lost, on_warming, on_warming_ended
        )
        self._url, self._token = url, token
        self._timeout_seconds = timeout_seconds
        self._renew_while = renew_while
        self._pid = os.getpid()
        self._log_lines = LogLines()
        self._reports = Reports()
        self._set_up()

    def _set_up(self) -> None:
        """Create the shell's own objects. Threads and connections come with `open`."""
        raise NotImplementedError

    # -------------------------------------------------------------- identity and status

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self._core.settings.queue

    @property
    def url(self) -> str:
        """The root all calls go to, with the base path."""
        return self._root

    @property
    def client_name(self) -> str:
        """The name that people see, for example in the dashboard."""
        return self._core.settings.client_name

    @property
    def instance_id(self) -> str:
        """Identifies this consumer; if it was given, also across restarts."""
        return self._core.settings.instance_id

    @property
    def flow_id(self) -> str | None:
        """The id of the bound flow; a new one after an expired lease. None while not bound."""
        bound = self._core.bound
        return bound.flow_id if bound else None

    @property
    def queue_id(self) -> str | None:
        """Identifies the queue among queues of the same name; None before the first bind."""
        return self._core.queue_id

    @property
    def status(self) -> str:
        """`new` (not opened), `binding`, `bound` or `gone`."""
        return self._core.status

    @property
    def gone_reason(self) -> str | None:
        """The reason why the flow is gone: that of a `FlowGone`, or the code of another error."""
        return self._core.gone_reason

    @property
    def last_error(self) -> CounterpoiseError | None:
        """The last error; None once the service has answered again."""
        return self._core.last_error

    @property
    def log(self) -> str | None:
        """The queue's log, without credentials; None before the first bind."""
        return self._core.log

    # -------------------------------------------------------------- partitions

    @property
    def partitions(self) -> Mapping[int, Owned]:
        """The partitions that the flow owns, by number: a snapshot that does not change."""
        return self._core.view.partitions

    @property
    def warming(self) -> Mapping[int, Warming]:
        """The partitions that the flow should warm up, by number: a snapshot."""
        return self._core.view.warming

    @property
    def active(self) -> bool:
        """Whether the flow owns at least one partition."""
        return self._core.view.active

    @property
    def draining(self) -> bool:
        """Whether the flow is handing off all its partitions."""
        return self._core.view.draining

    @property
    def drained(self) -> bool:
        """Whether all have been handed off, so that the flow can unbind."""
        view = self._core.view
        return view.draining and not view.active

    @property
    def update(self) -> Update | None:
        """The latest update as it was received."""
        return self._core.update

    @property
    def version(self) -> int:
        """A number that rises whenever the view or the status changes; see `wait`."""
        return self._core.version

    @property
    def lease_seconds(self) -> float:
        """The lease that the service granted; before the first bind, the lease to ask for."""
        return self._core.lease_seconds

    @property
    def lease_expires_at(self) -> float | None:
        """When the lease ends unless renewed, in seconds of `lease_time`; never later than the
        service thinks.
        """
        return self._core.lease_expires_at

    @property
    def in_doubt(self) -> bool:
        """Whether others may own the partitions, because this flow has sent nothing for longer than
        its lease: the machine slept, or the process was stopped.

        Begin no work while it is True. Once the service has answered, the view is current again,
        and `wait` returns.
        """
        return self._core.in_doubt(lease_time())

    def check(self) -> None:
        """Raise if the flow is gone for good."""
        self._check_process()
        self._core.check()

    # -------------------------------------------------------------- for the shells

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise NotBound(
                f"this flow belongs to process {self._pid}; a forked process has to open its own"
            )

    def _may_renew(self) -> bool:
        if self._renew_while is None:
            return True
        try:
            return bool(self._renew_while())
        except Exception:
            # A check that fails counts as unhealthy.
            logger.exception("flow on %s: renew_while failed", self.queue)
            return False

    def _sent(
        self, sent_at: float, value: Any = None, error: CounterpoiseError | None = None
    ) -> Sent:
        return Sent(sent_at, lease_time(), random.random(), value, error)

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled: it holds connections and a lease of this "
            "process; open one in the process that needs it"
        )

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.client_name} on {self.queue}: {self.status}, "
            f"{len(self.partitions)} partitions>"
        )
