"""Answers that name many partitions have the bytes that their models make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from api.answers import answer
from api.schemas import flows as flow_schemas
from api.schemas import logs as log_schemas
from api.schemas import rebalances as rebalance_schemas
from broker.calls import views
from broker.calls.views import MoveView, RebalanceView
from broker.core.commands import Outcome, Result

# What an answer looks like, written as a text by a hostile client.
TEXT = '"partitions":[],"results":[],\\"moves\\":[]'


def update(size: int) -> views.UpdateView:
    shown = tuple(
        views.PartitionInUpdate(n, 1, "owned", str(n) if n % 3 else TEXT, "initial", None)
        for n in range(size)
    )
    return views.UpdateView("orders", TEXT, 7, True, False, 1_700_000_000.25, shown)


def answers(size: int) -> Iterator[tuple[type[BaseModel], Any]]:
    """Every answer that may be large, with so many items in each list."""
    yield flow_schemas.FlowChangeUpdate, update(size)
    yield (
        flow_schemas.Bound,
        views.BoundView("f", "t", "q", 5.0, TEXT, None, update(size)),
    )
    results = tuple(Result(n, Outcome.STALE_EPOCH, n or None) for n in range(size))
    yield flow_schemas.Results, views.ResultsView(results, update(3))
    yield flow_schemas.Results, views.ResultsView(results[:2], update(size))
    handoffs = tuple(views.HandoffView(n, "a", None, "warming", 5.5) for n in range(size))
    status = views.RebalanceStatusView(
        "orders", "Ready", 1, None, 0.0, None, handoffs, tuple(range(size)), 0, None
    )
    yield rebalance_schemas.RebalanceStatus, status
    yield rebalance_schemas.RebalanceStatus, replace(status, unassigned=())
    moves = tuple(MoveView(n, None, "a", 1, "initial", 0.5) for n in range(size))
    entries = tuple(
        RebalanceView(n, "bind", 0.0, None, 0, 0, 0, some, triggered_at=0.0)
        for n, some in enumerate((moves, (), moves[:2], moves))
    )
    yield rebalance_schemas.RebalancePage, views.Page(entries, None)
    positions = tuple(views.PositionSet(n, 1, str(n)) for n in range(size))
    yield log_schemas.Positions, views.PositionsView(3, positions)


@pytest.mark.parametrize("size", [0, 1, 700])
def test_the_bytes_are_those_of_the_model(size: int) -> None:
    for model, view in answers(size):
        written = answer(model, view, 201)
        assert written.body == model.model_validate(view).model_dump_json(by_alias=True).encode()
        assert written.status_code == 201
