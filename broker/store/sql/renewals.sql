-- The leases of these flows begin anew (`broker.store.leases`).
--
-- It waits for no lock (SKIP LOCKED): flows that another transaction holds are left out.

UPDATE counterpoise.flows
SET lease_expires_at =
    CAST(extract(epoch FROM statement_timestamp()) AS double precision) + lease_seconds
WHERE id = ANY(ARRAY(
    SELECT id
    FROM counterpoise.flows
    WHERE id = ANY(:flow_ids) AND reason IS NULL
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
))
RETURNING id, lease_expires_at, view_revision
