"""The documents of the HTTP API, each defined once.

A field without a default is in every answer, but may be null if its type has None. A field that has
its default is left out. `raw` is the whole answer, with the fields that are not known here. All
datetimes are aware, in UTC. Positions are opaque strings that only the log compares. Clients do not
check ranges and values of answers: a newer service may have others.

How it works
------------
The service makes its answers of them, and writes them with msgspec (`api.answers`); the client
makes them from JSON (`reading.py`). What calls take is written by the client (`calls.py`), and the
service checks it against its own schema in the OpenAPI document, ranges too (`api.requests`). That
document is made from them (`api.documents`) and from their docstrings: what comes before the list
describes a document, each item of the list a field. `said` adds examples and limits.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, field

from counterpoise.documents import Document, Json, Message, PartlyShown
from counterpoise.plain import DECEPTIVE

T = TypeVar("T")


def said(
    *examples: Any, description: str = "", always: bool = False, null: bool = True, **schema: Any
) -> Meta:
    """Examples of a field, its description, and keywords of JSON Schema.

    `always`: it is in every document and never null, whatever a program may make itself.
    `null` False: it is never null, and None of a program leaves it out.
    """
    if always:
        schema["x-always"] = True
    if always or not null:
        schema["x-not-null"] = True
    return Meta(
        description=description or None,
        examples=list(examples) or None,
        extra_json_schema=schema or None,
    )


# The most partitions that the service names of those for which another one waits.
MOST_WAITED_FOR = 10
# Characters of what is done above a position.
MOST_DONE_ABOVE = 4000
DONE_ABOVE_PATTERN = r"^[0-9]{1,19}\+[0-9]{1,19}(,[0-9]{1,19}\+[0-9]{1,19})*$"
# Characters of the reason of a pause or a pin.
MOST_REASON = 200
MOST_PARTITIONS = 4096
LEASE_SECONDS = 10.0
MOST_WEIGHT = 1000
# Of the first partitions of a dynamic queue, in a body of 64 KiB.
MOST_ROOTS = 1000
MOST_LETTERS = 100
MOST_CONDITIONS = 1000
MOST_TEXT_CHARACTERS = 300
# A pause for longer has no end of its own.
MOST_PAUSE_SECONDS = 315_360_000.0
MOST_INT32 = 2**31 - 1
MOST_INT64 = 2**63 - 1
# What a header can carry: visible ASCII characters, without a blank or a line end.
TOKEN_PATTERN = r"\A[!-~]{1,8192}\Z"
# What no text may contain that is shown to others, on terminals and pages.
_DECEPTIVE = rf"\x00-\x1f{DECEPTIVE}"
TEXT_PATTERN = rf"^[^{_DECEPTIVE}]+$"
QUEUE_NAME_PATTERN = r"^[A-Za-z0-9._-]{1,200}$"
POSITION_PATTERN = r"^[\x20-\x7e]+$"
_NAMES = r"[A-Za-z0-9._-]{1,200}(\+[A-Za-z0-9._-]{1,200}){0,7}"
ALIGNED_PATTERN = rf"^{_NAMES}$"
LOG_PATTERN = rf"^(builtin:{_NAMES}|[a-z][a-z0-9+.-]{{1,30}}://[^\s{_DECEPTIVE}]{{1,1000}})$"
# HTTP clients normalise `/queues/..`, so no request could name such a queue.
UNREACHABLE_NAMES = (".", "..")
EXAMPLE_TIME = "2026-11-20T10:00:00.250Z"
EXAMPLE_QUEUE_ID = "0198c0dc-11aa-7b02-8c41-5d0e9f6a7b8c"
EXAMPLE_FLOW = "0198c0de-7f2a-7c31-9d2f-0c5d7a1b2e3f"

# One without its zone would be ambiguous.
Time = Annotated[datetime, Meta(tz=True, examples=[EXAMPLE_TIME])]
Cursor = Annotated[str, Meta(min_length=1, max_length=2_000)]
QueueName = Annotated[
    str, said("flights", description="The name of the queue.", pattern=QUEUE_NAME_PATTERN)
]
PartitionNumber = Annotated[int, said(5, minimum=0, maximum=MOST_INT32)]
Epoch = Annotated[int, said(3, minimum=0, maximum=MOST_INT64)]
ShownPosition = Annotated[
    str, said("1042", description="An opaque string of the log. Null: see `start`.")
]
AccessType = Annotated[str, said(enum=["exclusive", "non_exclusive"])]
RebalanceDelay = Annotated[float, said(minimum=0.0, maximum=3600.0)]
MaxHandoffTime = Annotated[float, said(minimum=0.0, maximum=3600.0)]
MaxWarmupTime = Annotated[float, said(minimum=0.0, maximum=86400.0)]
MaxConcurrentHandoffs = Annotated[int, said(minimum=1, maximum=MOST_PARTITIONS)]
Start = Annotated[str, said(enum=["earliest", "latest"])]
RetentionSeconds = Annotated[float, said(minimum=0.0, maximum=315_360_000.0)]
RetentionBytes = Annotated[int, said(minimum=0, maximum=2**50)]
Partitioning = Annotated[str, said(enum=["fixed", "dynamic"])]
MirrorGroup = Annotated[
    Annotated[str, said(minLength=1, maxLength=249, pattern=POSITION_PATTERN)] | None,
    said("counterpoise.flights"),
]
AlignWith = Annotated[str, said("payments", pattern=ALIGNED_PATTERN)]
MaxWeight = Annotated[int, said(minimum=1, maximum=MOST_WEIGHT)]
RoleName = Annotated[str, said(enum=["viewer", "publisher", "consumer", "admin"])]
StatusName = Annotated[str, said(enum=["Ready", "Holddown", "Rebalancing"])]
PartitionState = Annotated[
    str,
    said(
        enum=["unassigned", "owned", "warming", "revoking", "retiring", "waiting", "finished"],
    ),
]
# Not an enumeration: a replica also shows what a newer one has stored.
Trigger = Annotated[
    str,
    said(
        "bind",
        description=(
            "`bind`, `unbind`, `lease_expired`, `driver_lost`, `resize`, `access_type`, `drain`, "
            "`admin`, `replaced`, `pin`, `unpin` or `lineage`; later versions may add others."
        ),
    ),
]
HeldUntil = Annotated[
    Time | None,
    said(
        description=(
            "Until then the flow is held back and gets no partitions, because its key has moved as "
            "much of the queue as it may in an hour; left out if it is not."
        )
    ),
]
Cut = Annotated[
    ShownPosition | None,
    said(
        description=(
            "Where an ordered resize that is not settled has cut the partition; left out if the "
            "partition neither waits nor is waited for."
        )
    ),
]
ReachedCut = Annotated[
    bool | None, said(description="With `cut`: everything before it is processed.")
]
DoneAboveText = Annotated[
    str | None,
    said(
        "1045+17,3+40",
        description=(
            "What is processed above the position: pairs of numbers, of which the first begins at "
            "its first number and each later one so far behind the end of the one before, and the "
            "second is how long it is. Left out: nothing."
        ),
        maxLength=MOST_DONE_ABOVE,
        pattern=DONE_ABOVE_PATTERN,
    ),
]
WaitsFor = Annotated[
    tuple[PartitionNumber, ...] | None,
    said(
        description=(
            "With `cut`: nothing at the cut or past it is processed before these partitions have "
            "reached theirs. The ten lowest; empty if it waits for none."
        )
    ),
]

# ------------------------------------------------------------------ queues


class Pause(Message, frozen=True):
    """An administrator holds a partition or the whole queue still.

    * `since`: When it was paused.
    * `until`: When the pause ends by itself; null: when it is resumed.
    * `reason`: The administrator's words; null without any.
    """

    since: Time
    until: Time | None
    reason: Annotated[str, said("the warehouse is restored", maxLength=MOST_REASON)] | None


Paused = Annotated[
    Pause | None,
    said(
        description=(
            "The pause of the partition or of its queue, of both the one that ends last: its owner "
            "reads nothing more of it; null: it is not paused."
        )
    ),
]


class Pin(Message, frozen=True):
    """An administrator wants a partition at the consumer of this name.

    * `since`: When it was pinned.
    * `reason`: The administrator's words; null without any.
    * `flow_id`: The flow that the partition belongs to by the pin, perhaps still on its way; null:
      no flow of this name takes part or may take it.
    """

    client_name: Annotated[str, said("etl", maxLength=200)]
    since: Time
    reason: Annotated[str, said("its state is there", maxLength=MOST_REASON)] | None
    flow_id: Annotated[str, said(EXAMPLE_FLOW)] | None


Pinned = Annotated[
    Pin | None,
    said(description="To which consumer an administrator has pinned it; null: to none."),
]


class Queue(Document, frozen=True):
    """A queue: its settings and its state.

    * `id`: A queue that is deleted and made again has another id.
    * `partition_count`: The configured count; of a dynamic queue, how many take part in the
      balance.
    * `operational_partition_count`: Partitions that retire, wait or are finished are included.
    * `access_type`: `exclusive`: the earliest-bound flow owns every partition, the others stand by.
    * `rebalance_delay`: The holddown between a trigger and the rebalance, in seconds.
    * `max_handoff_time`: How long, in seconds, an owner may take to finish what it has begun of a
      partition that moves.
    * `max_warmup_time`: How long, in seconds, a successor may take to warm up.
    * `max_concurrent_handoffs`: Null: all at once. Warming counts.
    * `start`: Where the first partitions start: the first message in the log, or its end when the
      queue is created. Partitions added later start at the first message.
    * `ordered_resize`: Whether a resize keeps the order of each key between partitions. For fixed
      queues on the built-in log.
    * `retention_seconds`: How long, in seconds since its publishing, the queue's own built-in log
      keeps a message that every queue has processed. 0: at most a minute. Null: the queue has no
      built-in log of its own.
    * `retention_bytes`: About how many bytes of such messages, the newest ones, the log keeps. Null
      with `retention_seconds`.
    * `flow_count`: Bound flows.
    * `active_flow_count`: Flows that own at least one partition.
    * `paused`: The pause of the whole queue.
    * `paused_partition_count`: Partitions that are paused, by themselves or with the queue.
    * `revision`: +1 at every committed change of settings, status, flows or assignment.
    * `partitioning`: `fixed`: a number of partitions that `partition_count` sets. `dynamic`: the
      source begins and ends partitions, and their owners report it.
    * `mirror_group`: The consumer group of Kafka into which the positions of a queue on a topic are
      mirrored, for tools that watch groups; null: none. It is never read.
    * `conditions`: How many conditions hold, by kind, as `quarantined` or `log_away`; of
      `over_capacity` and `pin_unmet`, how many partitions. Empty: none.
    * `align_with`: Another queue, whose built-in log is read beside `log` (several: joined by `+`):
      one flow owns equal partition numbers of both, and gets and hands over both together.
    * `max_weight`: The largest weight that a flow may bind with. 1: all flows are equal.
    """

    id: str
    name: QueueName
    partition_count: int
    operational_partition_count: int
    access_type: AccessType
    rebalance_delay: RebalanceDelay
    max_handoff_time: MaxHandoffTime
    max_warmup_time: MaxWarmupTime
    max_concurrent_handoffs: MaxConcurrentHandoffs | None
    log: Annotated[str, said("builtin:flights")]
    start: Start
    ordered_resize: bool
    retention_seconds: RetentionSeconds | None
    retention_bytes: RetentionBytes | None
    rebalance_status: StatusName
    scale_status: Annotated[str, said(enum=["Ready", "ScalingUp", "ScalingDown"])]
    flow_count: int
    active_flow_count: int
    paused: Pause | None
    paused_partition_count: int
    pinned_partition_count: int
    revision: int
    created_at: Time
    partitioning: Partitioning
    mirror_group: MirrorGroup
    max_weight: MaxWeight
    conditions: Annotated[Mapping[str, int] | None, said({"quarantined": 1})] = None
    align_with: AlignWith | None = None


class Page(Message, Generic[T], frozen=True):
    """One page of a list.

    * `next_cursor`: Pass it as `cursor` for the next page; null on the last one.
    """

    items: tuple[T, ...]
    next_cursor: Cursor | None


class Partition(Message, frozen=True):
    """A partition: its owner and the position up to which it has been processed.

    * `owner`: The flow_id of its owner.
    * `successor`: The flow_id of its next owner during a handoff.
    * `deadline`: When its warm-up or handoff ends at the latest.
    * `end`: The position of the next message to be appended. Null while the service cannot ask the
      log.
    * `lag`: The most messages from `position` to `end`; positions may have holes. Null with `end`,
      and for a position that the log cannot have.
    * `lag_seconds`: How long ago the message at `position` was published. Null if there is none,
      and while the log does not say it.
    * `key`: Names it, in a dynamic queue; null in a fixed one.
    * `parents`: The keys of the partitions that it follows, in a dynamic queue.
    * `children`: The keys of the partitions that follow it, as far as known, in a dynamic queue.
    """

    partition: PartitionNumber
    epoch: Epoch
    owner: str | None
    successor: str | None
    state: PartitionState
    position: ShownPosition | None
    deadline: Time | None
    end: ShownPosition | None
    lag: Annotated[int, said(minimum=0)] | None
    lag_seconds: Annotated[float, said(minimum=0.0)] | None
    key: str | None
    parents: tuple[str, ...] | None
    children: tuple[str, ...] | None
    paused: Paused
    pinned: Pinned
    cut: Cut = None
    reached_cut: ReachedCut = None
    waits_for: WaitsFor = None
    done_above: DoneAboveText = None


class PausedPartition(Message, frozen=True):
    """A partition that has a pause of its own."""

    partition: PartitionNumber
    pause: Pause


class PausedQueue(Message, frozen=True):
    """What is paused of a queue.

    * `paused`: The pause of the whole queue; null: it has none.
    * `partitions`: The partitions that have a pause of their own, by number. They stay paused when
      the queue is resumed.
    """

    queue: QueueName
    revision: int
    paused: Pause | None
    partitions: tuple[PausedPartition, ...]


class PinnedPartition(Message, frozen=True):
    """A partition that is pinned."""

    partition: PartitionNumber
    pin: Pin


class PinnedQueue(Message, frozen=True):
    """What is pinned of a queue.

    * `partitions`: The partitions that are pinned, by number; of aligned ones the whole group.
    """

    queue: QueueName
    revision: int
    partitions: tuple[PinnedPartition, ...]


def barrier_text(cut: str | None, waits_for: Sequence[int] | None) -> str:
    """`at 1002 for 0, 2`: where a partition waits, and for which others; empty if it does not."""
    if cut is None or not waits_for:
        return ""
    # The service names no more than the ten lowest.
    more = ", …" if len(waits_for) >= MOST_WAITED_FOR else ""
    return f"at {cut} for {', '.join(map(str, waits_for))}{more}"


class FlowSummary(Document, frozen=True):
    """A bound flow.

    * `active`: Owns at least one partition.
    * `partitions`: The number of partitions that it owns.
    * `key_id`: The public id of the key that bound it; null: bound without one.
    * `keeps_state`: It has state that no handoff takes along, so the queue stays exclusive.
    * `weight`: Its share of the partitions, compared with the weights of the others.
    * `max_partitions`: It gets no more partitions than this; null: any number.
    """

    flow_id: str
    client_name: str
    instance_id: str
    active: bool
    draining: bool
    partitions: int
    key_id: str | None
    bound_at: Time
    lease_expires_at: Time
    held_until: HeldUntil = None
    keeps_state: bool = False
    weight: int = 1
    max_partitions: int | None = None

    @property
    def state(self) -> str:
        """`draining`, `active`, `held back` (until `held_until`) or `standby`, for people."""
        if self.draining:
            return "draining"
        if self.active:
            return "active"
        return "standby" if self.held_until is None else "held back"


class PositionSet(Message, frozen=True):
    """A partition whose position was set, or would be.

    * `previous`: In a dry run, the position as it is. Null without one.
    * `read_again`: In a dry run, the most processed messages that would be read again: those before
      `previous`, and those above it, of which the queue then forgets that they were processed. Null
      if the log does not answer.
    * `skipped`: In a dry run, the most messages that would never be read. Null if the log does not
      answer.
    """

    partition: PartitionNumber
    epoch: Epoch
    position: ShownPosition | None
    previous: ShownPosition | None
    read_again: int | None
    skipped: int | None


class Positions(Message, frozen=True):
    """The partitions whose position was set, each with its raised epoch; in a dry run, those whose
    position would be set, each with its epoch as it is.
    """

    revision: int
    partitions: tuple[PositionSet, ...]


class PreviewedMove(Message, frozen=True):
    """A partition that would have another owner.

    * `anyway`: It would have it without the call, too.
    """

    partition: PartitionNumber
    from_flow: str | None = field(name="from")
    to_flow: str | None = field(name="to")
    anyway: bool


class PreviewedFlow(Message, frozen=True):
    """What a bound flow would own.

    * `before`: The number of partitions that it owns now.
    * `after`: The number that it would own. Null: it would be unbound.
    """

    flow_id: str
    client_name: str
    before: int
    after: int | None


class PreviewedSetting(Message, frozen=True):
    """A setting that would have another value."""

    name: Annotated[str, said("partition_count")]
    before: int | float | bool | str | None
    after: int | float | bool | str | None


class Preview(Document, frozen=True):
    """What a call would do, which it answers with `dry_run=true`.

    Partitions are listed by number. What follows from the call is in it, up to the end of the
    rebalance, if every owner releases at once and nobody binds or leaves meanwhile.

    * `revision`: The revision of the queue that was looked at.
    * `moves`: The partitions that get another owner.
    * `added`: Partitions that begin.
    * `retiring`: Partitions that take no more messages, and are removed once read to their ends.
    * `removed`: Partitions that are removed at once, with what they hold.
    * `unassigned`: Partitions that lose their owner, or begin without one.
    * `staying`: Partitions that stay with a draining flow, as no other may take them.
    * `interrupted`: Partitions that an owner loses without having released them. The next owner
      reads their messages in progress again.
    * `paused`: Partitions that the call pauses.
    * `resumed`: Partitions that the call resumes.
    * `pinned`: Partitions that are pinned to another consumer than now.
    * `unpinned`: Partitions that are not pinned any more.
    * `flows`: The bound flows, in the order of binding.
    * `settings`: The settings that change.
    * `conditions`: The conditions of the queue that arise or change, and their numbers.
    * `holddown_until`: When the rebalance begins. Null: at once, or not at all.
    * `lost_messages`: The most messages that are never processed, because their partitions or
      their log are removed. Null: the log does not answer.
    * `deletes_log`: Whether the queue's log is deleted.
    * `followers`: The queues that read the same log and are resized with it, as far as the caller
      may see them.
    """

    queue: QueueName
    revision: int
    moves: tuple[PreviewedMove, ...]
    added: tuple[PartitionNumber, ...]
    retiring: tuple[PartitionNumber, ...]
    removed: tuple[PartitionNumber, ...]
    unassigned: tuple[PartitionNumber, ...]
    staying: tuple[PartitionNumber, ...]
    interrupted: tuple[PartitionNumber, ...]
    paused: tuple[PartitionNumber, ...]
    resumed: tuple[PartitionNumber, ...]
    pinned: tuple[PartitionNumber, ...]
    unpinned: tuple[PartitionNumber, ...]
    flows: tuple[PreviewedFlow, ...]
    settings: tuple[PreviewedSetting, ...]
    conditions: Annotated[Mapping[str, int], said({"over_capacity": 2})]
    holddown_until: Time | None
    lost_messages: int | None
    deletes_log: bool
    followers: tuple[QueueName, ...]

    @property
    def changes(self) -> bool:
        """Whether the call would change anything."""
        moved = any(not one.anyway for one in self.moves)
        left = any(one.after is None for one in self.flows)
        lists = (
            *(self.added, self.retiring, self.removed, self.paused, self.resumed),
            *(self.pinned, self.unpinned, self.settings),
        )
        return moved or left or self.deletes_log or any(lists)


# ------------------------------------------------------------------ rebalances


class Handoff(Message, frozen=True):
    """A handoff in progress."""

    partition: PartitionNumber
    from_flow: str = field(name="from")
    to_flow: str | None = field(name="to")
    phase: Annotated[str, said(enum=["warming", "revoking"])]
    deadline: Time | None


class Move(Message, frozen=True):
    """One partition's grant or handoff.

    * `outcome`: How it was handed over: `initial`, `graceful`, `forced`, `orphaned`, `replaced` or
      `discarded`.
    * `seconds`: How long the partition paused: since the last sign of life of an owner that was
      silent, else since its owner was told to finish, or without an owner.
    * `reason`: Why it was `forced`: `not_released` (by the deadline) or `positions_set` (by an
      administrator); else null.
    * `silent_seconds`: Of these, how long the owner had been silent when its lease ended; null: its
      lease did not end.
    """

    partition: PartitionNumber
    from_flow: str | None = field(name="from")
    to_flow: str | None = field(name="to")
    epoch: Epoch
    outcome: Annotated[str, said("graceful")]
    seconds: float
    reason: str | None
    silent_seconds: float | None


class Cause(Message, frozen=True):
    """A change that led to a rebalance.

    * `type`: `bound`, `admitted` (after it was held back), `left`, `draining` or `changed`
      (settings).
    * `reason`: Why a flow left: `unbound`, `lease_expired`, `driver_lost`, `replaced`, `key_ended`;
      later versions may add others.
    * `settings`: The settings' new values.
    """

    at: Time
    type: Annotated[str, said("bound")]
    flow_id: str | None
    client_name: str | None
    reason: str | None
    settings: Json | None


class RebalanceSummary(Document, frozen=True):
    """A rebalance, or a grant outside one (which counts no handoffs).

    * `finished_at`: Null while it is running.
    * `forced`: How many of the handoffs reached their deadline.
    * `granted`: How many partitions without an owner were granted.
    """

    id: int
    trigger: Trigger
    started_at: Time
    finished_at: Time | None
    handoffs: int
    forced: int
    granted: int


class Rebalance(RebalanceSummary, frozen=True):
    """An entry of the history, with what led to it and its moves.

    * `triggered_at`: When its holddown began, or it itself without one.
    * `why`: The causes in plain words, with the names of clients.
    * `causes`: What led to it, in order; at most 100.
    * `more_causes`: How many causes are left out.
    * `clients`: The client names of the flows in `moves`, as far as they are stored.
    * `moves`: Empty without `moves=true`.
    * `more_moves`: How many moves are not in `moves`: all of them without `moves=true`, else those
      on the next pages.
    """

    triggered_at: Time
    why: Annotated[str, said("etl-3 bound; etl-1 did not renew the lease")]
    causes: tuple[Cause, ...]
    more_causes: int
    clients: Mapping[str, str]
    moves: tuple[Move, ...]
    more_moves: int


class UnsettledResize(Message, frozen=True):
    """An ordered resize that is not settled: the next one is refused until it is.

    * `resized_from`: Null while the log has not said its cuts.
    * `awaits_cuts`: The log has not said yet where it has cut partitions.
    * `unreached`: Partitions that are not processed up to their cuts.
    * `waiting`: Partitions that wait for those.
    """

    resized_from: int | None
    resized_to: int
    awaits_cuts: bool
    unreached: int
    waiting: int


class Waiting(Message, frozen=True):
    """A partition of a dynamic queue that may not be processed yet.

    * `waits_for`: Its parents that are not finished.
    """

    partition: PartitionNumber
    key: str
    waits_for: tuple[PartitionNumber, ...]


class HeldBack(Message, frozen=True):
    """Flows that get no partitions yet: their keys have moved as much as they may in an hour.

    * `flows`: How many.
    * `until`: When the first of them joins.
    """

    flows: int
    until: Time


class RebalanceStatus(Document, frozen=True):
    """The state of the rebalancer for a queue, and its trigger.

    * `trigger`: The first trigger; null when Ready.
    * `since`: When the queue took this status.
    * `holddown_until`: When the holddown ends. In a rebalance: until then only pairs are handed
      over. Null if nothing waits.
    * `spread`: The largest minus the smallest number of partitions over bound flows that neither
      drain nor are held back.
    * `waiting`: In a dynamic queue: which partition waits for which.
    * `resize`: Of a queue with ordered resizes: the last resize, until it is settled.
    * `held_back`: The flows that are held back, if any.
    """

    queue: QueueName
    status: StatusName
    revision: int
    trigger: Trigger | None
    since: Time
    holddown_until: Time | None
    handoffs: tuple[Handoff, ...]
    unassigned: tuple[PartitionNumber, ...]
    spread: int
    last_rebalance: RebalanceSummary | None
    waiting: tuple[Waiting, ...]
    resize: UnsettledResize | None = None
    held_back: HeldBack | None = None


class Event(Struct, frozen=True):
    """One committed change of a queue, from its event stream."""

    revision: int | None
    name: str
    data: Any


# ------------------------------------------------------------------ keys and the audit

KeyId = Annotated[str, said("3f9a0c51d7e2")]


class Session(Message, frozen=True):
    """Who the caller is.

    * `key_id`: The public id of the key; null without one.
    * `name`: The name of the key; null without one.
    * `queues`: The patterns of the queues that the key is for.
    * `expires_at`: The end of the session, or of the key; null if it has none.
    * `unlocked_until`: Until when the session may change something; null if it only reads, and for
      a caller without a session.
    """

    key_id: KeyId | None
    name: str | None
    role: RoleName
    queues: tuple[str, ...]
    expires_at: Time | None
    unlocked_until: Time | None


class AuditItem(Document, frozen=True):
    """An administrative call.

    * `at`: When it was committed.
    * `call`: The operation; that of a key has no queue.
    * `flow_id`: With `unbind` and `drain`.
    * `key_id`: The caller's key; null without one.
    * `address`: The caller's network address.
    * `before`: The state before; null if there was none.
    * `after`: The state after; null if there is none.
    """

    id: int
    at: Time
    call: Annotated[
        str,
        said(
            enum=[
                "create_queue",
                "change_queue",
                "delete_queue",
                "rebalance_now",
                "pause_queue",
                "resume_queue",
                "pause_partition",
                "resume_partition",
                "pin_partition",
                "unpin_partition",
                "add_children",
                "split_partition",
                "merge_partitions",
                "set_positions",
                "unbind",
                "drain",
                "create_key",
                "revoke_key",
                "unlock_session",
                "publish_message",
                "dead_letter",
                "redrive",
            ]
        ),
    ]
    queue: str | None
    flow_id: str | None
    key_id: str | None
    key_name: str | None
    address: str | None
    before: Json | None
    after: Json | None


class Key(Message, frozen=True):
    """A key, without its secret.

    * `queues`: The patterns of the queues that it is for.
    * `last_used_at`: To about a minute.
    * `state`: `valid`, `ended` or `revoked`.
    """

    id: KeyId
    name: str
    role: str
    queues: tuple[str, ...]
    created_at: Time
    ends_at: Time | None
    revoked_at: Time | None
    last_used_at: Time | None
    state: Annotated[str, said("valid")]


class MadeKey(Key, PartlyShown, frozen=True):
    """A new key. Its text is in this answer only.

    * `key`: The key, `cp_<id>_<secret>`; the service stores its hash.
    * `is_first`: Whether it has just closed the service to callers without.
    """

    hidden = frozenset({"key"})

    key: str
    is_first: bool


# ------------------------------------------------------------------ flows


class UpdatePartition(Message, frozen=True):
    """A partition as its owner or successor sees it.

    * `epoch`: The owner's epoch, also while the flow is only warming.
    * `state`: In the first three the flow is the owner; in `warming` it is not yet.
    * `position`: The last committed position.
    * `handed_over`: How it left its previous owner: `initial`, `graceful`, `forced`, `orphaned` or
      `replaced`; absent while `warming`. After `forced` and `orphaned`, messages after `position`
      may have been seen before.
    * `deadline`: With `revoking` and `warming`: when the handoff continues without the flow.
    * `key`: Of a partition of a dynamic queue.
    * `parents`: The keys of the partitions that it follows, in a dynamic queue.
    * `paused`: Begin no further message of it, finish and commit what is outstanding, and go on
      when a view leaves this out; absent while `warming`.
    """

    partition: PartitionNumber
    epoch: Epoch
    state: Annotated[str, said(enum=["owned", "revoking", "retiring", "warming"])]
    position: ShownPosition | None
    # Not an enumeration: a newer replica may have stored another.
    handed_over: Annotated[str | None, said("graceful")] = None
    deadline: Time | None = None
    key: str | None = None
    parents: tuple[str, ...] | None = None
    cut: Cut = None
    reached_cut: ReachedCut = None
    waits_for: WaitsFor = None
    paused: Pause | None = None
    done_above: DoneAboveText = None


class Update(Message, frozen=True):
    """A flow's assignment: always its whole current view, so a lost or repeated one is harmless.

    * `revision`: The queue's revision at which this view last changed.
    * `active`: Owns at least one partition.
    * `now`: The service's clock; `deadline` is a time of this clock.
    * `resize`: Of a queue with ordered resizes: the number of the log's last resize of which this
      view knows the cuts. If the log names a later one, stop at its cuts.
    """

    queue: QueueName
    flow_id: str
    revision: int
    active: bool
    draining: bool
    now: Time
    partitions: tuple[UpdatePartition, ...]
    resize: int | None = None
    held_until: HeldUntil = None


class LogAccess(PartlyShown, frozen=True):
    """Short-lived credentials for the built-in log.

    * `url`: With user and password: do not log it.
    """

    hidden = frozenset({"url"})

    url: Annotated[str, said("postgresql://counterpoise_read_7:…@127.0.0.1:41000/counterpoise")]
    expires_at: Annotated[Time | None, said(always=True)] = None


class LogView(Message, frozen=True):
    """Address of and credentials for a queue's log.

    * `partition_count`: An append has to name this count.
    * `access`: Null when the log is not built in, or the service may not create roles in its
      database: bring credentials of your own.
    * `log_name`: The built-in log's name; null for other logs.
    """

    log: Annotated[str, said("builtin:flights")]
    partition_count: int
    access: LogAccess | None
    log_name: Annotated[str | None, said("flights")]


class Bound(PartlyShown, frozen=True):
    """A bound flow, with everything that it needs.

    * `queue_id`: The queue's `id`. If a flow binds again and gets another one, its queue was made
      again, and its epochs and positions no longer apply.
    * `flow_token`: The flow's secret, sent with its calls as `Authorization: Bearer`, and shown
      only here.
    * `log_access`: Credentials to read the built-in log, if the service can give them.
    """

    hidden = frozenset({"flow_token"})

    flow_id: Annotated[str, said(EXAMPLE_FLOW)]
    queue_id: Annotated[str, said(EXAMPLE_QUEUE_ID)]
    flow_token: Annotated[str, Meta(pattern=TOKEN_PATTERN)]
    lease_seconds: float
    log: Annotated[str, said("builtin:flights")]
    update: Update
    log_access: LogAccess | None


class Heartbeat(Message, frozen=True):
    """The renewed lease.

    * `revision`: The revision of the flow's view; fetch the view if yours is older.
    """

    lease_expires_at: Time
    revision: int


class Result(Message, frozen=True):
    """The result of one item. With any outcome but `ok` nothing has changed.

    * `current_epoch`: With `stale_epoch`.
    """

    partition: PartitionNumber
    outcome: Annotated[
        str,
        said(
            enum=[
                "ok",
                "no_such_partition",
                "stale_epoch",
                "not_owner",
                "not_revoking",
                "not_warming",
                "not_ended",
                "unknown_parent",
                "conflicting_child",
                "too_many_partitions",
            ]
        ),
    ]
    current_epoch: int | None = None


class Results(Message, frozen=True):
    """One result for each item, in order, and the flow's view afterwards."""

    results: tuple[Result, ...]
    update: Annotated[Update | None, said(always=True)] = None


