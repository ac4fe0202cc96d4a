-- A resize notes where each partition ends in its transaction: the cuts of an ordered resize.
--
-- The cuts are taken by a trigger on the partition count, so no program that resizes a log can
-- forget them. It has to lock all rows of the log's partitions (`lock_log`) in a statement before:
-- one that waited for the locks itself would not see the ends of meanwhile. And an append locks the rows of its partitions before it reads the count. So every
-- message that was routed with the old count lies below the cut of its partition, and every message
-- that is routed with the new count lies at the cut or past it.

CREATE FUNCTION counterpoise_log.take_cuts() RETURNS trigger
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Partitions of hash ranges are split and merged, and the count is that of all there ever were.
    PERFORM FROM counterpoise_log.partitions
        WHERE log_id = NEW.log_id AND first_hash IS NOT NULL LIMIT 1;
    IF FOUND THEN
        RETURN NEW;
    END IF;
    UPDATE counterpoise_log.partitions SET cut = next_position WHERE log_id = NEW.log_id;
    NEW.resize := OLD.resize + 1;
    NEW.resized_from := OLD.partition_count;
    RETURN NEW;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.take_cuts FROM PUBLIC;

CREATE TRIGGER take_cuts BEFORE UPDATE OF partition_count ON counterpoise_log.logs
    FOR EACH ROW WHEN (NEW.partition_count <> OLD.partition_count)
    EXECUTE FUNCTION counterpoise_log.take_cuts();
