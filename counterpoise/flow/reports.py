"""What a flow has reported of its conditions, and the report that is due.

A report names all conditions at once. It is sent only when they differ from what the service has
acknowledged under this binding, so a program may ask as often as it likes. A healthy flow sends
none. A service of a version before conditions does not know the call. Then, and after a refusal,
nothing is sent for a while: it is no reason to stop the work, and the service may be upgraded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from counterpoise import conditions
from counterpoise.calls import Call
from counterpoise.conditions import Condition, is_unknown
from counterpoise.errors import (
    FlowGone,
    FlowNotFound,
    Forbidden,
    QueueNotFound,
    ServiceUnavailable,
    Unauthorized,
)
from counterpoise.flow.core import FlowCore
from counterpoise.flow.programs import Program, Send

logger = logging.getLogger("counterpoise.flow")

REFUSED_SECONDS = 60.0


class Reports:
    """The reports of one flow."""

    def __init__(self) -> None:
        self._seq = 0
        self._told: tuple[str, tuple[Condition, ...]] = ("", ())
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
        told = self._told[1] if self._told[0] == flow_id else ()
        if found == told:
            return
        self._seq += 1
        call: Call[None] = conditions.report(
            core.settings.queue, flow_id, core.bound.flow_token, found, self._seq
        )
        sent = yield Send(replace(call, timeout_seconds=timeout_seconds))
        match sent.error:
            case None:
                self._told = (flow_id, found)
            case ServiceUnavailable():
                core.call_failed(flow_id, sent.error)
                raise sent.error
            case FlowGone() | FlowNotFound() | QueueNotFound() | Unauthorized() | Forbidden():
                core.call_failed(flow_id, sent.error)
                core.check()
            case _:
                self._not_before = sent.now + REFUSED_SECONDS
                if not is_unknown(sent.error):
                    logger.warning(
                        "flow on %s: a report was refused: %s", core.settings.queue, sent.error
                    )
