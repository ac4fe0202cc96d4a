"""From decoded JSON to the dataclasses of `wire.py`.

Unknown fields are ignored and missing optional fields are None, so that a newer service can talk
to an older client (the contract, *FlowChangeUpdate*). An answer that does not follow the contract
raises `BadAnswer`, which counts as temporary: it may come from a proxy in between.

**Limits.** The address may be wrong, and a proxy or a stranger may answer. Whatever comes, a call
ends with a result or an exception of ours, and needs a bounded amount of memory. What exceeds a
limit is a `BadAnswer`, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, NoReturn, TypeVar

from counterpoise.errors import BadAnswer, InvalidToken
from counterpoise.wire import (
    AuditItem,
    Bound,
    FlowSummary,
    Handoff,
    Heartbeat,
    HeldBack,
    Json,
    Key,
    LineageNode,
    LogAccess,
    LogView,
    MadeKey,
    Move,
    Page,
    Partition,
    Queue,
    Rebalance,
    RebalanceStatus,
    Result,
    Results,
    Update,
    UpdatePartition,
)

T = TypeVar("T")

# Far above the longest answer, the view of a flow that owns all 4,096 partitions.
MOST_ANSWER_BYTES = 64 * 1024 * 1024
# The contract's documents nest four deep.
MOST_DEPTH = 32
MOST_LISTED = 1_000_000
# A listing may show a caller few items of each page.
MOST_PAGES = 10_000
MOST_CURSOR_CHARACTERS = 2_000

_NUMBER = re.compile(r"[0-9]{1,100}")
_TOKEN = re.compile(r"[!-~]{1,8192}")


class Content:
    """The body of one answer, collected piece by piece."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        """Raises BadAnswer for a body that is announced as too long, or compressed.

        No call asks for compression: a few bytes could become any number.
        """
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise BadAnswer("the answer is compressed, which was not asked for")
        announced = headers.get("content-length", "")
        if _NUMBER.fullmatch(announced) and float(announced) > MOST_ANSWER_BYTES:
            raise _too_long()
        self._bytes = bytearray()

    def add(self, chunk: bytes) -> None:
        """Raises BadAnswer when it gets too long."""
        if len(self._bytes) + len(chunk) > MOST_ANSWER_BYTES:
            raise _too_long()
        self._bytes += chunk

    def all(self) -> bytes:
        return bytes(self._bytes)


def json_of(text: str | bytes) -> Any:
    """The decoded JSON. Raises ValueError if it is none, and for what nests too deeply."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise _too_deep() from None
    # Most answers have so few brackets that they cannot be deep; to count them takes no time.
    if _brackets(text) > MOST_DEPTH and not _is_shallow(value):
        raise _too_deep()
    return value


@dataclass(frozen=True)
class Parts(Generic[T]):
    """Items that may be divided: the last of a page goes on as the first of the next."""

    goes_on: Callable[[T], bool]
    joined: Callable[[T, T], T]


class Listed(Generic[T]):
    """The items of a listing, page by page."""

    def __init__(self, max_items: int | None, parts: Parts[T] | None = None) -> None:
        self._max_items = max_items
        self._parts = parts
        self._cursors: set[str] = set()
        self.items: list[T] = []
        self.cursor: str | None = None

    def add(self, page: Page[T]) -> bool:
        """Take a page; whether to ask for another, after `cursor`. Raises BadAnswer."""
        items = page.items
        if self._parts is not None and self._goes_on() and items:
            self.items[-1], items = self._parts.joined(self.items[-1], items[0]), items[1:]
        self.items.extend(items)
        self.cursor = page.next_cursor
        if self._max_items is not None and len(self.items) >= self._max_items:
            del self.items[self._max_items :]
            if not self._goes_on():
                return False
        if self.cursor is None:
            return False
        if self.cursor in self._cursors:
            raise BadAnswer("the pages of the listing go in a circle")
        self._cursors.add(self.cursor)
        if len(self._cursors) >= MOST_PAGES or len(self.items) > MOST_LISTED:
            raise BadAnswer(f"the listing does not end: {len(self.items)} items so far")
        return True

    def _goes_on(self) -> bool:
        """Whether the last item has another part."""
        return self._parts is not None and bool(self.items) and self._parts.goes_on(self.items[-1])