# ------------------------------------------------------------------ the graph of a dynamic queue


class LineageNode(Message, frozen=True):
    """A partition in the graph of a dynamic queue.

    * `owner`: The flow_id of its owner.
    * `parents`: The keys of the partitions that it follows. Those that are not listed themselves
      were finished and removed.
    * `children`: The keys of the partitions that follow it.
    * `waits_for`: Its parents that are not finished.
    """

    partition: PartitionNumber
    key: str
    state: PartitionState
    owner: str | None
    parents: tuple[str, ...]
    children: tuple[str, ...]
    waits_for: tuple[PartitionNumber, ...]


class Lineage(Page[LineageNode], frozen=True):
    """A page of the graph: the partitions that exist, by number.

    * `removed_count`: Keys that are remembered of removed partitions.
    """

    queue: QueueName
    revision: int
    removed_count: int


class SealedPartition(Message, frozen=True):
    """A partition that takes no messages any more.

    * `end`: Its final end in the log.
    """

    partition: PartitionNumber
    end: Annotated[str, said("1042", minLength=1, maxLength=1000, pattern=POSITION_PATTERN)]


class BegunPartition(Message, frozen=True):
    """A partition that follows sealed ones.

    * `key`: `LO-HI.N`: its first and last hash, and its number.
    * `parents`: The keys of the sealed partitions.
    """

    partition: PartitionNumber
    key: str
    parents: tuple[str, ...]


