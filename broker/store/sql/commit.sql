-- Commits what a replica decided on a queue. The theory is in `broker.store.commit`.
--
--   1. Locks, in the order that holds for the whole service: queue, flows, partitions, log.
--   2. Verdict: every fence is compared with the locked rows; then the clock is read.
--   3. Writes: all of them if every fence holds, otherwise none.
--   4. Answer: the verdict, and the positions as they are after the commit.
--
-- Postgres runs a part when another part reads it. So a part that must come later reads a count of
-- the earlier one: `count(*) >= 0` is always true, and is known when all rows there are locked.
--
-- Rows are given as JSON, by the names of their columns; a column that is missing is null. Columns
-- in which all rows agree are given once, in the record `every_…`.

WITH

clock AS (
    -- One time for the whole statement: that of its arrival, in Unix seconds.
    SELECT CAST(extract(epoch FROM statement_timestamp()) AS double precision) AS now
),

served AS (
    -- Leases run only while replicas serve (`broker.store.leases`).
    SELECT stamped_at + gap_seconds >= (SELECT now FROM clock) AS without_gap
    FROM counterpoise.service
    WHERE id = 1
),

-- ------------------------------------------------------------------------------------- 1. Locks

held AS (
    -- The fence against other replicas: the queue still has the revision that this replica has
    -- seen, and a level that it knows. This waits for a commit of another replica; after it, the
    -- row no longer qualifies.
    -- NO KEY: the foreign keys of other tables can refer to the row meanwhile.
    SELECT id
    FROM counterpoise.queues
    WHERE id = :queue AND revision = :seen AND level <= :level
    FOR NO KEY UPDATE
),

locked_flows AS (
    -- The flows that are stored already, as they are to be written. A flow without `draining` has
    -- no changes of its own: it leaves, or its lease begins anew.
    -- `fits` is the fence against renewals: a flow that expires has a lease that is over. It also
    -- leaves out flows that are not bound any more.
    SELECT
        locked.id, locked.queue_id, locked.instance_id, locked.client_name, locked.bind_number,
        locked.lease_seconds, locked.warmup, locked.bound_at, locked.binder, locked.attempt,
        coalesce(given.draining, locked.draining) AS draining,
        CASE WHEN given.draining IS NULL THEN locked.drain_deadline ELSE given.drain_deadline END
            AS drain_deadline,
        CASE WHEN given.draining IS NULL THEN locked.held_until ELSE given.held_until END
            AS held_until,
        coalesce(given.view_revision, locked.view_revision) AS view_revision,
        coalesce(given.active, locked.active) AS active,
        locked.token_hash,
        CASE WHEN given.renewed THEN (SELECT now FROM clock) + locked.lease_seconds
            ELSE locked.lease_expires_at END AS lease_expires_at,
        given.reason,
        CASE WHEN given.reason IS NOT NULL THEN (SELECT now FROM clock) END AS left_at,
        locked.key_id, locked.keeps_state, locked.weight, locked.max_partitions,
        given.id AS given_id,
        given.expired,
        (
            locked.id IS NOT NULL AND locked.reason IS NULL
            AND (
                given.expired IS NOT TRUE
                OR (
                    locked.lease_expires_at <= (SELECT now FROM clock)
                    AND (SELECT without_gap FROM served)
                )
            )
        ) IS TRUE AS fits
    FROM (
        SELECT *
        FROM json_to_recordset(:flows) AS flow (
            id text, draining boolean, drain_deadline double precision,
            held_until double precision, view_revision bigint, active boolean,
            renewed boolean, expired boolean, reason text
        )
        ORDER BY id
    ) AS given
    -- LIMIT leaves the planner one way: a look-up by the key, once for each given row.
    LEFT JOIN LATERAL (
        SELECT * FROM counterpoise.flows WHERE id = given.id LIMIT 1 FOR NO KEY UPDATE
    ) AS locked ON true
    WHERE (SELECT count(*) FROM held) > 0
),