def is_token(text: str) -> bool:
    """Whether a header can carry it: visible ASCII characters, without a blank or a line end."""
    return _TOKEN.fullmatch(text) is not None


def checked_token(text: str | None) -> str | None:
    """The token without blanks and line ends around it (files end with one); None for an empty one.

    Raises InvalidToken, which does not show it.
    """
    token = (text or "").strip()
    if not token:
        return None
    if not is_token(token):
        raise InvalidToken(
            "the token contains a character that a header cannot carry (a blank, a line end or one "
            "beyond ASCII), or is too long: give it exactly as it was handed out"
        )
    return token


def _brackets(text: str | bytes) -> int:
    if isinstance(text, str):
        return text.count("{") + text.count("[")
    return text.count(b"{") + text.count(b"[")


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return True
    return False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _too_long() -> BadAnswer:
    return BadAnswer(f"the answer is longer than {MOST_ANSWER_BYTES} bytes")


def _too_deep() -> ValueError:
    return ValueError(f"it nests more than {MOST_DEPTH} deep")


def reading(parse: Callable[[Json], T]) -> Callable[[Any], T]:
    """`parse` for bodies of unknown shape: an error of `parse` becomes `BadAnswer`."""

    def read(body: Any) -> T:
        if not isinstance(body, Mapping):
            raise BadAnswer(f"expected a JSON object, got {type(body).__name__}")
        try:
            return parse(body)
        except KeyError as missing:
            raise BadAnswer(f"the answer lacks {missing}") from None
        except (TypeError, ValueError, AttributeError, OverflowError) as wrong:
            raise BadAnswer(f"the answer is not what the contract says: {wrong}") from None

    return read


def page_of(parse: Callable[[Json], T]) -> Callable[[Any], Page[T]]:
    """A parser of pages from a parser of items."""

    def parse_page(body: Json) -> Page[T]:
        cursor = body.get("next_cursor")
        if cursor is not None and not _is_cursor(cursor):
            raise ValueError("the cursor of the next page is none")
        return Page(tuple(parse(item) for item in body["items"]), cursor)

    return reading(parse_page)


def _is_cursor(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MOST_CURSOR_CHARACTERS


def time_of(text: str | None) -> datetime | None:
    """An RFC 3339 time; raises ValueError if it has no zone, because it would be ambiguous."""
    if text is None:
        return None
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"a time without its zone: {text}")
    return time


def _needed_time(text: str) -> datetime:
    time = time_of(text)
    if time is None:
        raise ValueError("a time is missing")
    return time


def _numbers(values: Iterable[Any] | None) -> tuple[int, ...]:
    return tuple(int(value) for value in values or ())


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _texts(values: Iterable[Any] | None) -> tuple[str, ...]:
    return tuple(str(value) for value in values or ())


def queue(body: Json) -> Queue:
    count = int(body.get("partition_count") or 0)
    return Queue(
        name=str(body["name"]),
        id=str(body["id"]),
        partition_count=count,
        operational_partition_count=int(body.get("operational_partition_count", count)),
        access_type=str(body["access_type"]),
        rebalance_delay=float(body["rebalance_delay"]),
        max_handoff_time=float(body["max_handoff_time"]),
        max_warmup_time=float(body["max_warmup_time"]),
        max_concurrent_handoffs=body.get("max_concurrent_handoffs"),
        log=str(body["log"]),
        start=str(body["start"]),
        retention_seconds=_float(body.get("retention_seconds")),
        retention_bytes=body.get("retention_bytes"),
        mirror_group=body.get("mirror_group"),
        rebalance_status=str(body["rebalance_status"]),
        scale_status=str(body["scale_status"]),
        flow_count=int(body["flow_count"]),
        active_flow_count=int(body["active_flow_count"]),
        revision=int(body["revision"]),
        created_at=time_of(body.get("created_at")),
        raw=dict(body),
    )


