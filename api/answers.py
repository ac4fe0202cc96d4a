"""Answers that are written in another way than by FastAPI: frequent ones, and large ones.

The bytes are in both cases those that the wire models make.

**Frequent ones.** One change goes to thousands of flows. A partition of a view or a result costs a
fraction of what the models take for it when it is written without them (`update_json`,
`results_json`).

**Large ones.** An answer that names up to 100,000 partitions is written in pieces
(`broker.pieces`). It is written without the items of its long lists, which leaves `[]` in their
places. Then each list is written piece by piece and put into its place. In JSON a quote within a
text is escaped, so `"name":[]` is never part of a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

import orjson
from fastapi import Response
from pydantic import BaseModel, TypeAdapter

from api.schemas import flows as flow_schemas
from api.schemas.common import rfc3339
from broker.calls.flow_views import BIG_VIEW
from broker.calls.views import ResultsView, UpdateView
from broker.pieces import PIECE, pause, pieces

_SELDOM = ("cut", "reached_cut", "waits_for", "key", "parents")

View = TypeVar("View")
# Items of all lists of an answer.
MOST_AT_ONCE = 4 * PIECE


def update_json(view: Any) -> bytes:
    """A broker's view as FlowChangeUpdate."""
    return orjson.dumps(_update_values(view))


def results_json(view: Any) -> bytes:
    """Results of a broker and the view afterwards, as Results."""
    results = [_result_values(one) for one in view.results]
    return orjson.dumps({"results": results, "update": _update_values(view.update)})


async def written_update(view: UpdateView) -> bytes:
    """The view as JSON, written in pieces if it is large."""
    if len(view.partitions) <= BIG_VIEW:
        return update_json(view)
    return await encoded(flow_schemas.FlowChangeUpdate, view)


async def results_answer(view: ResultsView) -> Response:
    """The results of a call, and the view afterwards, as an answer."""
    if len(view.results) + len(view.update.partitions) <= BIG_VIEW:
        body = results_json(view)
    else:
        body = await encoded(flow_schemas.Results, view)
    return Response(body, media_type="application/json")


def _update_values(view: Any) -> dict[str, Any]:
    partitions = [_partition_values(one) for one in view.partitions]
    values = {
        "queue": view.queue,
        "flow_id": view.flow_id,
        "revision": view.revision,
        "active": view.active,
        "draining": view.draining,
        "now": rfc3339(view.now),
        "partitions": partitions,
    }
    if view.resize is not None:
        values["resize"] = view.resize
    if view.held_until is not None:
        values["held_until"] = rfc3339(view.held_until)
    return values


def _result_values(one: Any) -> dict[str, Any]:
    values = {"partition": one.partition, "outcome": one.outcome}
    if one.current_epoch is not None:
        values["current_epoch"] = one.current_epoch
    return values


def _partition_values(one: Any) -> dict[str, Any]:
    values = {
        "partition": one.partition,
        "epoch": one.epoch,
        "state": one.state,
        "position": one.position,
    }
    if one.handed_over is not None:
        values["handed_over"] = one.handed_over
    if one.deadline is not None:
        values["deadline"] = rfc3339(one.deadline)
    for name in _SELDOM:
        value = getattr(one, name)
        if value is not None:
            values[name] = value
    return values


class _List(NamedTuple):
    """A list of an answer: its name there, the model of its items, and the items."""

    name: str
    item: Any
    items: Sequence[Any]


async def answer(model: type[BaseModel], view: View, status_code: int = 200) -> View | Response:
    """The view itself, or, if it is large, the response that it makes."""
    if not _is_large(_lists(model, view)):
        return view
    content = await encoded(model, view)
    return Response(content, status_code=status_code, media_type="application/json")


async def encoded(model: type[BaseModel], view: object) -> bytes:
    """A broker's view as JSON by its wire model."""
    lists = list(_lists(model, view))
    if not _is_large(lists):
        return _encoded(model, view)
    shell = _encoded(model, _emptied(view, {each.name for each in lists}))
    names = "|".join({re.escape(each.name) for each in lists})
    # Text and the names of the lists in turn.
    parts = re.split(rf'"({names})":\[\]'.encode(), shell)
    written = [parts[0]]
    for each, name, after in zip(lists, parts[1::2], parts[2::2], strict=True):
        assert each.name.encode() == name
        items = [part async for part in _written(each)]
        written += [b'"%s":[' % name, b",".join(items), b"]", after]
        await pause()
    return b"".join(written)


def _is_large(lists: Iterable[_List]) -> bool:
    """Whether one list is longer than a piece, or many short ones take as long as some pieces."""
    sizes = [len(each.items) for each in lists]
    return max(sizes, default=0) > PIECE or sum(sizes) > MOST_AT_ONCE


async def _written(each: _List) -> Any:
    adapter = _adapter(each.item)
    async for piece in pieces(each.items):
        yield adapter.dump_json(adapter.validate_python(piece), by_alias=True)[1:-1]


@cache
def _adapter(item: Any) -> TypeAdapter[Any]:
    return TypeAdapter(list[item])


def _encoded(model: type[BaseModel], view: object) -> bytes:
    return model.model_validate(view).model_dump_json(by_alias=True).encode()


@cache
def _members(model: type[BaseModel]) -> tuple[tuple[str, str, Any, Any], ...]:
    """Of the fields that are lists or models: attribute, name in JSON, list item, model."""
    found: list[tuple[str, str, Any, Any]] = []
    for attribute, field in model.model_fields.items():
        name = field.serialization_alias or attribute
        if get_origin(field.annotation) is list:
            found.append((attribute, name, get_args(field.annotation)[0], None))
            continue
        for one in (field.annotation, *get_args(field.annotation)):
            if isinstance(one, type) and issubclass(one, BaseModel):
                found.append((attribute, name, None, one))
    return tuple(found)


def _lists(model: type[BaseModel], view: Any) -> Iterator[_List]:
    """The lists of items that have no lists themselves, in the order of the answer."""
    for attribute, name, item, inner in _members(model):
        value = getattr(view, attribute)
        if inner is not None:
            if value is not None:
                yield from _lists(inner, value)
        elif isinstance(item, type) and issubclass(item, BaseModel) and _members(item):
            for one in value:
                yield from _lists(item, one)
        else:
            yield _List(name, item, value)


def _emptied(view: Any, names: set[str]) -> Any:
    """The view with nothing in these lists."""
    changes: dict[str, Any] = {}
    for field in fields(view):
        value = getattr(view, field.name)
        if field.name in names and isinstance(value, tuple):
            changes[field.name] = ()
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            changes[field.name] = tuple(_emptied(one, names) for one in value)
        elif is_dataclass(value):
            changes[field.name] = _emptied(value, names)
    return replace(view, **changes)