locked_partitions AS (
    -- The partitions as they are to be written; a new one is not stored yet.
    -- `position` is the first of these: what an administrator sets (perhaps null), what a release
    -- brings, what is stored, where a partition without a position begins. `done_above` goes with
    -- the position: a set one has none, unless a message is passed. That takes effect only if
    -- nothing else has changed them since they were seen. `seq` is null in a new epoch.
    -- `fits` is the fence of a release: its flow still owns the partition in its epoch, and no
    -- later call of that flow, with a higher `seq`, was committed first.
    SELECT
        given.number, given.state, given.epoch, given.owner, given.retiring,
        given.handed_over, given.next_handed_over, given.released_by, given.unowned_since,
        given.successor, given.deadline, given.handoff_since, given.warm,
        given.warmed_by, given.warmed_epoch,
        CASE WHEN taken.is_set THEN given.set_position
            ELSE coalesce(given.release_position, locked.position, given.first_position)
            END AS position,
        CASE WHEN taken.is_set THEN given.set_done_above
            WHEN given.release_position IS NOT NULL THEN given.release_done_above
            ELSE locked.done_above END AS done_above,
        CASE WHEN given.epoch = locked.epoch THEN coalesce(given.release_seq, locked.seq) END
            AS seq,
        given.cut, given.cut_reached,
        (
            given.release_flow IS NULL
            OR (
                locked.owner = given.release_flow
                AND locked.epoch = given.release_epoch
                AND (
                    given.release_seq IS NULL OR locked.seq IS NULL
                    OR given.release_seq > locked.seq
                )
            )
        ) IS TRUE AS fits
    FROM (
        SELECT *
        FROM ROWS FROM (
            json_populate_recordset(
                json_populate_record(NULL::counterpoise.partitions, :every_partition), :partitions
            ),
            -- Row by row the same partitions; empty if no position changes.
            json_to_recordset(:positions) AS (
                release_flow text, release_epoch bigint, release_seq bigint, release_position text,
                release_done_above text, is_set boolean, set_position text, set_done_above text,
                is_passed boolean, seen_position text, seen_done_above text, first_position text
            )
        ) AS partition
        ORDER BY number
    ) AS given
    LEFT JOIN LATERAL (
        SELECT owner, epoch, seq, position, done_above
        FROM counterpoise.partitions
        WHERE queue_id = :queue AND number = given.number
        LIMIT 1
        FOR NO KEY UPDATE
    ) AS locked ON true
    CROSS JOIN LATERAL (
        SELECT given.is_set AND (
            given.is_passed IS NOT TRUE
            OR (
                given.release_position IS NULL
                AND locked.position IS NOT DISTINCT FROM given.seen_position
                AND locked.done_above IS NOT DISTINCT FROM given.seen_done_above
            )
        ) AS is_set
    ) AS taken
    WHERE (SELECT count(*) FROM held) > 0 AND (SELECT count(*) FROM locked_flows) >= 0
),

passed_fence AS (
    -- The fence against trims (`broker.store.trims`): no trim of the log was announced since the
    -- fence was taken. It leaves a new value in `readers`, which refuses trims that were planned
    -- without this commit. A commit that is refused for another reason may leave one, too; then a
    -- trim waits a minute.
    INSERT INTO counterpoise.trims AS trim (log, readers, announced)
    SELECT CAST(:fence_log AS text), :commit, :fence_announced
    WHERE :fence_log IS NOT NULL
        AND (SELECT count(*) FROM held) > 0
        AND (SELECT count(*) FROM locked_partitions) >= 0
    ON CONFLICT (log) DO UPDATE
        SET readers = excluded.readers
        WHERE trim.announced = excluded.announced AND trim.pending IS NULL
    RETURNING log
),

-- ----------------------------------------------------------------------------------- 2. Verdict

fences AS (
    SELECT
        (SELECT count(*) FROM held) > 0 AS held,
        ARRAY(SELECT given_id FROM locked_flows WHERE expired AND NOT fits) AS renewed,
        ARRAY(SELECT number FROM locked_partitions WHERE NOT fits) AS superseded,
        :fence_log IS NULL OR (SELECT count(*) FROM passed_fence) > 0 AS passed,
        -- CASE keeps the order: the clock is read after all waits for locks. Without times no
        -- commit is too late.
        CASE
            WHEN (SELECT count(*) FROM locked_partitions) >= 0
                AND (SELECT count(*) FROM passed_fence) >= 0
            THEN coalesce(
                CAST(extract(epoch FROM clock_timestamp()) AS double precision)
                    NOT BETWEEN :valid_from AND :valid_until,
                false
            )
        END AS overdue
),