class Sealed(Message, frozen=True):
    """What a split or merge sealed, and what came of it."""

    sealed: tuple[SealedPartition, ...]
    children: tuple[BegunPartition, ...]


# ------------------------------------------------------------------ what watches a queue


class MeasuredQueue(Message, frozen=True):
    """A queue at a time of the last hour.

    * `lag`: Messages that are not processed yet, at most; null if not known.
    * `published`: Messages a second since the measurement before; null if not known.
    * `processed`: As `published`.
    """

    at: Time
    lag: Annotated[int, said(minimum=0)] | None
    published: Annotated[float, said(minimum=0.0)] | None
    processed: Annotated[float, said(minimum=0.0)] | None


class CommittedAfter(Message, frozen=True):
    """How long after it was published a message was committed, in the last hour.

    * `sampled`: So many messages were looked at, up to one of each partition every 5 seconds.
    * `median`: Half of them were committed within so many seconds; 7200 means that or more.
    * `p99`: As `median`: 99 % of them.
    """

    sampled: Annotated[int, said(minimum=1)]
    median: Annotated[float, said(minimum=0.0)]
    p99: Annotated[float, said(minimum=0.0)]


class Measurements(Message, frozen=True):
    """The last hour of a queue.

    * `items`: In order, about two a minute.
    * `committed_after`: Left out if nothing was sampled.
    """

    items: tuple[MeasuredQueue, ...]
    committed_after: CommittedAfter | None = None


