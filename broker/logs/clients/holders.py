"""For whom credentials are made, and what is given to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Purpose = Literal["read", "publish"]


@dataclass(frozen=True, slots=True)
class Holder:
    """For whom credentials of the built-in log are made, on one queue.

    `name` is `flow:ID` or `key:ID`, or `anyone` for callers of a service without keys. `key_id`:
    the key with which it was made, also of a flow.
    """

    name: str
    queue_id: str
    key_id: str | None = None

    @classmethod
    def flow(cls, flow_id: str, queue_id: str, key_id: str | None = None) -> Holder:
        """A flow, bound with this key; its credentials end soon after it."""
        return cls(f"flow:{flow_id}", queue_id, key_id)

    @classmethod
    def caller(cls, queue_id: str, flow_id: str | None, key_id: str | None) -> Holder:
        """Who makes a call: a flow, or the holder of a key, or anyone."""
        if flow_id is not None:
            return cls.flow(flow_id, queue_id, key_id)
        return cls("anyone" if key_id is None else f"key:{key_id}", queue_id, key_id)

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
