"""The control tables: queues, flows, partitions, records, and the stamp of serving replicas.

The database itself refuses what must never happen, even if the service has a defect: two owners of
a partition in one epoch, an epoch or a revision that goes back, a flow that comes back, a state
without its columns. Each rule is the WHEN of a trigger on its own columns, which fires only if the
rule is broken. So commits of positions and renewals of leases, the most frequent writes, cost no
more because of the rules.

Times are Unix seconds in double precision: the service reads its deadlines back exactly, so a
loaded queue equals the replayed one.
"""

from __future__ import annotations

from alembic import op

revision = "control_0001"
down_revision = None
branch_labels = None
depends_on = None

QUEUES = """
CREATE TABLE counterpoise.queues (
    id text PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE CHECK (name ~ '^[A-Za-z0-9._-]{1,200}$'),
    created_at double precision NOT NULL,
    -- The settings, by their names in the contract.
    partition_count integer NOT NULL CHECK (partition_count BETWEEN 0 AND 1000000),
    access_type text NOT NULL CHECK (access_type IN ('exclusive', 'non_exclusive')),
    rebalance_delay double precision NOT NULL CHECK (rebalance_delay BETWEEN 0 AND 3600),
    max_handoff_time double precision NOT NULL CHECK (max_handoff_time BETWEEN 0 AND 3600),
    max_warmup_time double precision NOT NULL CHECK (max_warmup_time BETWEEN 0 AND 86400),
    max_concurrent_handoffs integer CHECK (max_concurrent_handoffs BETWEEN 1 AND 100000),
    log text NOT NULL,
    start text NOT NULL CHECK (start IN ('earliest', 'latest')),
    partitioning text NOT NULL CHECK (partitioning IN ('fixed', 'dynamic')),
    ordered_resize boolean NOT NULL,
    -- Where it stands. A commit succeeds only on the revision that was seen.
    revision bigint NOT NULL,
    status text NOT NULL CHECK (status IN ('Ready', 'Holddown', 'Rebalancing')),
    trigger text,
    since double precision NOT NULL,
    holddown_until double precision,
    flows_before integer NOT NULL,
    -- {instance_id: [seat, [partition, ...]]} of the flows that left during the holddown.
    departed jsonb NOT NULL,
    rebalance jsonb,
    last_rebalance jsonb,
    growing boolean NOT NULL,
    retiring_count integer NOT NULL,
    outage_seen bigint NOT NULL,
    next_seat bigint NOT NULL,
    -- When the queue must be advanced, for the sweep of whoever is alive then.
    next_deadline double precision,
    CONSTRAINT trigger_unless_ready CHECK ((status = 'Ready') = (trigger IS NULL)),
    CONSTRAINT end_of_holddown CHECK ((status = 'Holddown') = (holddown_until IS NOT NULL)),
    CONSTRAINT open_rebalance CHECK ((status = 'Rebalancing') = (rebalance IS NOT NULL))
) WITH (fillfactor = 50);
"""

FLOWS = """
-- A row stays for a day after the flow left, so that its client can be told why.
CREATE TABLE counterpoise.flows (
    id text PRIMARY KEY,
    queue_id text NOT NULL REFERENCES counterpoise.queues ON DELETE CASCADE,
    instance_id text NOT NULL,
    client_name text NOT NULL,
    seat bigint NOT NULL,
    lease_seconds double precision NOT NULL CHECK (lease_seconds > 0),
    warmup boolean NOT NULL,
    bound_at double precision NOT NULL,
    draining boolean NOT NULL,
    drain_deadline double precision,
    -- The revision at which what the flow sees last changed.
    view_revision bigint NOT NULL,
    -- Owns at least one partition.
    active boolean NOT NULL,
    token_hash bytea NOT NULL,
    lease_expires_at double precision NOT NULL,
    -- Why and when it left; null while it is bound.
    reason text,
    left_at double precision,
    CONSTRAINT left_with_reason CHECK ((reason IS NULL) = (left_at IS NULL))
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX flows_bound_instance ON counterpoise.flows (queue_id, instance_id)
    WHERE reason IS NULL;
CREATE UNIQUE INDEX flows_bound_seat ON counterpoise.flows (queue_id, seat) WHERE reason IS NULL;
CREATE INDEX flows_of_queue ON counterpoise.flows (queue_id);
CREATE INDEX flows_left ON counterpoise.flows (left_at) WHERE reason IS NOT NULL;
"""