class Scaling(Message, frozen=True):
    """How many consumers a queue should have.

    * `consumers`: So many; never more than partitions.
    * `why`: `lag` (it demands them), `maxima` (fewer may not take all partitions), `age` (a
      message is too old for fewer), `holding` (the queue is not Ready), `quiet` (it was changed
      not long ago), `shrinking` (fewer are enough), `unknown` (the log does not say the lag);
      later versions may add others.
    * `present`: Bound flows that do not drain.
    * `lag`: Messages that are not processed yet, at most; some seconds old.
    * `lag_seconds`: The age of the oldest of them, 0 without any; some seconds old. Null if the log
      does not say it.
    """

    queue: QueueName
    consumers: int
    why: str
    present: int
    partition_count: int
    lag: int | None
    lag_seconds: float | None


class HeldCondition(Document, frozen=True):
    """A condition that holds, and the consumer that reports it.

    * `partition`: The partition; null: the condition is of the whole consumer.
    * `since`: When it was reported first.
    * `flow_id`: Null: the service itself reports it.
    """

    kind: str
    text: str
    partition: PartitionNumber | None
    epoch: Epoch | None
    since: Time
    flow_id: str | None
    client_name: str


class ShownMessage(Message, frozen=True):
    """A message of a log; of a long one its beginning.

    * `published_at`: Null: a time that no calendar has.
    * `key`: At most `max_bytes` characters; null without a key.
    * `headers`: Null if they are longer than `max_bytes` in all.
    * `size_bytes`: The size of the whole value.
    * `value`: At most `max_bytes` of the value, if that is text; left out otherwise.
    * `value_base64`: The same of a value that is no text.
    """

    position: ShownPosition
    published_at: Time | None
    key: str | None
    headers: Mapping[str, str] | None
    size_bytes: Annotated[int, said(minimum=0)]
    value: str | None = None
    value_base64: str | None = None