verdict AS (
    SELECT
        *,
        held AND cardinality(renewed) = 0 AND cardinality(superseded) = 0 AND passed
            AND NOT overdue AS may
    FROM fences
),

-- ------------------------------------------------------------------------------------ 3. Writes

written_queue AS (
    -- All columns but those that no commit changes. To set a key column, even to the same value, would
    -- conflict with the locks of foreign keys.
    UPDATE counterpoise.queues
    SET (
        partition_count, access_type, rebalance_delay, max_handoff_time, max_warmup_time,
        max_concurrent_handoffs, log, start, partitioning, ordered_resize, aligned,
        retention_seconds, retention_bytes, max_weight, mirror_group, revision, status, trigger, since,
        holddown_until, flows_before, absent, moved, pauses, pins, rebalance, last_rebalance,
        growing, retiring_count, waiting_count, finished_count, over_capacity, unmet_pins,
        outage_seen, resize_seen, barriers, cuts_due, cuts_attempt, next_bind_number, next_deadline
    ) = (
        SELECT
            partition_count, access_type, rebalance_delay, max_handoff_time, max_warmup_time,
            max_concurrent_handoffs, log, start, partitioning, ordered_resize, aligned,
            retention_seconds, retention_bytes, max_weight, mirror_group, revision, status, trigger, since,
            holddown_until, flows_before, absent, moved, pauses, pins, rebalance, last_rebalance,
            growing, retiring_count, waiting_count, finished_count, over_capacity, unmet_pins,
            outage_seen, resize_seen, barriers, cuts_due, cuts_attempt, next_bind_number, next_deadline
        FROM json_populate_record(NULL::counterpoise.queues, :queue_row)
    )
    WHERE id = :queue AND revision = :seen AND (SELECT may FROM verdict)
),

written_records AS (
    INSERT INTO counterpoise.records (queue_id, revision, at, commit_id, rebalance_id, records)
    SELECT :queue, revision, at, :commit, rebalance_id, records
    FROM json_populate_recordset(NULL::counterpoise.records, :entries)
    WHERE (SELECT may FROM verdict)
),

written_flows AS (
    -- Stored flows, and below the partitions, are inserted over their rows. So Postgres finds them
    -- by the unique index of the key; an UPDATE would be a join, which it may plan in other ways.
    INSERT INTO counterpoise.flows (
        id, queue_id, instance_id, client_name, bind_number, lease_seconds, warmup, bound_at,
        binder, attempt, draining, drain_deadline, held_until, view_revision, active, token_hash,
        lease_expires_at, reason, left_at, key_id, keeps_state, weight, max_partitions
    )
    SELECT
        id, queue_id, instance_id, client_name, bind_number, lease_seconds, warmup, bound_at,
        binder, attempt, draining, drain_deadline, held_until, view_revision, active, token_hash,
        lease_expires_at, reason, left_at, key_id, keeps_state, weight, max_partitions
    FROM locked_flows
    WHERE fits AND (SELECT may FROM verdict)
    ON CONFLICT (id) DO UPDATE SET
        draining = excluded.draining, drain_deadline = excluded.drain_deadline,
        held_until = excluded.held_until,
        view_revision = excluded.view_revision, active = excluded.active,
        lease_expires_at = excluded.lease_expires_at,
        reason = excluded.reason, left_at = excluded.left_at
    RETURNING id
),

