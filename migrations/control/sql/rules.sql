-- What the database itself refuses, even if the service has a defect: two owners of a partition in
-- one epoch, an epoch or a revision that goes back, a flow that comes back.
--
-- Each rule is the WHEN of a trigger on its own columns, which fires only if the rule is broken. So
-- commits of positions and renewals of leases, the most frequent writes, cost no more.

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
-- Also between two owners with nobody in between: each new owner needs a new epoch.
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
