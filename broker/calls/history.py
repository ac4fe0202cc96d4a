"""The history of a queue, for people: each rebalance, what led to it, and why in plain words.

An entry of the history is a rebalance, or grants outside of one (rules 3, 7 and 12). Its *causes*
are the changes that led to it:

* those of the decision that began it, or that began the holddown before it;
* those that came during that holddown and during the rebalance itself, because they changed its
  plan.

What changed nothing (a standby that bound while the queue was Ready) is no cause.

A flow is named by the client that bound it, also when it is gone: its row is kept as long as the
history.

`why` writes the causes as a sentence: `etl-3 bound; etl-1 was silent for its lease`. The names are
those of clients, in the order in which things happened. A client that left and came back is said to
have come back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import json, structs

from broker.calls.times import time_of
from broker.core import records as r
from broker.core.model import Rebalance
from broker.core.records import Entry
from broker.core.stored import ShownEntry, understood
from broker.store.ports import NamedFlow
from counterpoise import wire

# Clients that are named; the others are counted.
MOST_CAUSES_NAMED = 3

_LEFT = {
    "unbound": "left",
    "lease_expired": "did not renew the lease",
    "driver_lost": "lost the Spark driver, which was killed",
    "key_ended": "left, because the key ended",
    "restored": "left, because the service was restored from a backup",
}
# Where nothing more is known: the changes are not stored any more.
_TRIGGER_WORDS = {
    "bind": "a consumer bound",
    "unbind": "a consumer left",
    "lease_expired": "a consumer did not renew the lease",
    "driver_lost": "a consumer lost its Spark driver, which was killed",
    "resize": "the queue was resized",
    "access_type": "the access type was changed",
    "drain": "a consumer was drained",
    "admin": "an administrator asked for a rebalance",
    "replaced": "a consumer came back",
    "lineage": "partitions were split, merged or finished",
    "pin": "a partition was pinned",
    "unpin": "a partition was unpinned",
}
# The causes of one entry that are shown; the rest is counted.
MOST_CAUSES = 100
NONE_PASSED: Mapping[int, int] = {}
_TRIGGERS = ("partition_count", "access_type")


def why(trigger: str, causes: Sequence[wire.Cause]) -> str:
    """One line. `trigger` as in the contract, `causes` in the order in which they happened."""
    happened: dict[str, list[str]] = {}
    for said, client in _events(causes):
        clients = happened.setdefault(said, [])
        if client not in clients:
            clients.append(client)
    parts = [_sentence(said, clients) for said, clients in happened.items()]
    if trigger == "admin" or not parts:
        parts.insert(0, _TRIGGER_WORDS.get(trigger, trigger))
    return "; ".join(parts)


def _events(causes: Sequence[wire.Cause]) -> Iterable[tuple[str, str]]:
    """What was done, and by which client; no client: by nobody."""
    replaced = {
        cause.client_name for cause in causes if cause.type == "left" and cause.reason == "replaced"
    }
    for cause in causes:
        client = cause.client_name or _short(cause.flow_id)
        match cause.type:
            case "bound":
                yield ("started again" if cause.client_name in replaced else "bound"), client
            case "left" if cause.reason != "replaced":
                yield _LEFT.get(cause.reason or "", f"left ({cause.reason})"), client
            case "draining":
                yield "began to drain", client
            case "admitted":
                yield "joined, after it was held back", client
            case "changed":
                for name, value in (cause.settings or {}).items():
                    yield _changed(name, value), ""


def _changed(name: str, value: object) -> str:
    if name == "partition_count":
        return f"resized to {value} partition{'' if value == 1 else 's'}"
    return f"{name} was set to {value}"


def _sentence(said: str, clients: Sequence[str]) -> str:
    if clients == [""]:
        return said
    named = list(clients[:MOST_CAUSES_NAMED])
    others = len(clients) - len(named)
    if others:
        named.append(f"{others} other{'' if others == 1 else 's'}")
    listed = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    return f"{listed} {said}"


def _short(flow_id: str | None) -> str:
    """A flow whose client is not known any more."""
    return f"flow {(flow_id or '?')[:8]}"


@dataclass
class _Item:
    rebalance: Rebalance
    triggered_at: float
    causes: list[wire.Cause]
    # Of its moves those that are shown: after so many, at most so many.
    passed: int
    most: int
    moves: list[wire.Move] = field(default_factory=list)
    # When each of them ended.
    ended_at: list[float] = field(default_factory=list)
    more_moves: int = 0
    # The flows that the shown moves name.
    moved: set[str] = field(default_factory=set)


class History:
    """The rebalances in these entries of a queue, which are in the order of their revisions.

    Entries without a rebalance are those in between. An entry whose beginning is not stored any
    more is left out.
    """

    def __init__(
        self,
        entries: Iterable[ShownEntry | Entry] = (),
        *,
        most_moves: int = sys.maxsize,
        passed: Mapping[int, int] = NONE_PASSED,
    ) -> None:
        """`most_moves`: so many of each rebalance are kept. `passed`: after so many, by its id."""
        self._most_moves = most_moves
        self._passed = passed
        self._items: dict[int, _Item] = {}
        # What has changed since the trigger, or in the present decision of a Ready queue.
        self._causes: list[wire.Cause] = []
        self._triggered_at: float | None = None
        self._rebalancing: int | None = None
        self._decided_at: float | None = None
        self.add(entries)

    def add(self, entries: Iterable[ShownEntry | Entry]) -> None:
        """The next entries."""
        for entry in entries:
            self._add(entry)

    @property
    def flow_ids(self) -> list[str]:
        """The flows that it names."""
        named: set[str] = set()
        for item in self._items.values():
            named |= item.moved
            named.update(cause.flow_id for cause in item.causes if cause.flow_id is not None)
        return sorted(named)

    def views(self, flows: Mapping[str, NamedFlow]) -> list[wire.Rebalance]:
        """Newest first; `flows` by id."""
        return [_view(self._items[id], flows) for id in sorted(self._items, reverse=True)]

    def _add(self, entry: ShownEntry | Entry) -> None:
        ready = self._triggered_at is None and self._rebalancing is None
        if ready and entry.at != self._decided_at:
            self._causes = []
        self._decided_at = entry.at
        for record in map(understood, entry.records):
            if record is None:
                continue
            causes = _causes(record, entry.at)
            if causes:
                self._causes += causes
                # A flow that is replaced leaves after the grants to its successor.
                item = self._items.get(entry.rebalance_id or self._rebalancing or 0)
                if item is not None:
                    item.causes += causes
                continue
            match record:
                case r.HolddownStarted():
                    self._triggered_at = record.at
                case r.HolddownSettled():
                    self._causes, self._triggered_at = [], None
                case r.RebalanceStarted(rebalance_id, trigger, at):
                    self._begin(Rebalance(rebalance_id, trigger, at))
                    self._rebalancing, self._triggered_at = rebalance_id, None
                case r.GrantedOutside(rebalance_id, trigger, at):
                    self._begin(Rebalance(rebalance_id, trigger, at, finished_at=at))
                case _:
                    if entry.rebalance_id in self._items:
                        _tally(self._items[entry.rebalance_id], record)
            if isinstance(record, r.RebalanceFinished):
                self._causes, self._rebalancing = [], None

    def _begin(self, rebalance: Rebalance) -> None:
        at = rebalance.started_at if self._triggered_at is None else self._triggered_at
        passed = self._passed.get(rebalance.id, 0)
        self._items[rebalance.id] = _Item(
            rebalance, at, list(self._causes), passed, self._most_moves
        )


def _causes(record: r.Record, at: float) -> Sequence[wire.Cause]:
    """The change as causes; none for records of what follows from changes."""
    match record:
        case r.FlowBound(held_until=None):
            return (cause(at, "bound", record.flow_id, record.client_name),)
        case r.FlowsAdmitted():
            return [cause(at, "admitted", flow_id) for flow_id in record.flow_ids]
        case r.FlowLeft():
            return (cause(at, "left", record.flow_id, reason=record.reason),)
        case r.FlowDraining():
            return (cause(at, "draining", record.flow_id),)
        case r.SettingsChanged():
            shown = {name: value for name, value in record.changes.items() if name in _TRIGGERS}
            return (cause(at, "changed", settings=shown),) if shown else ()
    return ()


def cause(
    at: float,
    type: str,
    flow_id: str | None = None,
    client_name: str | None = None,
    reason: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> wire.Cause:
    """A cause at this time, in Unix seconds."""
    return wire.Cause(time_of(at), type, flow_id, client_name, reason, settings)


def _tally(item: _Item, record: r.Record) -> None:
    known = item.rebalance
    match record:
        case r.Granted(grants, at):
            handoffs = sum(grant.by_handoff for grant in grants)
            item.rebalance = replace(
                known,
                handoffs=known.handoffs + handoffs,
                forced=known.forced + sum(grant.by_force for grant in grants),
                granted=known.granted + len(grants) - handoffs,
            )
            _move(item, at, map(_moved, grants))
        case r.PartitionsRemoved(_, ended, "discarded", at):
            discarded = (
                wire.Move(
                    one.partition,
                    one.owner,
                    one.successor,
                    one.epoch,
                    "discarded",
                    one.seconds,
                    None,
                    None,
                )
                for one in ended
            )
            _move(item, at, discarded)
        case r.RebalanceFinished(at):
            item.rebalance = replace(known, finished_at=at)


def _move(item: _Item, at: float, moves: Iterable[wire.Move]) -> None:
    for move in moves:
        if item.passed:
            item.passed -= 1
            continue
        if len(item.moves) >= item.most:
            item.more_moves += 1
            continue
        item.moves.append(move)
        item.ended_at.append(at)
        item.moved.update(id for id in (move.from_flow, move.to_flow) if id is not None)


def _moved(grant: r.Grant) -> wire.Move:
    reason = None
    if grant.handed_over == "forced":
        reason = "not_released" if grant.by_handoff else "positions_set"
    return wire.Move(
        grant.partition,
        grant.previous,
        grant.flow_id,
        grant.epoch,
        grant.handed_over,
        grant.seconds or 0.0,
        reason,
        None,
    )


def _silent_part(move: wire.Move, at: float, flows: Mapping[str, NamedFlow]) -> wire.Move:
    """The move with the part of its pause in which its owner was silent, until its lease ended."""
    owner = flows.get(move.from_flow or "")
    if owner is None or owner.expired_at is None:
        return move
    if move.outcome == "graceful" or move.reason == "not_released":
        return move
    silent = owner.expired_at - (at - move.seconds)
    return structs.replace(move, silent_seconds=round(min(max(0.0, silent), move.seconds), 6))


def _view(item: _Item, flows: Mapping[str, NamedFlow]) -> wire.Rebalance:
    names = {id: flow.client_name for id, flow in flows.items()}
    causes: Sequence[wire.Cause] = [
        structs.replace(cause, client_name=names.get(cause.flow_id, cause.client_name))
        if cause.flow_id is not None
        else cause
        for cause in item.causes
    ]
    known = item.rebalance
    return wire.Rebalance(
        id=known.id,
        trigger=known.trigger,
        started_at=time_of(known.started_at),
        finished_at=time_of(known.finished_at),
        handoffs=known.handoffs,
        forced=known.forced,
        granted=known.granted,
        moves=tuple(
            _silent_part(move, at, flows)
            for move, at in zip(item.moves, item.ended_at, strict=True)
        ),
        triggered_at=time_of(item.triggered_at),
        why=why(known.trigger, causes),
        causes=tuple(causes[:MOST_CAUSES]),
        more_causes=max(0, len(causes) - MOST_CAUSES),
        more_moves=item.more_moves,
        clients={id: names[id] for id in sorted(item.moved) if id in names},
    )


def within(view: wire.Rebalance, most_bytes: int) -> tuple[wire.Rebalance, int]:
    """The entry with as many of its moves as fit, and its size in bytes of JSON."""
    size = len(json.encode(view))
    while size > most_bytes and len(view.moves) > 1:
        moves = view.moves[: len(view.moves) // 2]
        flows = {id for move in moves for id in (move.from_flow, move.to_flow)}
        view = structs.replace(
            view,
            moves=moves,
            more_moves=view.more_moves + len(view.moves) - len(moves),
            clients={id: name for id, name in view.clients.items() if id in flows},
        )
        size = len(json.encode(view))
    return view, size
