"""What a caller can do wrong, one exception each.

The first line of each docstring is the title of the problem document that the API answers with,
`code` its stable code (the contract, *HTTP*). `detail` says what to do. A defect of ours is an
assertion, never one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal


class BrokerError(Exception):
    """The request cannot be carried out."""

    code: ClassVar[str] = "error"

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    @classmethod
    def title(cls) -> str:
        """The first line of the docstring: what went wrong, the same for every instance.

        A Python that was told to drop docstrings (-OO) has the code alone.
        """
        return (cls.__doc__ or cls.code).strip().splitlines()[0]


class Invalid(BrokerError):
    """The request is not valid."""

    code = "invalid"

    def __init__(self, detail: str, errors: Sequence[tuple[str, str]] = ()) -> None:
        """`errors`: (name of the field, what is wrong with it and what would be right)."""
        super().__init__(detail)
        self.errors = tuple(errors)


class QueueNotFound(BrokerError):
    """There is no such queue."""

    code = "queue_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"No queue is named {name!r}; GET /v1/queues lists the queues, "
            "POST /v1/queues creates one."
        )
        self.name = name


class KeyNotFound(BrokerError):
    """There is no such key."""

    code = "key_not_found"

    def __init__(self, key_id: str) -> None:
        super().__init__(
            f"No key that you may see has the id {key_id!r}; GET /v1/keys lists the keys."
        )


class QueueExists(BrokerError):
    """A queue of this name exists already, with other settings."""

    code = "queue_exists"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"A queue named {name!r} exists already, with other settings; "
            f"PATCH /v1/queues/{name} changes them."
        )
        self.name = name


class QueueInUse(BrokerError):
    """The queue is in use."""

    code = "queue_in_use"


class ResizeUnsettled(BrokerError):
    """An ordered resize has to settle before the next one."""

    code = "resize_unsettled"

    def __init__(
        self,
        which: str,
        why: str,
        advice: str = "try again when its consumers have processed what came before it (GET "
        "…/rebalance shows how far it is). Without consumers, set its ordered_resize to false.",
    ) -> None:
        """`which`: "the queue 'orders'", or how else the caller may hear of it."""
        super().__init__(f"The last resize of {which} is not settled ({why}); {advice}")


class PartitionEnded(BrokerError):
    """The partition was split or merged before."""

    code = "partition_ended"

    def __init__(self, partition: int, children: Sequence[int]) -> None:
        after = " and ".join(map(str, children))
        super().__init__(
            f"Partition {partition} takes no messages any more; after it came {after}. Split or "
            "merge those."
        )


class ChildrenRefused(BrokerError):
    """The queue does not record the partitions of this split or merge."""

    code = "children_refused"


class FlowNotFound(BrokerError):
    """There is no such flow."""

    code = "flow_not_found"

    def __init__(self, flow_id: str) -> None:
        super().__init__(
            f"No flow {flow_id!r} is or was bound to this queue; bind with POST …/flows and use "
            "its flow_id."
        )
        self.flow_id = flow_id


class FlowGone(BrokerError):
    """The flow is no longer bound."""

    code = "flow_gone"

    ADVICE: ClassVar[dict[str, str]] = {
        "unbound": "It was unbound; bind again to go on.",
        "lease_expired": "Its lease expired; bind again with the same instance_id to go on.",
        "replaced": "Another flow with the same instance_id took its place; do not bind again.",
        "key_ended": "Its key was revoked or reached its end; bind with another key.",
        "restored": "The service was restored from a backup; bind again to go on.",
    }

    def __init__(self, flow_id: str, reason: str) -> None:
        super().__init__(
            f"Flow {flow_id} has left. {self.ADVICE.get(reason, 'Bind again to go on.')}"
        )
        self.flow_id = flow_id
        self.reason = reason


class Overtaken(BrokerError):
    """A later bind of the same program was carried out first."""

    code = "overtaken"

    def __init__(self, instance_id: str) -> None:
        super().__init__(
            f"Nothing was changed: instance {instance_id!r} is bound by a later bind of the same "
            "binder. If no answer to that one has come, bind again with a higher attempt."
        )


class StateKept(BrokerError):
    """State that a consumer keeps outside of the queue would be divided."""

    code = "state_kept"


class TooManyFlows(BrokerError):
    """The caller is over its rate, or over a limit."""

    code = "too_many_requests"
    # Until then some have to leave.
    retry_after_seconds: ClassVar[int] = 5

    def __init__(self, most: int) -> None:
        super().__init__(
            f"This key has {most} flows bound to this queue, and may not have more: unbind those "
            "that nobody uses, or give each program a key of its own. The setting "
            "COUNTERPOISE_KEY_FLOWS is the limit."
        )


class Unauthorized(BrokerError):
    """Credentials are missing."""

    code = "unauthorized"


class Forbidden(BrokerError):
    """These credentials do not allow this."""

    code = "forbidden"


class Unavailable(BrokerError):
    """The service cannot reach its database."""

    code = "unavailable"

    def __init__(self, detail: str, retry_after_seconds: int = 1) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class QueueUnreadable(BrokerError):
    """The stored queue cannot be read."""

    code = "queue_unreadable"


class LogChanged(Unavailable):
    """The log was trimmed or resized since what this call relies on was read."""

    def __init__(self, how: Literal["trimmed", "resized"]) -> None:
        super().__init__(f"The log was {how} meanwhile; try again.")
