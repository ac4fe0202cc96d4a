-- The control tables: what the service knows of queues, flows and partitions, and of its callers.
--
-- Times are Unix seconds in double precision: the service reads its deadlines back exactly, so a
-- loaded queue equals the replayed one. What must never happen is refused by constraints here, and
-- by the triggers in rules.sql.

CREATE TABLE counterpoise.queues (
    id text PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE CHECK (name ~ '^[A-Za-z0-9._-]{1,200}$'),
    created_at double precision NOT NULL,
    -- The settings, by their names in the contract.
    partition_count integer NOT NULL CHECK (partition_count BETWEEN 0 AND 4096),
    access_type text NOT NULL CHECK (access_type IN ('exclusive', 'non_exclusive')),
    rebalance_delay double precision NOT NULL CHECK (rebalance_delay BETWEEN 0 AND 3600),
    max_handoff_time double precision NOT NULL CHECK (max_handoff_time BETWEEN 0 AND 3600),
    max_warmup_time double precision NOT NULL CHECK (max_warmup_time BETWEEN 0 AND 86400),
    max_concurrent_handoffs integer CHECK (max_concurrent_handoffs BETWEEN 1 AND 4096),
    log text NOT NULL,
    start text NOT NULL CHECK (start IN ('earliest', 'latest')),
    partitioning text NOT NULL CHECK (partitioning IN ('fixed', 'dynamic')),
    ordered_resize boolean NOT NULL,
    -- So many partitions in a row have one owner: a queue that reads several logs side by side.
    aligned integer NOT NULL DEFAULT 1,
    -- Null for queues without a built-in log of their own.
    retention_seconds double precision,
    retention_bytes bigint,
    -- The largest weight that a flow may bind with (`broker.core.shares`).
    max_weight integer NOT NULL DEFAULT 1000 CHECK (max_weight BETWEEN 1 AND 1000),
    mirror_group text,
    -- Where it stands. A commit succeeds only on the revision that was seen.
    revision bigint NOT NULL,
    status text NOT NULL CHECK (status IN ('Ready', 'Holddown', 'Rebalancing')),
    trigger text,
    since double precision NOT NULL,
    holddown_until double precision,
    flows_before integer NOT NULL,
    -- Of the flows that left during the holddown (`broker.store.rows`).
    absent jsonb NOT NULL,
    -- Of each key that has taken partitions lately (`broker.core.budget`).
    moved jsonb NOT NULL DEFAULT '{}',
    -- What is paused: of each partition, and of the queue under an empty name (`broker.core.pauses`).
    pauses jsonb NOT NULL DEFAULT '{}',
    -- To which consumer partitions are pinned, by the first of their group (`broker.core.pins`).
    pins jsonb NOT NULL DEFAULT '{}',
    rebalance jsonb,
    last_rebalance jsonb,
    growing boolean NOT NULL,
    retiring_count integer NOT NULL,
    waiting_count integer NOT NULL DEFAULT 0,
    finished_count integer NOT NULL DEFAULT 0,
    -- Partitions for which the maxima of all flows together have no room.
    over_capacity integer NOT NULL DEFAULT 0,
    -- Partitions that are pinned without effect.
    unmet_pins integer NOT NULL DEFAULT 0,
    outage_seen bigint NOT NULL,
    -- The barriers of an ordered resize: of which resize, and when to ask for its cuts again.
    resize_seen bigint NOT NULL DEFAULT 0,
    barriers jsonb,
    cuts_due double precision,
    cuts_attempt integer NOT NULL DEFAULT 0,
    next_bind_number bigint NOT NULL,
    -- When the queue must be advanced, for the sweep of any replica that is alive then.
    next_deadline double precision,
    -- Replicas of a lower level do not change the queue (`broker.store.levels`).
    level smallint NOT NULL DEFAULT 0,
    CONSTRAINT trigger_unless_ready CHECK ((status = 'Ready') = (trigger IS NULL)),
    -- While Rebalancing: the loop hands over pairs alone until then (`broker.core.pairs`).
    CONSTRAINT end_of_holddown CHECK (
        status = 'Rebalancing' OR (status = 'Holddown') = (holddown_until IS NOT NULL)),
    CONSTRAINT open_rebalance CHECK ((status = 'Rebalancing') = (rebalance IS NOT NULL))
) WITH (fillfactor = 50);
CREATE INDEX queues_mirrored ON counterpoise.queues (id) WHERE mirror_group IS NOT NULL;

