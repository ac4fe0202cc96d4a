"""The wire models of rebalances (`api.schemas` explains the rules they follow)."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue

from api.schemas.common import (
    EXAMPLE_FLOW,
    EXAMPLE_TIME,
    AnswerModel,
    Epoch,
    Page,
    PartitionNumber,
    QueueName,
    RebalanceStatusName,
    Time,
)

# Not an enumeration: a replica also shows what a newer one has stored.
Trigger = Annotated[
    str,
    Field(
        description="`bind`, `unbind`, `lease_expired`, `resize`, `access_type`, `drain`, `admin` "
        "or `replaced`; later versions may add others.",
        examples=["bind"],
    ),
]


EXAMPLE_REBALANCE_STATUS: dict[str, JsonValue] = {
    "queue": "flights",
    "status": "Rebalancing",
    "revision": 41,
    "trigger": "bind",
    "since": EXAMPLE_TIME,
    "holddown_until": None,
    "handoffs": [
        {
            "partition": 3,
            "from": EXAMPLE_FLOW,
            "to": "0198c0df-02b4-7d55-a0f3-6a2c1e8d9b70",
            "phase": "revoking",
            "deadline": "2026-11-20T10:00:03.250Z",
        }
    ],
    "unassigned": [],
    "spread": 3,
    "last_rebalance": {
        "id": 7,
        "trigger": "unbind",
        "started_at": "2026-11-20T09:40:00.000Z",
        "finished_at": "2026-11-20T09:40:02.500Z",
        "handoffs": 3,
        "forced": 0,
        "granted": 2,
    },
}


class Move(AnswerModel):
    """One partition's grant or handoff."""

    partition: PartitionNumber
    from_flow: str | None = Field(serialization_alias="from")
    to_flow: str | None = Field(serialization_alias="to")
    epoch: Epoch
    outcome: str = Field(
        description="How it was handed over: `initial`, `graceful`, `forced`, `orphaned`, "
        "`replaced` or `discarded`.",
        examples=["graceful"],
    )
    seconds: float = Field(description="How long the handoff took.")


class RebalanceSummary(AnswerModel):
    """A rebalance, or a grant outside one (which counts no handoffs)."""

    id: int
    trigger: Trigger
    started_at: Time
    finished_at: Time | None = Field(description="Null while it is running.")
    handoffs: int
    forced: int = Field(description="How many of the handoffs reached their deadline.")
    granted: int = Field(description="How many partitions without an owner were granted.")


class Rebalance(RebalanceSummary):
    """An entry of the history, with its moves."""

    moves: list[Move]


class RebalancePage(Page[Rebalance]):
    """Rebalances, newest first."""


class Handoff(AnswerModel):
    """A handoff in progress."""

    partition: PartitionNumber
    from_flow: str = Field(serialization_alias="from")
    to_flow: str | None = Field(serialization_alias="to")
    phase: Literal["warming", "revoking"]
    deadline: Time | None


class RebalanceStatus(AnswerModel):
    """The state of the rebalancer for a queue, and its trigger."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_REBALANCE_STATUS]})

    queue: QueueName
    status: RebalanceStatusName
    revision: int
    trigger: Trigger | None = Field(description="The first trigger; null when Ready.")
    since: Time = Field(description="When the queue took this status.")
    holddown_until: Time | None = Field(description="Null outside Holddown.")
    handoffs: list[Handoff]
    unassigned: list[PartitionNumber]
    spread: int = Field(
        description="The largest minus the smallest number of partitions over bound, non-draining "
        "flows."
    )
    last_rebalance: RebalanceSummary | None
