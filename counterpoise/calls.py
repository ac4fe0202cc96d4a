"""Every call of the contract's table as data, and how to read its answer. No I/O here.

The blocking and the asyncio client (and the flow's shells) only send a `Call` and pass the answer
to `read_answer`; so no knowledge about a call is written twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, Literal, TypeAlias, TypeVar, overload
from urllib.parse import quote, urlsplit
from uuid import uuid4

from msgspec import Struct, field
from msgspec.structs import replace

from counterpoise import wire
from counterpoise.documents import Json, PartlyShown
from counterpoise.errors import BadAnswer, Invalid, InvalidSettings, error_of
from counterpoise.options import check_counts
from counterpoise.reading import Parts, joined, json_of, page_reader, reader
from counterpoise.wire import (
    ChildrenItem,
    ChildrenRequest,
    CommitItem,
    CommitRequest,
    Page,
    ReadyItem,
    ReadyRequest,
    ReleaseItem,
    ReleaseRequest,
)

T = TypeVar("T")
_OfItems: TypeAlias = CommitRequest | ReleaseRequest | ChildrenRequest | ReadyRequest

DEFAULT_URL = "http://127.0.0.1:8640"
PAGE_SIZE = 1000
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


class Call(PartlyShown, Generic[T], frozen=True):
    """One request. `path` is relative to the base path `/v1`.

    `parse` gets the decoded body (None for 204) and raises `BadAnswer`. `body` is a document of
    `wire.py`, or JSON. `token` replaces the client's own credential. `timeout_seconds`, if given,
    replaces the client's.
    """

    hidden = frozenset({"token"})

    method: str
    path: str
    parse: Callable[[Any], T]
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    token: str | None = None
    timeout_seconds: float | None = None


class Listing(Struct, Generic[T], frozen=True):
    """All pages of a listing: `page(cursor)` is the call for one; stop after `max_items`."""

    page: Callable[[str | None], Call[Page[T]]]
    max_items: int | None = None
    parts: Parts[T] | None = None


# `127.0.0.1:9200`, `localhost:9200`, with a path or without.
_ON_THIS_MACHINE = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?(/|$)", re.IGNORECASE)


# A name, in any script, or an address of IPv4 or IPv6, perhaps with a zone.
_HOST = re.compile(r"[\w.-]+|[0-9a-f:.]+(%[\w.-]+)?")


def base_url(url: str) -> str:
    """`url` as the root of all paths; raises `InvalidSettings`.

    An address of this machine needs no scheme. Elsewhere http:// has to be said, since tokens are
    readable on the way.
    The address is shown (in reprs, on Spark's pages, in messages), so it must not contain a secret,
    and the error does not repeat a part that may be one.
    """
    text = url.strip().rstrip("/")
    if _ON_THIS_MACHINE.match(text):
        text = f"http://{text}"
    if "@" in text:  # anywhere in the URL: a password with a / in it ends up in the path
        raise InvalidSettings(
            "the service's address must not have a user or password, since addresses are shown: "
            "give a token in COUNTERPOISE_TOKEN (or the argument token), and the address without"
        )
    has_query = bool({*"?#"} & {*text})
    shown = "this one (its query may hold a secret)" if has_query else repr(url)
    if "," in text or text.count("://") > 1:
        raise InvalidSettings(
            f"the service's address must be a single one, not {shown}: for several replicas give "
            "that of the load balancer before them"
        )
    try:
        parts = urlsplit(text)
        host, _port = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError:
        raise InvalidSettings(f"the service's address is not a URL: {shown}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidSettings(
            f"the service's address must be an http:// or https:// URL, not {shown}"
        )
    if not text.isprintable() or not _HOST.fullmatch(host):
        raise InvalidSettings(f"the service's address has a character that no address has: {shown}")
    if has_query:
        raise InvalidSettings(
            f"the service's address must not have a query or fragment: leave out what follows "
            f"{parts.scheme}://{parts.netloc}{parts.path}"
        )
    return text if parts.path.endswith("/v1") else f"{text}/v1"


def read_answer(call: Call[T], status: int, headers: Mapping[str, str], content: bytes) -> T:
    """The result of a call, or the exception that the answer means."""
    if status == 204:
        return call.parse(None)
    body: Any = None
    try:
        body = json_of(content) if content else None
    except ValueError:
        if 200 <= status < 300:
            raise BadAnswer(f"the answer to {call.method} {call.path} is not JSON") from None
    if 200 <= status < 300:
        return call.parse(body)
    # Gateways answer JSON with a number.
    is_problem = isinstance(body, Mapping) and isinstance(body.get("code"), str)
    raise error_of(status, body if is_problem else None, _retry_after(headers))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds in Retry-After; None for a date, because it needs the service's clock."""
    text = headers.get("retry-after", "")
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        sent = parsedate_to_datetime(headers.get("date", ""))
        return max(0.0, (parsedate_to_datetime(text) - sent).total_seconds())
    except (TypeError, ValueError):
        return None


def _nothing(_body: Any) -> None:
    return None


def _preview_if(dry_run: bool, call: Call[Any]) -> Call[Any]:
    """The call, or what asks for its preview."""
    if not dry_run:
        return call
    return replace(call, parse=reader(wire.Preview), query={**call.query, "dry_run": "true"})


def _segment(text: str) -> str:
    # HTTP clients remove a dot segment from the path.
    return quote(text, safe="").replace(".", "%2E") if set(text) == {"."} else quote(text, safe="")


def check_queue(name: object) -> None:
    """Raises Invalid for a name that no queue has."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Invalid(
            f"A queue's name is 1 to 200 of the characters A-Z a-z 0-9 . _ -, not {name!r}"
        )


def queue_path(name: str, rest: str = "") -> str:
    """Raises Invalid for a name that no queue has, which could be the path of another call."""
    check_queue(name)
    return f"/queues/{_segment(name)}{rest}"


def listing(
    path: str,
    item: type[T],
    max_items: int | None,
    query: Mapping[str, str],
    parts: Parts[T] | None = None,
) -> Listing[T]:
    """A list of items, page by page."""
    if max_items is not None:
        check_counts(0, max_items=max_items)
    read = page_reader(item)
    limit = PAGE_SIZE if max_items is None else max(1, min(PAGE_SIZE, max_items))

    def page(cursor: str | None) -> Call[Page[T]]:
        asked = {**query, "limit": str(limit)}
        if cursor is not None:
            asked["cursor"] = cursor
        return Call("GET", path, read, query=asked)

    return Listing(page, max_items, parts)


# ------------------------------------------------------------------ queues


def queues(max_items: int | None = None) -> Listing[wire.Queue]:
    """All queues, by name."""
    return listing("/queues", wire.Queue, max_items, {})


def create_queue(
    name: str, partition_count: int | None = None, **settings: Any
) -> Call[wire.Queue]:
    """Create a queue; `settings` as in the contract, *Queue*. May be repeated.

    Raises `QueueExists` if one with other settings is there; `Invalid`.
    """
    body: dict[str, Any] = {"name": name, **settings}
    if partition_count is not None:
        body["partition_count"] = partition_count
    return Call("POST", "/queues", reader(wire.Queue), body=body)


def queue(name: str) -> Call[wire.Queue]:
    """One queue. Raises `QueueNotFound`, as all the following do."""
    return Call("GET", queue_path(name), reader(wire.Queue))


@overload
def change_queue(
    name: str, discard: bool = False, *, dry_run: Literal[False] = False, **settings: Any
) -> Call[wire.Queue]: ...
@overload
def change_queue(
    name: str, discard: bool = False, *, dry_run: Literal[True], **settings: Any
) -> Call[wire.Preview]: ...
def change_queue(
    name: str, discard: bool = False, *, dry_run: bool = False, **settings: Any
) -> Call[Any]:
    """Change settings; `partition_count` is the resize; `discard` removes surplus ones at once.

    Raises `Invalid`, `ResizeUnsettled`, `StateKept`.
    """
    query = {"discard": "true"} if discard else {}
    return _preview_if(
        dry_run, Call("PATCH", queue_path(name), reader(wire.Queue), query=query, body=settings)
    )


@overload
def delete_queue(
    name: str, force: bool = False, *, dry_run: Literal[False] = False
) -> Call[None]: ...
@overload
def delete_queue(
    name: str, force: bool = False, *, dry_run: Literal[True]
) -> Call[wire.Preview]: ...
def delete_queue(name: str, force: bool = False, *, dry_run: bool = False) -> Call[Any]:
    """Delete a queue. Raises `QueueInUse` while flows are bound, unless `force`."""
    return _preview_if(
        dry_run,
        Call("DELETE", queue_path(name), _nothing, query={"force": "true"} if force else {}),
    )


def rebalance_status(name: str) -> Call[wire.RebalanceStatus]:
    """The rebalance status of the queue, and its trigger."""
    return Call("GET", queue_path(name, "/rebalance"), reader(wire.RebalanceStatus))


def measurements(name: str) -> Call[wire.Measurements]:
    """The last hour of the queue: lag and rates, and how soon after publishing it commits."""
    return Call("GET", queue_path(name, "/measurements"), reader(wire.Measurements))


@overload
def rebalance_now(name: str, *, dry_run: Literal[False] = False) -> Call[wire.RebalanceStatus]: ...
@overload
def rebalance_now(name: str, *, dry_run: Literal[True]) -> Call[wire.Preview]: ...
def rebalance_now(name: str, *, dry_run: bool = False) -> Call[Any]:
    """Rebalance at once, skipping the holddown."""
    return _preview_if(
        dry_run, Call("POST", queue_path(name, "/rebalance"), reader(wire.RebalanceStatus))
    )


@overload
def pause_queue(
    name: str,
    until: datetime | None = None,
    seconds: float | None = None,
    reason: str | None = None,
    *,
    dry_run: Literal[False] = False,
) -> Call[wire.PausedQueue]: ...
@overload
def pause_queue(
    name: str,
    until: datetime | None = None,
    seconds: float | None = None,
    reason: str | None = None,
    *,
    dry_run: Literal[True],
) -> Call[wire.Preview]: ...
def pause_queue(
    name: str,
    until: datetime | None = None,
    seconds: float | None = None,
    reason: str | None = None,
    *,
    dry_run: bool = False,
) -> Call[Any]:
    """Pause all partitions of a queue, until it is resumed.

    `until`, with a time zone, or `seconds` from now: when the pause ends by itself. Raises
    `Invalid`.
    """
    return _preview_if(dry_run, _pause(queue_path(name, "/pause"), until, seconds, reason))


@overload
def resume_queue(name: str, *, dry_run: Literal[False] = False) -> Call[wire.PausedQueue]: ...
@overload
def resume_queue(name: str, *, dry_run: Literal[True]) -> Call[wire.Preview]: ...
def resume_queue(name: str, *, dry_run: bool = False) -> Call[Any]:
    """End the pause of the whole queue; partitions with a pause of their own stay paused."""
    return _preview_if(dry_run, Call("POST", queue_path(name, "/resume"), reader(wire.PausedQueue)))


@overload
def pause_partition(
    name: str,
    partition: int,
    until: datetime | None = None,
    seconds: float | None = None,
    reason: str | None = None,
    *,
    dry_run: Literal[False] = False,
) -> Call[wire.PausedQueue]: ...
@overload
def pause_partition(
    name: str,
    partition: int,
    until: datetime | None = None,
    seconds: float | None = None,
    reason: str | None = None,
    *,
    dry_run: Literal[True],
) -> Call[wire.Preview]: ...
def pause_partition(
    name: str,
    partition: int,
    until: datetime | None = None,
    seconds: float | None = None,
    reason: str | None = None,
    *,
    dry_run: bool = False,
) -> Call[Any]:
    """Pause one partition, whoever owns it; otherwise as `pause_queue`."""
    return _preview_if(
        dry_run, _pause(queue_path(name, f"/partitions/{partition}/pause"), until, seconds, reason)
    )


@overload
def resume_partition(
    name: str, partition: int, *, dry_run: Literal[False] = False
) -> Call[wire.PausedQueue]: ...
@overload
def resume_partition(
    name: str, partition: int, *, dry_run: Literal[True]
) -> Call[wire.Preview]: ...
def resume_partition(name: str, partition: int, *, dry_run: bool = False) -> Call[Any]:
    """End the pause of a partition; while the whole queue is paused it stays paused."""
    path = queue_path(name, f"/partitions/{partition}/resume")
    return _preview_if(dry_run, Call("POST", path, reader(wire.PausedQueue)))


@overload
def pin_partition(
    name: str,
    partition: int,
    client_name: str,
    reason: str | None = None,
    *,
    dry_run: Literal[False] = False,
) -> Call[wire.PinnedQueue]: ...
@overload
def pin_partition(
    name: str,
    partition: int,
    client_name: str,
    reason: str | None = None,
    *,
    dry_run: Literal[True],
) -> Call[wire.Preview]: ...
def pin_partition(
    name: str,
    partition: int,
    client_name: str,
    reason: str | None = None,
    *,
    dry_run: bool = False,
) -> Call[Any]:
    """Pin a partition to the consumer of this name; it moves there while that is bound.

    Raises `Invalid`.
    """
    path = queue_path(name, f"/partitions/{partition}/pin")
    body = wire.PinRequest(client_name, reason)
    return _preview_if(dry_run, Call("POST", path, reader(wire.PinnedQueue), body=body))


@overload
def unpin_partition(
    name: str, partition: int, *, dry_run: Literal[False] = False
) -> Call[wire.PinnedQueue]: ...
@overload
def unpin_partition(name: str, partition: int, *, dry_run: Literal[True]) -> Call[wire.Preview]: ...
def unpin_partition(name: str, partition: int, *, dry_run: bool = False) -> Call[Any]:
    """End the pin of a partition: it is balanced like others."""
    path = queue_path(name, f"/partitions/{partition}/unpin")
    return _preview_if(dry_run, Call("POST", path, reader(wire.PinnedQueue)))


def _pause(
    path: str, until: datetime | None, seconds: float | None, reason: str | None
) -> Call[wire.PausedQueue]:
    body = wire.PauseRequest(until, seconds, reason)
    return Call("POST", path, reader(wire.PausedQueue), body=body)


def partitions(name: str, max_items: int | None = None) -> Listing[wire.Partition]:
    """All partitions, by number."""
    return listing(queue_path(name, "/partitions"), wire.Partition, max_items, {})


def flows(name: str, max_items: int | None = None) -> Listing[wire.FlowSummary]:
    """All bound flows, in the order of binding."""
    return listing(queue_path(name, "/flows"), wire.FlowSummary, max_items, {})


def rebalances(
    name: str, max_items: int | None = 20, *, moves: bool = True
) -> Listing[wire.Rebalance]:
    """The last rebalances and grants outside rebalances, newest first, with their `moves`."""
    path = queue_path(name, "/rebalances")
    if not moves:
        return listing(path, wire.Rebalance, max_items, {})
    parts = Parts[wire.Rebalance](lambda one: one.more_moves > 0, joined)
    return listing(path, wire.Rebalance, max_items, {"moves": "true"}, parts)


def audit(queue: str | None = None, max_items: int | None = 100) -> Listing[wire.AuditItem]:
    """The administrative calls on queues that the key is for, newest first; `queue`: of one."""
    query = {} if queue is None else {"queue": queue}
    return listing("/audit", wire.AuditItem, max_items, query)


def list_keys(everything: bool = False, max_items: int | None = None) -> Listing[wire.Key]:
    """The keys for queues of our key; `everything`: also those that were revoked or have ended."""
    return listing("/keys", wire.Key, max_items, {"all": "true"} if everything else {})


def create_key(
    role: str, queues: Sequence[str] = ("*",), name: str = "", ends_at: datetime | None = None
) -> Call[wire.MadeKey]:
    """Make a key for the queues that match one of the patterns. `ends_at` has a time zone."""
    body = wire.NewKey(role, (*queues,), name, ends_at)
    return Call("POST", "/keys", reader(wire.MadeKey), body=body)


def revoke_key(key_id: str) -> Call[wire.Key]:
    """Revoke a key, for good. Harmless when repeated."""
    return Call("DELETE", f"/keys/{quote(key_id, safe='')}", reader(wire.Key))


def set_positions(
    name: str,
    to: Mapping[int, str | None] | Literal["earliest", "latest"] | datetime,
    dry_run: bool = False,
) -> Call[Any]:
    """Set positions: an end of the log, a time, or a position each. Raises the epochs.

    `dry_run`: says what would be read again or skipped.
    """
    if isinstance(to, (str, datetime)):
        body = wire.PositionsRequest(to)
    else:
        body = wire.PositionsRequest(positions={str(number): at for number, at in to.items()})
    return Call(
        "POST",
        queue_path(name, "/positions"),
        lambda answer: answer,
        query={"dry_run": "true"} if dry_run else {},
        body=body,
    )


def dead_letter(
    queue: str, partition: int, position: str, to: str, dry_run: bool = False
) -> Call[wire.Letter]:
    """Store a message as a dead letter in the queue `to`, once, and pass it.

    For one that a consumer has quarantined, or at which it has halted. Repeat a call without an
    answer.
    """
    return Call(
        "POST",
        queue_path(queue, f"/partitions/{partition}/dead-letter"),
        reader(wire.Letter),
        query={"dry_run": "true"} if dry_run else {},
        body=wire.DeadLetterRequest(position, to),
    )


def redrive(
    queue: str, to: str | None = None, max_messages: int = 100, dry_run: bool = False
) -> Call[wire.Redrive]:
    """Send dead letters that wait in a queue back to where they come from, or `to` one queue.

    At most 100 a call. Repeat a call without an answer.
    """
    return Call(
        "POST",
        queue_path(queue, "/redrive"),
        reader(wire.Redrive),
        query={"dry_run": "true"} if dry_run else {},
        body=wire.RedriveRequest(to, max_messages),
    )


def log_access(
    name: str,
    purpose: Literal["read", "publish"],
    *,
    refused: bool = False,
    flow_token: str | None = None,
) -> Call[wire.LogView]:
    """The queue's log: address, partition count and, if there are any, credentials.

    `refused`: the log refused the last ones. With `flow_token` they are the flow's own.
    """
    body = wire.LogAccessRequest(purpose, refused)
    read = reader(wire.LogView)
    return Call("POST", queue_path(name, "/log-access"), read, body=body, token=flow_token)


# ------------------------------------------------------------------ flows


def bind(
    queue: str,
    client_name: str,
    instance_id: str | None = None,
    lease_seconds: float | None = None,
    warmup: bool = False,
    binder: str | None = None,
    attempt: int = 0,
    at_once: bool = False,
    keeps_state: bool = False,
    weight: int = 1,
    max_partitions: int | None = None,
) -> Call[wire.Bound]:
    """Bind a flow. The same `instance_id` bound again takes the place of the earlier flow.

    `instance_id` None: a random one, so that a call that is sent again leaves no second flow. A
    late bind with a lower `attempt` of the same `binder` is refused (`Overtaken`). The others are
    those of `Flow`; `StateKept` also beside another consumer with state. `weight` and
    `max_partitions` are refused (`Invalid`) where the queue does not allow them.
    """
    body = wire.BindRequest(
        client_name,
        str(uuid4()) if instance_id is None else instance_id,
        wire.LEASE_SECONDS if lease_seconds is None else lease_seconds,
        warmup,
        binder,
        attempt,
        at_once,
        keeps_state,
        weight,
        max_partitions,
    )
    return Call("POST", queue_path(queue, "/flows"), reader(wire.Bound), body=body)


def flow_path(queue: str, flow_id: str, rest: str = "") -> str:
    return queue_path(queue, f"/flows/{_segment(flow_id)}{rest}")


@overload
def unbind(
    queue: str,
    flow_id: str,
    flow_token: str | None = None,
    reason: str | None = None,
    *,
    dry_run: Literal[False] = False,
) -> Call[None]: ...
@overload
def unbind(
    queue: str,
    flow_id: str,
    flow_token: str | None = None,
    reason: str | None = None,
    *,
    dry_run: Literal[True],
) -> Call[wire.Preview]: ...
def unbind(
    queue: str,
    flow_id: str,
    flow_token: str | None = None,
    reason: str | None = None,
    *,
    dry_run: bool = False,
) -> Call[Any]:
    """Unbind a flow; may be repeated. An administrator sends no token. `reason`: `driver_lost`."""
    query = {} if reason is None else {"reason": reason}
    return _preview_if(
        dry_run, Call("DELETE", flow_path(queue, flow_id), _nothing, query=query, token=flow_token)
    )


def poll(
    queue: str,
    flow_id: str,
    flow_token: str,
    after: int,
    wait_seconds: float,
    grace_seconds: float = 5.0,
) -> Call[wire.Update | None]:
    """The flow's view once its revision is above `after`, or None after `wait_seconds`.

    Renews the lease when it arrives. The client waits `grace_seconds` longer for the answer.
    """
    read = reader(wire.Update)
    return Call(
        "GET",
        flow_path(queue, flow_id, "/updates"),
        lambda body: None if body is None else read(body),
        query={"after": str(after), "wait": f"{wait_seconds:.3f}"},
        token=flow_token,
        timeout_seconds=wait_seconds + grace_seconds,
    )


def heartbeat(queue: str, flow_id: str, flow_token: str) -> Call[wire.Heartbeat]:
    """Renew the lease."""
    read = reader(wire.Heartbeat)
    return Call("POST", flow_path(queue, flow_id, "/heartbeat"), read, token=flow_token)


def _results_call(
    queue: str, flow_id: str, flow_token: str, verb: str, body: _OfItems
) -> Call[wire.Results]:
    read, count = reader(wire.Results), len(body.partitions)

    def parse(answer: Any) -> wire.Results:
        results = read(answer)
        if len(results.results) != count:
            raise BadAnswer(f"{count} partitions named, {len(results.results)} results")
        return results

    return Call("POST", flow_path(queue, flow_id, f"/{verb}"), parse, body=body, token=flow_token)


def commit(
    queue: str,
    flow_id: str,
    flow_token: str,
    items: Sequence[CommitItem],
    seq: int | None = None,
) -> Call[wire.Results]:
    """Commit positions. One outcome for each item; a bad item does not affect the others."""
    return _results_call(queue, flow_id, flow_token, "commit", CommitRequest((*items,), seq))


def release(
    queue: str,
    flow_id: str,
    flow_token: str,
    items: Sequence[ReleaseItem],
    seq: int | None = None,
) -> Call[wire.Results]:
    """Release partitions, committing their positions with it, atomically."""
    return _results_call(queue, flow_id, flow_token, "release", ReleaseRequest((*items,), seq))


def ready(
    queue: str, flow_id: str, flow_token: str, items: Sequence[ReadyItem]
) -> Call[wire.Results]:
    """The warm-ups of these partitions are done."""
    return _results_call(queue, flow_id, flow_token, "ready", ReadyRequest((*items,)))


@overload
def drain(
    queue: str,
    flow_id: str,
    flow_token: str | None = None,
    timeout_seconds: float | None = None,
    *,
    dry_run: Literal[False] = False,
) -> Call[wire.Update]: ...
@overload
def drain(
    queue: str,
    flow_id: str,
    flow_token: str | None = None,
    timeout_seconds: float | None = None,
    *,
    dry_run: Literal[True],
) -> Call[wire.Preview]: ...
def drain(
    queue: str,
    flow_id: str,
    flow_token: str | None = None,
    timeout_seconds: float | None = None,
    *,
    dry_run: bool = False,
) -> Call[Any]:
    """Begin to hand off all partitions of the flow. An administrator sends no token of it."""
    return _preview_if(
        dry_run,
        Call(
            "POST",
            flow_path(queue, flow_id, "/drain"),
            reader(wire.Update),
            body=wire.DrainRequest(timeout_seconds),
            token=flow_token,
        ),
    )


# ------------------------------------------------------------------ event streams


def events_path(name: str) -> str:
    """The path of the queue's event stream."""
    return queue_path(name, "/events")


# ------------------------------------------------------------------ lineage


def children(
    queue: str,
    flow_id: str,
    flow_token: str,
    items: Sequence[ChildrenItem],
    seq: int | None = None,
) -> Call[wire.Results]:
    """Report what comes after partitions, and finish them, atomically."""
    return _results_call(queue, flow_id, flow_token, "children", ChildrenRequest((*items,), seq))


def graph(name: str, max_items: int | None = None) -> Listing[wire.LineageNode]:
    """The partitions of a dynamic queue as a graph, by number. Raises `Invalid` for a fixed one."""
    return listing(queue_path(name, "/lineage"), wire.LineageNode, max_items, {})


@overload
def split_partition(
    queue: str, partition: int, at: str | None = None, *, dry_run: Literal[False] = False
) -> Call[Json]: ...
@overload
def split_partition(
    queue: str, partition: int, at: str | None = None, *, dry_run: Literal[True]
) -> Call[wire.Preview]: ...
def split_partition(
    queue: str, partition: int, at: str | None = None, *, dry_run: bool = False
) -> Call[Any]:
    """Split a partition: `at` is `middle`, `load`, or a hash as eight hexadecimal digits."""
    return _preview_if(
        dry_run,
        Call(
            "POST",
            queue_path(queue, f"/partitions/{partition}/split"),
            lambda answer: answer,
            body=wire.SplitRequest() if at is None else wire.SplitRequest(at),
        ),
    )


@overload
def merge_partitions(
    queue: str, partition: int, other: int, *, dry_run: Literal[False] = False
) -> Call[Json]: ...
@overload
def merge_partitions(
    queue: str, partition: int, other: int, *, dry_run: Literal[True]
) -> Call[wire.Preview]: ...
def merge_partitions(queue: str, partition: int, other: int, *, dry_run: bool = False) -> Call[Any]:
    """Merge two partitions whose ranges lie side by side."""
    return _preview_if(
        dry_run,
        Call(
            "POST",
            queue_path(queue, f"/partitions/{partition}/merge"),
            lambda answer: answer,
            body=wire.MergeRequest(other),
        ),
    )