class ShownMessages(Message, frozen=True):
    """Messages of a partition, in order.

    * `start`: The first position that is in the log.
    * `end`: The position of the next message to be appended.
    * `following`: The `position` for the next call.
    """

    partition: int
    start: ShownPosition
    end: ShownPosition
    messages: tuple[ShownMessage, ...]
    following: ShownPosition


class PublishedMessage(Message, frozen=True):
    """A message that is in the log.

    * `partition`: Where it is. With `before`: where it would go now, which is another one if the
      partitions have changed since.
    * `before`: Whether an earlier call with the same `id` has published it.
    """

    partition: int
    before: bool


class Letter(Message, frozen=True):
    """A message that is stored as a dead letter, and passed; in a dry run, one that would be.

    * `epoch`: Of the partition: raised, or in a dry run as it is.
    * `position`: Where the message is.
    * `next_position`: From where the partition is read then. Null without a position.
    * `to`: The queue of the letter.
    * `letter_partition`: Where the letter is; null in a dry run. If it was there before, where it
      would go now.
    * `before`: Whether the letter was there already. Null in a dry run.
    * `key`: Null without a key.
    * `size_bytes`: The size of the value.
    * `headers`: Those of the letter.
    """

    partition: PartitionNumber
    epoch: Epoch
    position: ShownPosition
    next_position: ShownPosition | None
    to: QueueName
    letter_partition: PartitionNumber | None
    before: bool | None
    key: str | None
    size_bytes: Annotated[int, said(minimum=0)]
    headers: Mapping[str, str]