def partition(body: Json) -> Partition:
    return Partition(
        partition=int(body["partition"]),
        epoch=int(body["epoch"]),
        owner=_text(body.get("owner")),
        successor=_text(body.get("successor")),
        state=str(body["state"]),
        position=_text(body.get("position")),
        deadline=time_of(body.get("deadline")),
        end=_text(body.get("end")),
        lag=None if body.get("lag") is None else int(body["lag"]),
        lag_seconds=_float(body.get("lag_seconds")),
        cut=_text(body.get("cut")),
        reached_cut=bool(body.get("reached_cut") or False),
        waits_for=_numbers(body.get("waits_for")),
        key=_text(body.get("key")),
        parents=_texts(body.get("parents")),
        children=_texts(body.get("children")),
    )


def lineage_node(body: Json) -> LineageNode:
    return LineageNode(
        partition=int(body["partition"]),
        key=str(body["key"]),
        state=str(body["state"]),
        owner=_text(body.get("owner")),
        parents=_texts(body.get("parents")),
        children=_texts(body.get("children")),
        waits_for=_numbers(body.get("waits_for")),
    )


def flow_summary(body: Json) -> FlowSummary:
    owned = body["partitions"]
    return FlowSummary(
        flow_id=str(body["flow_id"]),
        client_name=str(body.get("client_name") or ""),
        instance_id=_text(body.get("instance_id")),
        active=bool(body["active"]),
        draining=bool(body["draining"]),
        partitions=owned if isinstance(owned, int) else len(owned),
        bound_at=time_of(body.get("bound_at")),
        lease_expires_at=time_of(body.get("lease_expires_at")),
        raw=dict(body),
        held_until=time_of(body.get("held_until")),
    )


def handoff(body: Json) -> Handoff:
    return Handoff(
        partition=int(body["partition"]),
        from_flow=_text(body.get("from")),
        to_flow=_text(body.get("to")),
        phase=str(body["phase"]),
        deadline=time_of(body.get("deadline")),
    )


def move(body: Json) -> Move:
    return Move(
        partition=int(body["partition"]),
        from_flow=_text(body.get("from")),
        to_flow=_text(body.get("to")),
        epoch=body.get("epoch"),
        outcome=str(body["outcome"]),
        seconds=body.get("seconds"),
        reason=_text(body.get("reason")),
        silent_seconds=body.get("silent_seconds"),
    )


def rebalance(body: Json) -> Rebalance:
    return Rebalance(
        id=body.get("id"),
        trigger=body.get("trigger"),
        started_at=time_of(body.get("started_at")),
        finished_at=time_of(body.get("finished_at")),
        handoffs=int(body.get("handoffs", 0)),
        forced=int(body.get("forced", 0)),
        granted=int(body.get("granted", 0)),
        moves=tuple(move(item) for item in body.get("moves") or ()),
        triggered_at=time_of(body.get("triggered_at")),
        why=_text(body.get("why")),
        clients={str(id): str(name) for id, name in (body.get("clients") or {}).items()},
        more_moves=int(body.get("more_moves", 0)),
        raw=body,
    )


def joined(one: Rebalance, following: Rebalance) -> Rebalance:
    """An entry of the history with further moves."""
    moves = [*(one.raw.get("moves") or ()), *(following.raw.get("moves") or ())]
    clients = {**one.clients, **following.clients}
    return replace(
        following,
        moves=(*one.moves, *following.moves),
        clients=clients,
        raw={**following.raw, "moves": moves, "clients": clients},
    )


def audit_item(body: Json) -> AuditItem:
    return AuditItem(
        id=int(body["id"]),
        at=time_of(body.get("at")),
        call=str(body["call"]),
        queue=_text(body.get("queue")),
        flow_id=_text(body.get("flow_id")),
        key_id=_text(body.get("key_id")),
        key_name=_text(body.get("key_name")),
        address=_text(body.get("address")),
        before=body.get("before"),
        after=body.get("after"),
        raw=body,
    )