new_flows AS (
    -- After the stored flows: those that leave make room for the `bind_number` and the instance of
    -- a new one. A flow with a `reason` has bound and left within this commit.
    INSERT INTO counterpoise.flows (
        id, queue_id, instance_id, client_name, bind_number, lease_seconds, warmup, bound_at,
        binder, attempt, draining, drain_deadline, held_until, view_revision, active, token_hash,
        lease_expires_at, reason, left_at, key_id, keeps_state, weight, max_partitions
    )
    SELECT
        id, :queue, instance_id, client_name, bind_number, lease_seconds, warmup, bound_at,
        binder, attempt, draining, drain_deadline, held_until, view_revision, active, token_hash,
        (SELECT now FROM clock) + lease_seconds,
        reason, CASE WHEN reason IS NOT NULL THEN (SELECT now FROM clock) END, key_id,
        keeps_state, weight, max_partitions
    FROM json_populate_recordset(
        json_populate_record(NULL::counterpoise.flows, :every_new_flow), :new_flows
    )
    WHERE (SELECT may FROM verdict) AND (SELECT count(*) FROM written_flows) >= 0
),

written_partitions AS (
    INSERT INTO counterpoise.partitions (
        queue_id, number, state, epoch, owner, retiring, handed_over, next_handed_over, released_by,
        unowned_since, successor, deadline, handoff_since, warm, warmed_by, warmed_epoch,
        position, done_above, seq, cut, cut_reached
    )
    SELECT
        :queue, number, state, epoch, owner, retiring, handed_over, next_handed_over, released_by,
        unowned_since, successor, deadline, handoff_since, warm, warmed_by, warmed_epoch,
        position, done_above, seq, cut, cut_reached
    FROM locked_partitions
    WHERE (SELECT may FROM verdict)
    ON CONFLICT (queue_id, number) DO UPDATE SET
        state = excluded.state, epoch = excluded.epoch, owner = excluded.owner,
        retiring = excluded.retiring, handed_over = excluded.handed_over,
        next_handed_over = excluded.next_handed_over, released_by = excluded.released_by,
        unowned_since = excluded.unowned_since, successor = excluded.successor,
        deadline = excluded.deadline, handoff_since = excluded.handoff_since,
        warm = excluded.warm, warmed_by = excluded.warmed_by,
        warmed_epoch = excluded.warmed_epoch, position = excluded.position,
        done_above = excluded.done_above, seq = excluded.seq,
        cut = excluded.cut, cut_reached = excluded.cut_reached
    RETURNING number, epoch, position, done_above
),

removed_partitions AS (
    DELETE FROM counterpoise.partitions
    WHERE queue_id = :queue AND number = ANY(:removed_numbers) AND (SELECT may FROM verdict)
),

removed_keys AS (
    -- The key stays, so that no later partition gets it.
    UPDATE counterpoise.lineage
    SET parents = NULL
    WHERE queue_id = :queue AND key = ANY(:removed_keys) AND (SELECT may FROM verdict)
),

new_keys AS (
    INSERT INTO counterpoise.lineage (queue_id, key, number, parents)
    SELECT :queue, key, number, parents
    FROM json_populate_recordset(NULL::counterpoise.lineage, :children)
    WHERE (SELECT may FROM verdict)
),

audited AS (
    INSERT INTO counterpoise.audit (
        at, key_id, key_name, address, call, queue, flow_id, before, after
    )
    SELECT
        (SELECT now FROM clock), key_id, key_name, address, call, queue, flow_id, before, after
    FROM json_populate_recordset(NULL::counterpoise.audit, :acts)
    WHERE (SELECT may FROM verdict)
),

-- ------------------------------------------------------------------------------------ 4. Answer

answer AS (
    -- Of the written partitions; and of others that an answer will show, as they were when the
    -- statement arrived.
    SELECT
        array_agg(number ORDER BY number) AS numbers,
        array_agg(epoch ORDER BY number) AS epochs,
        array_agg(position ORDER BY number) AS positions,
        array_agg(done_above ORDER BY number) AS done_above
    FROM (
        SELECT number, epoch, position, done_above FROM written_partitions
        UNION ALL
        SELECT shown.number, found.epoch, found.position, found.done_above
        FROM unnest(CAST(:shown AS integer[])) AS shown (number)
        CROSS JOIN LATERAL (
            SELECT epoch, position, done_above
            FROM counterpoise.partitions
            WHERE queue_id = :queue AND number = shown.number
            LIMIT 1
        ) AS found
    ) AS partition
)

SELECT
    *,
    (SELECT numbers FROM answer),
    (SELECT epochs FROM answer),
    (SELECT positions FROM answer),
    (SELECT done_above FROM answer)
FROM verdict
