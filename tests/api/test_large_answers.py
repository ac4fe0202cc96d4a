"""Large answers are written in pieces, with the bytes of those that are written at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi import Response
from pydantic import BaseModel

from api.answers import answer, encoded
from api.schemas import flows as flow_schemas
from api.schemas import logs as log_schemas
from api.schemas import rebalances as rebalance_schemas
from broker.calls import views
from broker.calls.views import MoveView, RebalanceView
from broker.core.commands import Outcome, Result
from broker.pieces import PIECE
from broker.testing.loop import counting_turns, virtual

SIZES = (0, 1, PIECE, PIECE + 1, 3 * PIECE)
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
        views.BoundView("f", "t", "q", 5.0, TEXT, "earliest", None, update(size)),
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


@pytest.mark.parametrize("size", SIZES)
@virtual
async def test_the_bytes_are_the_same(size: int) -> None:
    for model, view in answers(size):
        whole = model.model_validate(view).model_dump_json(by_alias=True).encode()
        assert await encoded(model, view) == whole


@virtual
async def test_a_small_answer_is_left_to_the_framework() -> None:
    for model, view in answers(PIECE):
        assert await answer(model, view) is view
    for model, view in answers(PIECE + 1):
        large = await answer(model, view, 201)
        assert isinstance(large, Response)
        assert large.status_code == 201
        assert large.headers["content-length"] == str(len(large.body))


@virtual
async def test_an_answer_of_many_short_lists_is_large_too() -> None:
    moves = tuple(MoveView(n, None, "a", 1, "initial", 0.5) for n in range(PIECE))
    one = RebalanceView(1, "bind", 0.0, None, 0, 0, 0, moves, triggered_at=0.0)
    page = views.Page((one,) * 20, None)
    large = await answer(rebalance_schemas.RebalancePage, page)
    assert isinstance(large, Response)
    whole = rebalance_schemas.RebalancePage.model_validate(page).model_dump_json(by_alias=True)
    assert large.body == whole.encode()


@virtual
async def test_writing_a_large_answer_lets_others_have_their_turn() -> None:
    """Once for each piece, not once for each answer."""
    _, turns = await counting_turns(encoded(flow_schemas.FlowChangeUpdate, update(20 * PIECE)))
    assert turns >= 20