def key(body: Json) -> Key:
    return Key(
        id=str(body["id"]),
        name=str(body.get("name") or ""),
        role=str(body["role"]),
        queues=tuple(map(str, body["queues"])),
        created_at=time_of(body.get("created_at")),
        ends_at=time_of(body.get("ends_at")),
        revoked_at=time_of(body.get("revoked_at")),
        last_used_at=time_of(body.get("last_used_at")),
        state=str(body["state"]),
    )


def made_key(body: Json) -> MadeKey:
    return MadeKey(**vars(key(body)), key=str(body["key"]), is_first=bool(body["is_first"]))


def rebalance_status(body: Json) -> RebalanceStatus:
    last, held = body.get("last_rebalance"), body.get("held_back")
    return RebalanceStatus(
        queue=str(body["queue"]),
        status=str(body["status"]),
        revision=int(body["revision"]),
        trigger=body.get("trigger"),
        since=time_of(body.get("since")),
        holddown_until=time_of(body.get("holddown_until")),
        handoffs=tuple(handoff(item) for item in body.get("handoffs") or ()),
        unassigned=_numbers(body.get("unassigned")),
        spread=int(body.get("spread") or 0),
        last_rebalance=rebalance(last) if last is not None else None,
        raw=dict(body),
        held_back=HeldBack(int(held["flows"]), time_of(held.get("until"))) if held else None,
    )


def _update_partition(body: Json) -> UpdatePartition:
    return UpdatePartition(
        partition=int(body["partition"]),
        epoch=int(body["epoch"]),
        state=str(body["state"]),
        position=_text(body.get("position")),
        handed_over=_text(body.get("handed_over")),
        deadline=time_of(body.get("deadline")),
        key=_text(body.get("key")),
        parents=_texts(body.get("parents")),
        cut=_text(body.get("cut")),
        reached_cut=bool(body.get("reached_cut") or False),
        waits_for=_numbers(body.get("waits_for")),
    )


def update(body: Json) -> Update:
    return Update(
        queue=str(body["queue"]),
        flow_id=str(body["flow_id"]),
        revision=int(body["revision"]),
        active=bool(body["active"]),
        draining=bool(body["draining"]),
        now=_needed_time(body["now"]),
        partitions=tuple(_update_partition(item) for item in body["partitions"]),
        resize=int(body["resize"]) if body.get("resize") is not None else None,
        held_until=time_of(body.get("held_until")),
    )


def log_access(body: Json | None) -> LogAccess | None:
    if body is None:
        return None
    return LogAccess(url=str(body["url"]), expires_at=time_of(body.get("expires_at")))


def log_view(body: Json) -> LogView:
    return LogView(
        log=str(body["log"]),
        partition_count=int(body["partition_count"]),
        start=str(body["start"]),
        access=log_access(body.get("access")),
        log_name=_text(body.get("log_name")),
    )


def bound(body: Json) -> Bound:
    if not is_token(str(body["flow_token"])):
        raise ValueError("the flow's token cannot be sent in a header")
    return Bound(
        flow_id=str(body["flow_id"]),
        flow_token=str(body["flow_token"]),
        lease_seconds=float(body["lease_seconds"]),
        log=str(body["log"]),
        start=str(body["start"]),
        update=update(body["update"]),
        log_access=log_access(body.get("log_access")),
        queue_id=_text(body.get("queue_id")),
    )


def heartbeat(body: Json) -> Heartbeat:
    return Heartbeat(time_of(body.get("lease_expires_at")), int(body["revision"]))


def results(body: Json) -> Results:
    view = body.get("update")
    return Results(
        results=tuple(
            Result(
                partition=int(item["partition"]),
                outcome=str(item["outcome"]),
                current_epoch=item.get("current_epoch"),
            )
            for item in body["results"]
        ),
        update=update(view) if view is not None else None,
    )
