"""The flow of a query: its bind, and the error that says why it has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable

from counterpoise.errors import CounterpoiseError, ServiceUnavailable, StateKept
from counterpoise.flow import Flow
from counterpoise.flow.view import Owned
from counterpoise.spark.channel.status import Handoffs
from counterpoise.spark.errors import CannotStart, FlowEnded, StateLost
from counterpoise.spark.options import SourceOptions


def bind(
    options: SourceOptions,
    instance_id: str | None,
    *,
    warmup: bool,
    at_once: bool = False,
    keeps_state: bool = False,
    renew_while: Callable[[], bool],
    wake: threading.Event,
    handoffs: Handoffs,
) -> Flow:
    """The bound flow. On a change of its view, `wake` is set and `handoffs` is told. `at_once`: no
    holddown if no other flow is bound.

    `keeps_state`: in Spark, so the queue has to be exclusive.

    Raises CannotStart if it is not bound within `startTimeoutSeconds`, and StateLost.
    """

    def changed(*_: object) -> None:
        wake.set()

    def granted(owned: Owned) -> None:
        handoffs.granted(owned)
        wake.set()

    def lost(owned: Owned) -> None:
        handoffs.lost(owned)
        wake.set()

    flow = Flow(
        options.queue,
        url=options.url,
        client_name=options.client_name,
        instance_id=instance_id,
        lease_seconds=options.lease_seconds,
        warmup=warmup,
        at_once=at_once,
        keeps_state=keeps_state,
        weight=options.weight,
        max_partitions=options.max_partitions,
        renew_while=renew_while,
        on_granted=granted,
        on_revoking=changed,
        on_retiring=changed,
        on_lost=lost,
        on_warming=changed,
        on_warming_ended=changed,
    )
    try:
        flow.open(max(0.1, options.start_timeout_seconds))
    except BaseException as error:
        flow.close(timeout_seconds=1.0)
        if isinstance(error, ServiceUnavailable):
            raise CannotStart(
                f"no service for queue {options.queue!r} within {options.start_timeout_seconds:g} "
                f"s: {error}. Check the option 'url' (or COUNTERPOISE_URL) and that the service "
                "runs"
            ) from None
        if isinstance(error, StateKept):
            raise StateLost(f"queue {options.queue!r}: {error}") from None
        if isinstance(error, CounterpoiseError):
            raise CannotStart(f"queue {options.queue!r}: {error}") from None
        raise
    return flow


def raise_if_over(flow: Flow, queue: str) -> None:
    """Raises FlowEnded, with the reason and what to do, once the flow has ended for good."""
    if flow.status != "gone":
        return
    reason = flow.gone_reason or "unknown"
    said = {
        "replaced": "another consumer was bound with the same instanceId, so this one is over. "
        "Two queries at a time need two instanceIds (and two checkpoints)",
        "unbound": "an administrator has unbound this consumer. Start the query again to come back",
        "key_ended": "its key was revoked or reached its end. Start the query again with another "
        "key in COUNTERPOISE_TOKEN",
        "lease_expired": "its lease expired while it was being drained. Start the query again to "
        "come back",
        "queue_not_found": "the queue has been deleted. Make it again and start the query with "
        "another checkpointLocation, or let the query end",
        "queue_recreated": "the queue has been deleted and made again. To consume the new one, "
        "start the query again with another checkpointLocation",
    }.get(reason, str(flow.last_error or reason))
    raise FlowEnded(f"queue {queue!r}: {said}")
