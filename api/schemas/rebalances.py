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
    absent,
)

# Not an enumeration: a replica also shows what a newer one has stored.
Trigger = Annotated[
    str,
    Field(
        description="`bind`, `unbind`, `lease_expired`, `driver_lost`, `resize`, `access_type`, "
        "`drain`, `admin`, `replaced` or `lineage`; later versions may add others.",
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
    seconds: float = Field(
        description="How long the partition paused: since the last sign of life of an owner that "
        "was silent, else since its owner was told to finish, or without an owner."
    )
    silent_seconds: float | None = Field(
        description="Of these, how long the owner had been silent when its lease ended; null: its "
        "lease did not end."
    )
    reason: str | None = Field(
        description="Why it was `forced`: `not_released` (by the deadline) or `positions_set` (by "
        "an administrator); else null."
    )


class Cause(AnswerModel):
    """A change that led to a rebalance."""

    at: Time
    type: str = Field(
        description="`bound`, `admitted` (after it was held back), `left`, `draining` or `changed` "
        "(settings).",
        examples=["bound"],
    )
    flow_id: str | None
    client_name: str | None
    reason: str | None = Field(
        description="Why a flow left: `unbound`, `lease_expired`, `driver_lost`, `replaced`, "
        "`key_ended`; later versions may add others."
    )
    settings: dict[str, JsonValue] | None = Field(description="The settings' new values.")


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
    """An entry of the history, with what led to it and its moves."""

    triggered_at: Time = Field(description="When its holddown began, or it itself without one.")
    why: str = Field(
        description="The causes in plain words, with the names of clients.",
        examples=["etl-3 bound; etl-1 did not renew the lease"],
    )
    causes: list[Cause] = Field(description="What led to it, in order; at most 100.")
    more_causes: int = Field(description="How many causes are left out.")
    clients: dict[str, str] = Field(
        description="The client names of the flows in `moves`, as far as they are stored."
    )
    moves: list[Move] = Field(description="Empty without `moves=true`.")
    more_moves: int = Field(
        description="How many moves are not in `moves`: all of them without `moves=true`, else "
        "those on the next pages."
    )


class RebalancePage(Page[Rebalance]):
    """Rebalances, newest first."""


class Handoff(AnswerModel):
    """A handoff in progress."""

    partition: PartitionNumber
    from_flow: str = Field(serialization_alias="from")
    to_flow: str | None = Field(serialization_alias="to")
    phase: Literal["warming", "revoking"]
    deadline: Time | None


class UnsettledResize(AnswerModel):
    """An ordered resize that is not settled: the next one is refused until it is."""

    resized_from: int | None = Field(description="Null while the log has not said its cuts.")
    resized_to: int
    awaits_cuts: bool = Field(description="The log has not said yet where it has cut partitions.")
    unreached: int = Field(description="Partitions that are not processed up to their cuts.")
    waiting: int = Field(description="Partitions that wait for those.")


class Waiting(AnswerModel):
    """A partition of a dynamic queue that may not be processed yet."""

    partition: PartitionNumber
    key: str
    waits_for: list[PartitionNumber] = Field(description="Its parents that are not finished.")


class HeldFlows(AnswerModel):
    """Flows that get no partitions yet: their keys have moved as much as they may in an hour."""

    flows: int = Field(description="How many.")
    until: Time = Field(description="When the first of them joins.")


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
        description="The largest minus the smallest number of partitions over bound flows that "
        "neither drain nor are held back."
    )
    last_rebalance: RebalanceSummary | None
    resize: UnsettledResize | None = Field(
        default=None,
        exclude_if=absent,
        description="Of a queue with ordered resizes: the last resize, until it is settled.",
    )
    waiting: list[Waiting] = Field(
        default_factory=list, description="In a dynamic queue: which partition waits for which."
    )
    held_back: HeldFlows | None = Field(
        default=None, exclude_if=absent, description="The flows that are held back, if any."
    )
