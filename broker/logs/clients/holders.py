"""For whom credentials are made, and what is given to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Purpose = Literal["read", "publish"]


@dataclass(frozen=True, slots=True)
class Holder:
    """For whom credentials of the built-in log are made, on one queue.

    `name` is `flow:ID` or `key:ID`, or `anyone` for callers of a service without keys.
    """

    name: str
    queue_id: str

    @classmethod
    def flow(cls, flow_id: str, queue_id: str) -> Holder:
        """A flow; its credentials end soon after it."""
        return cls(f"flow:{flow_id}", queue_id)

    @classmethod
    def anyone(cls, queue_id: str) -> Holder:
        """Any caller of a service without keys."""
        return cls("anyone", queue_id)

    @staticmethod
    def flow_id(name: str) -> str | None:
        """The flow's id in the name of a holder; None for other holders."""
        kind, _, flow_id = name.partition(":")
        return flow_id if kind == "flow" else None


@dataclass(frozen=True, slots=True)
class LogAccess:
    """Short-lived credentials for the built-in log; the URL contains the password: never log it."""

    url: str = field(repr=False)
    expires_at: float