-- A row stays for a day after the flow left, so that its client can be told why.
CREATE TABLE counterpoise.flows (
    id text PRIMARY KEY,
    queue_id text NOT NULL REFERENCES counterpoise.queues ON DELETE CASCADE,
    instance_id text NOT NULL,
    client_name text NOT NULL,
    bind_number bigint NOT NULL,
    lease_seconds double precision NOT NULL CHECK (lease_seconds > 0),
    warmup boolean NOT NULL,
    bound_at double precision NOT NULL,
    -- Who binds, and its how many-th attempt: a late bind does not replace a later one.
    binder text,
    attempt bigint NOT NULL DEFAULT 0,
    key_id text,
    -- It has state that no handoff takes along.
    keeps_state boolean NOT NULL DEFAULT false,
    -- Its share of the partitions, and how many it takes at most.
    weight integer NOT NULL DEFAULT 1 CHECK (weight BETWEEN 1 AND 1000),
    max_partitions integer CHECK (max_partitions > 0),
    draining boolean NOT NULL,
    drain_deadline double precision,
    held_until double precision,
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
-- The instance of a flow belongs to its key.
CREATE UNIQUE INDEX flows_bound_instance
    ON counterpoise.flows (queue_id, instance_id, coalesce(key_id, '')) WHERE reason IS NULL;
CREATE UNIQUE INDEX flows_bind_number ON counterpoise.flows (queue_id, bind_number)
    WHERE reason IS NULL;
CREATE INDEX flows_of_queue ON counterpoise.flows (queue_id);
CREATE INDEX flows_bound_key ON counterpoise.flows (key_id)
    WHERE reason IS NULL AND key_id IS NOT NULL;
CREATE INDEX flows_bound_token ON counterpoise.flows (token_hash) WHERE reason IS NULL;
CREATE INDEX flows_left ON counterpoise.flows (left_at) WHERE reason IS NOT NULL;

-- A row stays when its partition is removed: a number used again goes on counting epochs.
-- No foreign key to the queue or the owner: it would be checked row by row for every partition.
CREATE TABLE counterpoise.partitions (
    queue_id text NOT NULL,
    number integer NOT NULL CHECK (number >= 0),
    state text NOT NULL CHECK (state IN (
        'unassigned', 'owned', 'warming', 'revoking', 'removed', 'waiting', 'finished')),
    epoch bigint NOT NULL CHECK (epoch >= 0),
    owner text,
    retiring boolean NOT NULL,
    handed_over text,
    next_handed_over text NOT NULL,
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
    -- What is done above the position, as its owner writes it.
    done_above text,
    seq bigint,
    -- Where an ordered resize has cut it, and whether it has been processed up to there.
    cut text,
    cut_reached boolean,
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

-- The graph of a dynamic queue (the contract, *Lineage*). A key is remembered for as long as the
-- queue exists, its parents for as long as its partition does.
CREATE TABLE counterpoise.lineage (
    queue_id text NOT NULL REFERENCES counterpoise.queues ON DELETE CASCADE,
    key text COLLATE "C" NOT NULL,
    number integer NOT NULL CHECK (number >= 0),
    -- Keys; null once the partition was removed.
    parents jsonb,
    PRIMARY KEY (queue_id, key)
) WITH (fillfactor = 80);

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

-- What of a log is about to be trimmed, so that no reader begins to need it meanwhile
-- (`broker.store.trims`).
CREATE TABLE counterpoise.trims (
    log text COLLATE "C" PRIMARY KEY,
    readers text NOT NULL,
    announced text NOT NULL,
    pending text
);

-- What consumers report of their partitions: one row for each flow that has reported anything. It
-- goes with the flow's row (`broker.store.conditions`).
CREATE TABLE counterpoise.conditions (
    flow_id text PRIMARY KEY REFERENCES counterpoise.flows ON DELETE CASCADE,
    queue_id text NOT NULL,
    seq bigint NOT NULL,
    conditions jsonb NOT NULL
);
CREATE INDEX conditions_of_queue ON counterpoise.conditions (queue_id)
    WHERE conditions <> '[]'::jsonb;

-- An hour of each queue's lag and of what was published to it (`broker.store.measurements`).
CREATE TABLE counterpoise.measurements (
    queue_id text NOT NULL,
    at bigint NOT NULL,
    lag bigint,
    "end" bigint,
    PRIMARY KEY (queue_id, at)
);
CREATE INDEX measurements_at ON counterpoise.measurements (at);

-- An hour of how old messages were when they were committed: how many, by bounds of the age.
CREATE TABLE counterpoise.commit_ages (
    queue_id text NOT NULL,
    at bigint NOT NULL,
    counts bigint[] NOT NULL,
    PRIMARY KEY (queue_id, at)
);
CREATE INDEX commit_ages_at ON counterpoise.commit_ages (at);

-- Mirrors of positions in Kafka that fail (`broker.store.mirrors`).
CREATE TABLE counterpoise.mirror_failures (
    queue_id text PRIMARY KEY REFERENCES counterpoise.queues (id) ON DELETE CASCADE,
    consumer_group text NOT NULL,
    text text NOT NULL,
    since double precision NOT NULL
);

-- One row, stamped every second by a replica that serves.
CREATE TABLE counterpoise.service (
    id smallint PRIMARY KEY CHECK (id = 1),
    stamped_at double precision,
    -- How old the stamp may be before the service counts as away.
    gap_seconds double precision NOT NULL,
    -- The database in which the tables were written first, to detect a dump restored elsewhere
    -- (`broker.postgres.restoring`). Null until a service or `counterpoise migrate` has set it.
    home text,
    -- On which replicas wake each other. Each role of a database may LISTEN and NOTIFY on every
    -- channel that it can name, so only replicas know the name.
    channel text NOT NULL DEFAULT 'counterpoise_' || gen_random_uuid(),
    measured_at bigint,
    -- Which replica mirrors positions, and until when no other does.
    mirrored_by text,
    mirrored_until double precision
) WITH (fillfactor = 10);
INSERT INTO counterpoise.service (id, gap_seconds) VALUES (1, 3);

CREATE TABLE counterpoise.outages (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    began double precision NOT NULL,
    -- Negative: the clock of the database went back (`broker.store.leases`).
    seconds double precision NOT NULL CHECK (seconds <> 0)
);

-- Only hashes of keys and sessions are stored, as of the flows' tokens. A key is never deleted: the
-- audit and flows name it, and a service that had a key once stays closed.
CREATE TABLE counterpoise.keys (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{12}$'),
    hash bytea NOT NULL,
    name text NOT NULL,
    role text NOT NULL CHECK (role IN ('viewer', 'publisher', 'consumer', 'admin')),
    queues text[] NOT NULL CHECK (cardinality(queues) > 0),
    created_at double precision NOT NULL,
    ends_at double precision,
    revoked_at double precision,
    last_used_at double precision
);

CREATE TABLE counterpoise.sessions (
    hash bytea PRIMARY KEY,
    key_id text NOT NULL REFERENCES counterpoise.keys,
    created_at double precision NOT NULL,
    ends_at double precision NOT NULL,
    -- Until then it may change something; null, or past: it only reads.
    unlocked_until double precision
);
CREATE INDEX sessions_of_key ON counterpoise.sessions (key_id, created_at);
CREATE INDEX sessions_end ON counterpoise.sessions (ends_at);

CREATE TABLE counterpoise.audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at double precision NOT NULL,
    key_id text,
    key_name text,
    address text,
    call text NOT NULL,
    queue text COLLATE "C",
    flow_id text,
    before jsonb,
    after jsonb
);
CREATE INDEX audit_of_queue ON counterpoise.audit (queue, id);
CREATE INDEX audit_at ON counterpoise.audit USING brin (at);
