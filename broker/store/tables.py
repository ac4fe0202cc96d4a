"""The control tables in SQLAlchemy Core.

`migrations/control` creates them, with the constraints and triggers that back the invariants; a
test compares the two. Column names are those of `broker.store.rows`.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    func,
    literal_column,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

SCHEMA = "counterpoise"

metadata = MetaData(schema=SCHEMA)


def _queue_id(*, primary_key: bool = False) -> Column[str]:
    to_queue = ForeignKey(f"{SCHEMA}.queues.id", ondelete="CASCADE")
    return Column("queue_id", Text, to_queue, nullable=False, primary_key=primary_key)


queues = Table(
    "queues",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text(collation="C"), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("partition_count", Integer, nullable=False),
    Column("access_type", Text, nullable=False),
    Column("rebalance_delay", Double, nullable=False),
    Column("max_handoff_time", Double, nullable=False),
    Column("max_warmup_time", Double, nullable=False),
    Column("max_concurrent_handoffs", Integer),
    Column("log", Text, nullable=False),
    Column("start", Text, nullable=False),
    Column("partitioning", Text, nullable=False),
    Column("ordered_resize", Boolean, nullable=False),
    Column("aligned", Integer, nullable=False),
    Column("mirror_group", Text),
    Column("retention_seconds", Double),
    Column("retention_bytes", BigInteger),
    Column("max_weight", Integer, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("trigger", Text),
    Column("since", Double, nullable=False),
    Column("holddown_until", Double),
    Column("flows_before", Integer, nullable=False),
    Column("absent", JSONB, nullable=False),
    Column("moved", JSONB, nullable=False),
    Column("pauses", JSONB, nullable=False),
    Column("pins", JSONB, nullable=False),
    Column("rebalance", JSONB(none_as_null=True)),
    Column("last_rebalance", JSONB(none_as_null=True)),
    Column("growing", Boolean, nullable=False),
    Column("retiring_count", Integer, nullable=False),
    Column("waiting_count", Integer, nullable=False),
    Column("finished_count", Integer, nullable=False),
    Column("over_capacity", Integer, nullable=False),
    Column("unmet_pins", Integer, nullable=False),
    Column("outage_seen", BigInteger, nullable=False),
    Column("resize_seen", BigInteger, nullable=False),
    Column("barriers", JSONB(none_as_null=True)),
    Column("cuts_due", Double),
    Column("cuts_attempt", Integer, nullable=False),
    Column("next_bind_number", BigInteger, nullable=False),
    Column("next_deadline", Double),
    # See `broker.store.levels`.
    Column("level", SmallInteger, nullable=False),
    UniqueConstraint("name", name="queues_name_key"),
)
is_mirrored = queues.c.mirror_group.is_not(None)
Index("queues_mirrored", queues.c.id, postgresql_where=is_mirrored)

flows = Table(
    "flows",
    metadata,
    Column("id", Text, primary_key=True),
    _queue_id(),
    Column("instance_id", Text, nullable=False),
    Column("client_name", Text, nullable=False),
    Column("bind_number", BigInteger, nullable=False),
    Column("lease_seconds", Double, nullable=False),
    Column("warmup", Boolean, nullable=False),
    Column("bound_at", Double, nullable=False),
    Column("binder", Text),
    Column("attempt", BigInteger, nullable=False),
    Column("draining", Boolean, nullable=False),
    Column("drain_deadline", Double),
    Column("held_until", Double),
    Column("view_revision", BigInteger, nullable=False),
    Column("active", Boolean, nullable=False),
    Column("token_hash", LargeBinary, nullable=False),
    Column("lease_expires_at", Double, nullable=False),
    Column("reason", Text),
    Column("left_at", Double),
    Column("key_id", Text),
    Column("keeps_state", Boolean, nullable=False),
    Column("weight", Integer, nullable=False),
    Column("max_partitions", Integer),
)
bound = flows.c.reason.is_(None)
Index(
    "flows_bound_instance",
    flows.c.queue_id,
    flows.c.instance_id,
    func.coalesce(flows.c.key_id, literal_column("''")),
    unique=True,
    postgresql_where=bound,
)
Index(
    "flows_bind_number",
    flows.c.queue_id,
    flows.c.bind_number,
    unique=True,
    postgresql_where=bound,
)
Index("flows_of_queue", flows.c.queue_id)
Index(
    "flows_bound_key",
    flows.c.key_id,
    postgresql_where=bound & flows.c.key_id.is_not(None),
)
Index("flows_bound_token", flows.c.token_hash, postgresql_where=bound)
Index("flows_left", flows.c.left_at, postgresql_where=flows.c.reason.is_not(None))

partitions = Table(
    "partitions",
    metadata,
    Column("queue_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("state", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", Text),
    Column("retiring", Boolean, nullable=False),
    Column("handed_over", Text),
    Column("next_handed_over", Text, nullable=False),
    Column("released_by", Text),
    Column("unowned_since", Double),
    Column("successor", Text),
    Column("deadline", Double),
    Column("handoff_since", Double),
    Column("warm", Boolean),
    Column("warmed_by", Text),
    Column("warmed_epoch", BigInteger),
    Column("position", Text),
    Column("done_above", Text),
    Column("seq", BigInteger),
    Column("cut", Text),
    Column("cut_reached", Boolean),
)

# The keys of a dynamic queue, also of partitions that were removed: those have no parents.
lineage = Table(
    "lineage",
    metadata,
    _queue_id(primary_key=True),
    Column("key", Text(collation="C"), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("parents", JSONB(none_as_null=True)),
)

records = Table(
    "records",
    metadata,
    _queue_id(primary_key=True),
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("commit_id", Text, nullable=False),
    Column("rebalance_id", BigInteger),
    Column("records", JSONB, nullable=False),
)
Index(
    "records_of_rebalance",
    records.c.queue_id,
    records.c.rebalance_id,
    records.c.revision,
    postgresql_where=records.c.rebalance_id.is_not(None),
)
Index("records_at", records.c.at, postgresql_using="brin")

# See `broker.store.trims`.
trims = Table(
    "trims",
    metadata,
    Column("log", Text(collation="C"), primary_key=True),
    Column("readers", Text, nullable=False),
    Column("announced", Text, nullable=False),
    Column("pending", Text),
)

# See `broker.store.conditions`. The row goes with the flow's; a reference to the queue, too, would
# meet its deletion in another order of locks.
conditions = Table(
    "conditions",
    metadata,
    Column("flow_id", Text, ForeignKey(f"{SCHEMA}.flows.id", ondelete="CASCADE"), primary_key=True),
    Column("queue_id", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("conditions", JSONB, nullable=False),
)
has_conditions = conditions.c.conditions != literal_column("'[]'::jsonb")
Index("conditions_of_queue", conditions.c.queue_id, postgresql_where=has_conditions)

# See `broker.store.measurements`. A reference to the queue would meet its deletion in another order
# of locks.
measurements = Table(
    "measurements",
    metadata,
    Column("queue_id", Text, primary_key=True),
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    Column("lag", BigInteger),
    Column("end", BigInteger),
)
Index("measurements_at", measurements.c.at)

# As above: how many messages had which age when they were committed.
commit_ages = Table(
    "commit_ages",
    metadata,
    Column("queue_id", Text, primary_key=True),
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    Column("counts", ARRAY(BigInteger), nullable=False),
)
Index("commit_ages_at", commit_ages.c.at)

# See `broker.store.mirrors`.
mirror_failures = Table(
    "mirror_failures",
    metadata,
    _queue_id(primary_key=True),
    Column("consumer_group", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("since", Double, nullable=False),
)

service = Table(
    "service",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("stamped_at", Double),
    Column("gap_seconds", Double, nullable=False),
    # The place of these tables, to detect a copy (`broker.postgres.restoring.moved`).
    Column("home", Text),
    # Where replicas wake each other (`broker.store.notifications`).
    Column("channel", Text, nullable=False),
    # The newest round of measurements.
    Column("measured_at", BigInteger),
    # Which replica mirrors positions, and until when no other does.
    Column("mirrored_by", Text),
    Column("mirrored_until", Double),
)

outages = Table(
    "outages",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("began", Double, nullable=False),
    Column("seconds", Double, nullable=False),
)

keys = Table(
    "keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("hash", LargeBinary, nullable=False),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("queues", ARRAY(Text), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("ends_at", Double),
    Column("revoked_at", Double),
    Column("last_used_at", Double),
)

sessions = Table(
    "sessions",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    Column("key_id", Text, ForeignKey(f"{SCHEMA}.keys.id"), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("ends_at", Double, nullable=False),
    Column("unlocked_until", Double),
)
Index("sessions_of_key", sessions.c.key_id, sessions.c.created_at)
Index("sessions_end", sessions.c.ends_at)

audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", Double, nullable=False),
    Column("key_id", Text),
    Column("key_name", Text),
    Column("address", Text),
    Column("call", Text, nullable=False),
    Column("queue", Text(collation="C")),
    Column("flow_id", Text),
    Column("before", JSONB(none_as_null=True)),
    Column("after", JSONB(none_as_null=True)),
)
Index("audit_of_queue", audit.c.queue, audit.c.id)
Index("audit_at", audit.c.at, postgresql_using="brin")
