"""Binds the flows of a query: one, or with the option `flows` several that act as one."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable

from counterpoise.errors import CounterpoiseError, ServiceUnavailable
from counterpoise.flow import Flow
from counterpoise.flow.view import Owned
from counterpoise.spark.channel.handoffs import Handoffs
from counterpoise.spark.errors import CannotStart
from counterpoise.spark.flows.bound import BoundFlow
from counterpoise.spark.flows.together import Flows, each, numbered
from counterpoise.spark.plan.options import SourceOptions


def bind(
    options: SourceOptions,
    instance_id: str | None,
    *,
    warmup: bool,
    renew_while: Callable[[], bool],
    wake: threading.Event,
    handoffs: Handoffs,
) -> BoundFlow:
    """The bound flow. On a change of its view, `wake` is set and `handoffs` is told.

    Raises CannotStart if it is not bound within `startTimeoutSeconds`.
    """
    instance_id = instance_id or str(uuid.uuid4())
    client_name = options.client_name or f"{socket.gethostname()}:{os.getpid()}"

    def changed(*_: object) -> None:
        wake.set()

    def granted(owned: Owned) -> None:
        handoffs.granted(owned)
        wake.set()

    def lost(owned: Owned) -> None:
        handoffs.lost(owned)
        wake.set()

    flows = [
        Flow(
            options.queue,
            url=options.url,
            client_name=numbered(client_name, number),
            instance_id=numbered(instance_id, number),
            lease_seconds=options.lease_seconds,
            warmup=warmup,
            renew_while=renew_while,
            on_granted=granted,
            on_revoking=changed,
            on_retiring=changed,
            on_lost=lost,
            on_warming=changed,
            on_warming_ended=changed,
        )
        for number in range(1, options.flows + 1)
    ]
    _open(flows, options)
    return flows[0] if len(flows) == 1 else Flows(flows)


def _open(flows: list[Flow], options: SourceOptions) -> None:
    seconds = max(0.1, options.start_timeout_seconds)
    try:
        each(flows, lambda flow: flow.open(seconds))
        if len({flow.queue_id for flow in flows} - {None}) > 1:
            raise CounterpoiseError("it was deleted and made again just now; start once more")
    except BaseException as error:
        each(flows, lambda flow: flow.close(timeout_seconds=1.0))
        if isinstance(error, ServiceUnavailable):
            raise CannotStart(
                f"no service for queue {options.queue!r} within {options.start_timeout_seconds:g} "
                f"s: {error}. Check the option 'url' (or COUNTERPOISE_URL) and that the service "
                "runs"
            ) from None
        if isinstance(error, CounterpoiseError):
            raise CannotStart(f"queue {options.queue!r}: {error}") from None
        raise
