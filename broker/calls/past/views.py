"""The history of a queue as values (see `views`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class MoveView:
    """One partition's grant or handoff within a rebalance; both flows are given as flow ids.

    `outcome` is how the partition was handed over (`initial`, `graceful`, `forced`, `orphaned`,
    `replaced`, `discarded`). `seconds` is how long it paused: since its owner was told to finish,
    or without an owner. `reason`: why it was forced (`not_released`, `positions_set`), else None.
    """

    partition: int
    from_flow: str | None
    to_flow: str | None
    epoch: int
    outcome: str
    seconds: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class CauseView:
    """A change that led to a rebalance.

    `type`: `bound`, `left` (with the `reason`), `draining`, or `changed` (with new `settings`).
    """

    at: float
    type: str
    flow_id: str | None = None
    client_name: str | None = None
    reason: str | None = None
    settings: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RebalanceView:
    """One entry of the history; `handoffs`, `forced` and `granted` are counts.

    `triggered_at` is when its holddown began, or it itself. `why` says the causes in plain words;
    of very many causes the last are only counted (`more_causes`). `clients` are the names of the
    flows in `moves`.
    """

    id: int
    trigger: str
    started_at: float
    finished_at: float | None
    handoffs: int
    forced: int
    granted: int
    moves: tuple[MoveView, ...] = ()
    triggered_at: float | None = None
    why: str = ""
    causes: tuple[CauseView, ...] = ()
    more_causes: int = 0
    clients: Mapping[str, str] = field(default_factory=dict)