class Redrive(Message, frozen=True):
    """Dead letters that were sent back; in a dry run, those that would be.

    * `letters`: How many, by the queue to which they go.
    * `more`: Whether more messages wait.
    """

    letters: Annotated[Mapping[str, int], said({"flights": 12})]
    more: bool


# ------------------------------------------------------------------ the service itself


class FieldProblem(Message, frozen=True):
    """One wrong field or parameter.

    * `field`: Its path, with dots: `partitions.0.epoch`.
    * `message`: What is wrong, or what would be valid.
    """

    field: str
    message: str


class Problem(Message, frozen=True):
    """An RFC 9457 problem document.

    * `type`: `urn:counterpoise:problem:` and the code.
    * `title`: What went wrong, the same for every instance of the code.
    * `detail`: What to do about this error.
    * `code`: Stable; meant for programs.
    * `errors`: With `invalid`: every wrong field.
    * `reason`: With `flow_gone`: `unbound`, `lease_expired`, `replaced`, …
    """

    type: str
    title: str
    status: Annotated[int, said(minimum=400, maximum=599)]
    detail: str
    code: str
    errors: tuple[FieldProblem, ...] | None = None
    reason: str | None = None


class Health(Message, frozen=True):
    """The process is alive."""

    status: Annotated[str, said(const="ok")]


class Readiness(Message, frozen=True):
    """The service can serve.

    * `database`: Names the tables that the service uses: equal for all replicas of a service.
    """

    status: Annotated[str, said(const="ready")]
    database: Annotated[str | None, said("3f9a0c51d7e2b864")] = None


class Probe(Struct, frozen=True):
    """The answer of an address outside the base path; `date` as the server wrote it."""

    status: int
    date: str | None
    text: str


# ------------------------------------------------------------------ what calls take


class RequestBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a call takes: a field that has its default may be left out.

    `like`: what else says what fields of the same names are.
    """

    like: ClassVar[tuple[type[Struct], ...]] = ()

    def check(self) -> None:
        """Raises ValueError for fields that do not go together."""


Name = Annotated[str, said(minLength=1, maxLength=200, pattern=TEXT_PATTERN)]
Reason = Annotated[str, said(minLength=1, maxLength=MOST_REASON, pattern=TEXT_PATTERN)]
Position = Annotated[
    str,
    said(
        "1042",
        description="The next message to read: an opaque string of the log. Null: see `start`.",
        minLength=1,
        maxLength=1000,
        pattern=POSITION_PATTERN,
    ),
]
# Positions by the number of the partition.
Places = Annotated[
    Mapping[Annotated[str, said(pattern=r"^(0|[1-9][0-9]{0,9})$")], Position | None],
    said(minProperties=1, maxProperties=MOST_PARTITIONS),
]
PartitionKey = Annotated[
    str,
    said(
        "token-7",
        description="Names a partition of a dynamic queue for good.",
        minLength=1,
        maxLength=200,
        pattern=POSITION_PATTERN,
    ),
]
CallNumber = Annotated[
    Annotated[int, said(minimum=0, maximum=MOST_INT64)] | None,
    said(
        17,
        description=(
            "Raised by the client with every call: within a partition and epoch an equal or lower "
            "one answers `ok` and changes nothing, so a delayed retry does no harm."
        ),
    ),
]
DoneAbove = Annotated[
    Annotated[str, said(maxLength=MOST_DONE_ABOVE, pattern=DONE_ABOVE_PATTERN)] | None,
    said("1045+17,3+40"),
]
PartitionCount = Annotated[int, said(8, minimum=1, maximum=MOST_PARTITIONS)]


class Root(RequestBody, frozen=True):
    """A first partition of a dynamic queue."""

    key: PartitionKey


class QueueCreate(RequestBody, frozen=True):
    """A new queue (the contract, *Queue*); omitted settings have their defaults.

    * `partition_count`: Required, unless the queue is dynamic or its log has a count (another
      queue's, a topic of Kafka, aligned logs), which is taken then.
    * `log`: Null: `builtin:` and the name.
    * `ordered_resize`: Whether a resize keeps the order of each key between partitions. For fixed
      queues on the built-in log. Omitted: true where the log can, which the answer says.
    * `partitions`: The first partitions of a dynamic queue, each with a key.
    * `positions`: Where partitions of an existing log begin, by number; the others begin as `start`
      says. They are stored with the queue, so no consumer begins elsewhere.
    """

    like = (Queue,)

    name: Annotated[QueueName, said(**{"not": {"enum": [*UNREACHABLE_NAMES]}})]
    partition_count: PartitionCount | UnsetType = UNSET
    access_type: AccessType = "non_exclusive"
    rebalance_delay: RebalanceDelay = 5.0
    max_handoff_time: MaxHandoffTime = 3.0
    max_warmup_time: MaxWarmupTime = 600.0
    max_concurrent_handoffs: MaxConcurrentHandoffs | None = None
    log: (
        Annotated[
            str,
            said(
                "builtin:flights",
                description=(
                    "Where the messages are: `builtin:QUEUE`, or a URL without credentials. With "
                    "another queue's log, the queue has independent consumers of the same "
                    "messages. `builtin:QUEUE+QUEUE`: the logs of several queues side by side, as "
                    "with `align_with`."
                ),
                pattern=LOG_PATTERN,
            ),
        ]
        | None
    ) = None
    start: Start = "earliest"
    ordered_resize: bool | UnsetType = UNSET
    retention_seconds: RetentionSeconds | UnsetType = UNSET
    retention_bytes: RetentionBytes | UnsetType = UNSET
    partitioning: Partitioning = "fixed"
    align_with: AlignWith | UnsetType = UNSET
    mirror_group: MirrorGroup = None
    max_weight: MaxWeight = MOST_WEIGHT
    partitions: Annotated[tuple[Root, ...], said(minItems=1, maxItems=MOST_ROOTS)] | UnsetType = (
        UNSET
    )
    positions: Places | UnsetType = UNSET


class QueueChange(RequestBody, frozen=True):
    """Settings to change; omitted settings stay. A change applies to what begins after it."""

    like = (Queue,)

    partition_count: PartitionCount | UnsetType = UNSET
    access_type: AccessType | UnsetType = UNSET
    rebalance_delay: RebalanceDelay | UnsetType = UNSET
    max_handoff_time: MaxHandoffTime | UnsetType = UNSET
    max_warmup_time: MaxWarmupTime | UnsetType = UNSET
    max_concurrent_handoffs: MaxConcurrentHandoffs | UnsetType | None = UNSET
    start: Start | UnsetType = UNSET
    ordered_resize: bool | UnsetType = UNSET
    mirror_group: MirrorGroup | UnsetType = UNSET
    max_weight: MaxWeight | UnsetType = UNSET
    retention_seconds: RetentionSeconds | UnsetType = UNSET
    retention_bytes: RetentionBytes | UnsetType = UNSET


class PositionsRequest(RequestBody, frozen=True):
    """The new positions: `to` for every partition, or `positions` for the named ones.

    * `to`: An end of the log, or a time: the first message published then or later.
    * `positions`: Positions by partition number.
    """

    to: Annotated[
        Any,
        said(
            anyOf=[
                {"type": "string", "enum": ["earliest", "latest"]},
                {"type": "string", "format": "date-time", "examples": [EXAMPLE_TIME]},
            ],
        ),
    ] = None
    positions: Annotated[Places | None, said(null=False)] = None

    def check(self) -> None:
        if (self.to is None) == (self.positions is None):
            raise ValueError("give either 'to' or 'positions'")


class LogAccessRequest(RequestBody, frozen=True):
    """What the access is for.

    * `refused`: The log refused the credentials that the caller has: make others.
    """

    purpose: Annotated[str, said(enum=["read", "publish"])]
    refused: bool = False


class PauseRequest(RequestBody, frozen=True):
    """How long, and why. Without an end the pause lasts until it is resumed.

    * `until`: When the pause ends by itself: a time to come.
    * `seconds`: In so many seconds it ends by itself, instead of `until`.
    * `reason`: Shown to those who see the pause.
    """

    until: Annotated[Time | None, said(null=False)] = None
    seconds: Annotated[
        Annotated[float, said(exclusiveMinimum=0.0, maximum=MOST_PAUSE_SECONDS)] | None,
        said(null=False),
    ] = None
    reason: Annotated[Reason | None, said(null=False)] = None

    def check(self) -> None:
        if self.until is not None and self.seconds is not None:
            raise ValueError("give one of 'until' and 'seconds'")


class PinRequest(RequestBody, frozen=True):
    """To which consumer, and why.

    * `client_name`: The name with which the consumer binds. Of several flows of this name the
      earliest bound is meant; none need be bound.
    * `reason`: Shown to those who see the pin.
    """

    client_name: Name
    reason: Annotated[Reason | None, said(null=False)] = None


class SplitRequest(RequestBody, frozen=True):
    """Where to split the range of a partition.

    * `at`: `middle` of the range; `load`: the keys of the last messages lie half on either side; or
      the first hash of the upper part, as eight hexadecimal digits.
    """

    at: Annotated[str, said(pattern=r"^(middle|load|[0-9a-f]{8})$")] = "middle"


class MergeRequest(RequestBody, frozen=True):
    """The partition to merge with, whose range lies beside."""

    other: PartitionNumber = field(name="with")


class DeadLetterRequest(RequestBody, frozen=True):
    """A message that is to be put aside.

    * `position`: That of the message.
    * `to`: The queue of dead letters.
    """

    position: Position
    to: QueueName


class RedriveRequest(RequestBody, frozen=True):
    """Which letters go back, and where.

    * `to`: Null: each goes to the queue that it comes from.
    * `max_messages`: The most letters to send.
    """

    to: QueueName | None = None
    max_messages: Annotated[int, said(minimum=1, maximum=MOST_LETTERS)] = MOST_LETTERS


class PublishRequest(RequestBody, frozen=True):
    """One message: its value as text or in base64.

    * `value`: The value as text.
    * `value_base64`: The value in base64, instead of `value`.
    * `key`: Decides the partition; null: a message without.
    * `headers`: Names and texts.
    * `partition`: Of a message without a key; null: the service chooses one.
    * `id`: A call that is repeated with the same id publishes the message once.
    """

    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    headers: Annotated[Mapping[str, str], said(maxProperties=100)] = field(default_factory=dict)
    partition: Annotated[int, said(minimum=0, exclusiveMaximum=MOST_PARTITIONS)] | None = None
    id: Annotated[str, said(pattern=QUEUE_NAME_PATTERN)] | None = None

    def check(self) -> None:
        if (self.value is None) == (self.value_base64 is None):
            raise ValueError("give either value or value_base64")
        try:
            _ = self.content
        except ValueError:
            raise ValueError("value_base64 is no base64") from None

    @property
    def content(self) -> bytes:
        """The value. Raises ValueError for one that is no base64."""
        if self.value_base64 is None:
            return (self.value or "").encode()
        return b64decode(self.value_base64, validate=True)


class LogIn(RequestBody, PartlyShown, frozen=True):
    """The key to log in with.

    * `key`: The whole key, `cp_<id>_<secret>`.
    """

    hidden = frozenset({"key"})

    key: Annotated[str, said(minLength=1, maxLength=200)]


class NewKey(RequestBody, frozen=True):
    """A key to make.

    * `queues`: Patterns of the queues that it is for (`*`: any characters, `?`: one).
    * `name`: Who or what it is for.
    * `ends_at`: When it ends; null: never.
    """

    role: RoleName
    queues: Annotated[
        tuple[Annotated[str, said(minLength=1, maxLength=200)], ...],
        said(minItems=1, maxItems=100),
    ] = ("*",)
    name: Annotated[str, said(maxLength=200)] = ""
    ends_at: Time | None = None


class BindRequest(RequestBody, frozen=True):
    """A consumer that binds.

    * `client_name`: Shown to people in lists; need not be unique.
    * `instance_id`: Identifies a consumer over restarts: the new flow takes the place of the flow
      bound with the same id. Always send it; else the service chooses a random one.
    * `lease_seconds`: How long the flow lives without renewal.
    * `warmup`: Whether the flow warms up before it is granted a partition.
    * `binder`: Random, the same for all binds of one running client for this instance.
    * `attempt`: One higher with each bind of the `binder`: a late bind never takes the place of a
      later one (409 `overtaken`).
    * `at_once`: Without a holddown if no other flow is bound: for a consumer that reads what is
      there and ends.
    * `keeps_state`: Whether the consumer keeps state of the messages that no handoff takes along.
      The queue must be exclusive, stays it while the flow is bound, and has one such consumer
      (409 `state_kept`).
    * `weight`: The flow's share of the partitions, compared with the weights of the others; at most
      the queue's `max_weight` (422).
    * `max_partitions`: The flow gets no more partitions than this; null: any number. What no flow
      may take has no owner (the condition `over_capacity`). Not in an exclusive queue (422).
    """

    client_name: Name
    instance_id: Name | None = None
    lease_seconds: Annotated[float, said(minimum=1.0, maximum=3600.0)] = LEASE_SECONDS
    warmup: bool = False
    binder: Name | None = None
    attempt: Annotated[int, said(minimum=0, maximum=MOST_INT64)] = 0
    at_once: bool = False
    keeps_state: bool = False
    weight: MaxWeight = 1
    max_partitions: Annotated[
        Annotated[int, said(minimum=1, maximum=MOST_PARTITIONS)] | None, said(64)
    ] = None


def check_partition(partition: object) -> None:
    """Raise TypeError unless it is the number of a partition as JSON can hold it."""
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise TypeError(f"the partition must be an int, not {partition!r}")


def _check_place(partition: object, epoch: object, position: object) -> None:
    check_partition(partition)
    if isinstance(epoch, bool) or not isinstance(epoch, int):
        raise TypeError(f"the epoch must be an int, not {epoch!r}: take it from Owned.epoch")
    if position is not None and not isinstance(position, str):
        raise TypeError(f"the position must be a str, not {position!r}")


class CommitItem(RequestBody, frozen=True):
    """Processed up to `position` under `epoch`.

    * `reached_cut`: The position is at the partition's cut or past it, and the view does not say so
      yet.
    * `done_above`: What is processed above the position; goes with it. Null: nothing, also nothing
      of what was committed before.
    """

    partition: PartitionNumber
    epoch: Epoch
    position: Position
    reached_cut: bool = False
    done_above: DoneAbove = None

    def __post_init__(self) -> None:
        _check_place(self.partition, self.epoch, self.position)
        if self.position is None:
            raise TypeError("the position to commit must be a str, not None")


# Of the items of a call.
_MOST_ITEMS = said(maxItems=MOST_PARTITIONS)


class CommitRequest(RequestBody, frozen=True):
    """Positions to commit."""

    partitions: Annotated[tuple[CommitItem, ...], _MOST_ITEMS]
    seq: CallNumber = None


class ReleaseItem(RequestBody, frozen=True):
    """A partition to release.

    * `position`: Committed with the release; null: leave the position as it is.
    * `finished`: A retiring partition, or one of a dynamic queue, was processed to its end.
    """

    like = (CommitItem,)

    partition: PartitionNumber
    epoch: Epoch
    position: Position | None = None
    finished: bool = False
    reached_cut: bool = False
    done_above: DoneAbove = None

    def __post_init__(self) -> None:
        _check_place(self.partition, self.epoch, self.position)


class ReleaseRequest(RequestBody, frozen=True):
    """Partitions to release."""

    partitions: Annotated[tuple[ReleaseItem, ...], _MOST_ITEMS]
    seq: CallNumber = None


class Child(RequestBody, frozen=True):
    """A partition that begins where its parents end.

    * `parents`: The keys of all partitions that it follows, that of the item among them.
    * `partition`: Its number, if the log numbers its partitions; null: the next of the queue.
    * `position`: Where it begins; null: at its first message.
    """

    key: PartitionKey
    # For `Flow.children` none means the partition itself.
    parents: Annotated[tuple[PartitionKey, ...], said(always=True, minItems=1, maxItems=1000)] = ()
    partition: PartitionNumber | None = None
    position: Position | None = None


class ChildrenItem(RequestBody, frozen=True):
    """One partition. All of an item is carried out, or nothing.

    * `position`: Committed with the report; null: leave the position as it is.
    * `finished`: It was processed to its end, and has no other children.
    """

    partition: PartitionNumber
    epoch: Epoch
    position: Position | None = None
    finished: bool = False
    children: Annotated[tuple[Child, ...], said(maxItems=1000)] = ()

    def __post_init__(self) -> None:
        _check_place(self.partition, self.epoch, self.position)


class ChildrenRequest(RequestBody, frozen=True):
    """What comes after partitions."""

    partitions: Annotated[tuple[ChildrenItem, ...], _MOST_ITEMS]
    seq: CallNumber = None


class ReadyItem(RequestBody, frozen=True):
    """The warm-up for this partition is done; `epoch` is its owner's."""

    partition: PartitionNumber
    epoch: Epoch

    def __post_init__(self) -> None:
        _check_place(self.partition, self.epoch, None)


class ReadyRequest(RequestBody, frozen=True):
    """Partitions whose warm-ups are done."""

    partitions: Annotated[tuple[ReadyItem, ...], _MOST_ITEMS]


class DrainRequest(RequestBody, frozen=True):
    """How long warm-ups may take.

    * `timeout_seconds`: After this time, warm-ups of the successors are cut short.
    """

    timeout_seconds: Annotated[float, said(minimum=0.0, maximum=86400.0)] | None = None


class Condition(RequestBody, frozen=True):
    """A condition of one partition, under the epoch in which it came, or of the whole flow.

    It is something that a consumer waits for people to mend, or to pass.

    * `kind`: `quarantined`, `log_away`, `rows_dropped`, `state_lost`, `invalid_position` or
      `end_refused`; later clients may report others.
    * `text`: The details in plain words.
    * `partition`: The partition; left out: the condition is of the whole consumer.
    * `epoch`: With `partition`: its epoch.
    """

    kind: Annotated[str, said("quarantined", pattern=r"^[a-z][a-z_]{0,39}$")]
    text: Annotated[
        str,
        said(
            "at 1042: ValueError: not a number",
            maxLength=MOST_TEXT_CHARACTERS,
            pattern=TEXT_PATTERN,
        ),
    ]
    partition: Annotated[PartitionNumber | None, said(null=False)] = None
    epoch: Annotated[Epoch | None, said(null=False)] = None

    def check(self) -> None:
        if (self.partition is None) != (self.epoch is None):
            raise ValueError("give partition and epoch together, or neither")


class ConditionsReport(RequestBody, frozen=True):
    """All conditions of a flow. What an earlier report named and this one does not is over.

    * `seq`: Raised with every report of the flow; a report with an equal or lower one changes
      nothing.
    """

    seq: Annotated[int, said(minimum=0, maximum=MOST_INT64)]
    conditions: Annotated[tuple[Condition, ...], said(maxItems=MOST_CONDITIONS)]