PARTITIONS = """
-- A row stays when its partition is removed: a number used again goes on counting epochs.
-- No foreign key to the queue or the owner: it would be checked row by row for every partition.
CREATE TABLE counterpoise.partitions (
    queue_id text NOT NULL,
    number integer NOT NULL CHECK (number >= 0),
    state text NOT NULL
        CHECK (state IN ('unassigned', 'owned', 'warming', 'revoking', 'removed')),
    epoch bigint NOT NULL CHECK (epoch >= 0),
    owner text,
    retiring boolean NOT NULL,
    handed_over text,
    let_go text NOT NULL,
    released_by text,
    unowned_since double precision,
    -- The handoff: to whom (null: nobody can take it), by when, since when, with a warm-up or not.
    successor text,
    deadline double precision,
    handoff_since double precision,
    warm boolean,
    -- Who said ready in the latest handoff, for which epoch.
    warmed_by text,
    warmed_epoch bigint,
    -- Where the log has been processed up to, and the highest seq in this epoch.
    position text,
    seq bigint,
    PRIMARY KEY (queue_id, number),
    CONSTRAINT owner_of_state CHECK (
        (owner IS NOT NULL) = (state IN ('owned', 'warming', 'revoking'))),
    CONSTRAINT owned_in_an_epoch CHECK (owner IS NULL OR (epoch > 0 AND handed_over IS NOT NULL)),
    CONSTRAINT handoff_of_state CHECK (
        (state IN ('warming', 'revoking')) = (deadline IS NOT NULL)
        AND num_nulls(deadline, handoff_since, warm) IN (0, 3)
        AND (successor IS NULL OR deadline IS NOT NULL)),
    CONSTRAINT unowned_since_of_state CHECK (unowned_since IS NULL OR state = 'unassigned'),
    CONSTRAINT removed_is_not_retiring CHECK (NOT (retiring AND state = 'removed')),
    CONSTRAINT warmed_for_an_epoch CHECK ((warmed_by IS NULL) = (warmed_epoch IS NULL))
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
"""

RECORDS = """
CREATE TABLE counterpoise.records (
    queue_id text NOT NULL REFERENCES counterpoise.queues ON DELETE CASCADE,
    revision bigint NOT NULL,
    at double precision NOT NULL,
    commit_id text NOT NULL,
    -- The entry of the history that they belong to.
    rebalance_id bigint,
    records jsonb NOT NULL,
    PRIMARY KEY (queue_id, revision)
);
CREATE INDEX records_of_rebalance ON counterpoise.records (queue_id, rebalance_id, revision)
    WHERE rebalance_id IS NOT NULL;
CREATE INDEX records_at ON counterpoise.records USING brin (at);
"""

SERVICE = """
-- One row, stamped every second by whoever serves.
CREATE TABLE counterpoise.service (
    id smallint PRIMARY KEY CHECK (id = 1),
    stamped_at double precision,
    -- How old the stamp may be before nobody is said to have served.
    gap_seconds double precision NOT NULL
) WITH (fillfactor = 10);
INSERT INTO counterpoise.service (id, gap_seconds) VALUES (1, 3);

CREATE TABLE counterpoise.outages (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    began double precision NOT NULL,
    seconds double precision NOT NULL CHECK (seconds > 0)
);
"""

RULES = """
CREATE FUNCTION counterpoise.refuse() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0] USING
        ERRCODE = 'check_violation', DETAIL = left(format('%s -> %s', OLD, NEW), 1000),
        SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = TG_NAME;
END $$;

CREATE TRIGGER epochs_rise BEFORE UPDATE OF epoch ON counterpoise.partitions
    FOR EACH ROW WHEN (NEW.epoch < OLD.epoch)
    EXECUTE FUNCTION counterpoise.refuse('the epoch of a partition goes back');
-- Also between two owners with nobody in between: whoever becomes the owner needs a new epoch.
CREATE TRIGGER one_owner_in_an_epoch BEFORE UPDATE OF owner ON counterpoise.partitions
    FOR EACH ROW WHEN (
        NEW.owner IS NOT NULL AND NEW.owner IS DISTINCT FROM OLD.owner AND NEW.epoch <= OLD.epoch)
    EXECUTE FUNCTION counterpoise.refuse('a partition has two owners in one epoch');
CREATE TRIGGER partitions_stay BEFORE UPDATE OF queue_id, number ON counterpoise.partitions
    FOR EACH ROW WHEN ((OLD.queue_id, OLD.number) IS DISTINCT FROM (NEW.queue_id, NEW.number))
    EXECUTE FUNCTION counterpoise.refuse('a partition becomes another');
CREATE TRIGGER revisions_rise BEFORE UPDATE OF revision ON counterpoise.queues
    FOR EACH ROW WHEN (NEW.revision < OLD.revision)
    EXECUTE FUNCTION counterpoise.refuse('the revision of a queue goes back');
CREATE TRIGGER views_rise BEFORE UPDATE OF view_revision ON counterpoise.flows
    FOR EACH ROW WHEN (NEW.view_revision < OLD.view_revision)
    EXECUTE FUNCTION counterpoise.refuse('the view of a flow goes back');
CREATE TRIGGER flows_leave_once BEFORE UPDATE ON counterpoise.flows
    FOR EACH ROW WHEN (OLD.reason IS NOT NULL)
    EXECUTE FUNCTION counterpoise.refuse('a flow that left changes');
CREATE TRIGGER records_stay BEFORE UPDATE ON counterpoise.records
    FOR EACH ROW EXECUTE FUNCTION counterpoise.refuse('a record changes');
"""


def upgrade() -> None:
    for script in (QUEUES, FLOWS, PARTITIONS, RECORDS, SERVICE, RULES):
        op.execute(script)


def downgrade() -> None:
    op.execute("""
        DROP TABLE counterpoise.outages, counterpoise.service, counterpoise.records,
            counterpoise.partitions, counterpoise.flows, counterpoise.queues;
        DROP FUNCTION counterpoise.refuse;
    """)
