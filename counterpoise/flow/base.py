"""The common part of the blocking and the asyncio flow: settings, and all properties."""

from __future__ import annotations

import logging
import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from counterpoise.errors import CounterpoiseError, UsedInAnotherProcess
from counterpoise.flow.callbacks import Callbacks, OnOwned, OnRevoking, OnWarming, OnWarmingEnded
from counterpoise.flow.core import FlowCore, FlowSettings
from counterpoise.flow.log_lines import LogLines
from counterpoise.flow.programs import Sent
from counterpoise.flow.reports import Reports
from counterpoise.flow.view import Owned, Warming
from counterpoise.wire import Update

logger = logging.getLogger("counterpoise.flow")


class BaseFlow:
    """The reading half of a flow. Every property is a snapshot and never blocks or raises."""

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
        settings = FlowSettings(
            queue=queue,
            client_name=client_name or f"{socket.gethostname()}:{os.getpid()}",
            instance_id=instance_id or str(uuid.uuid4()),
            lease_seconds=lease_seconds,
            warmup=warmup,
            rebind=rebind,
            binder=str(uuid.uuid4()),
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
    def flow_ids(self) -> tuple[str, ...]:
        """`flow_id` as a sequence of one; empty while not bound."""
        return () if self.flow_id is None else (self.flow_id,)

    @property
    def queue_id(self) -> str | None:
        """Identifies the queue among queues of the same name. None before the first bind, or if the
        service does not name it.
        """
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

    @property
    def start(self) -> str | None:
        """What a null position means: `earliest` or `latest`; None before the first bind."""
        return self._core.start

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
        """When the lease ends unless renewed, by the monotonic clock; never later than the service
        thinks.
        """
        return self._core.lease_expires_at

    # -------------------------------------------------------------- for the shells

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise UsedInAnotherProcess(
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
        return Sent(sent_at, time.monotonic(), random.random(), value, error)

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
