"""The level that a queue needs: older replicas do not change what they do not know.

`level` is the number of the oldest revision whose code knows everything that the queue uses. A
replica raises it when a feature is first used (`broker.store.levels`). The database refuses changes
by a replica of a lower level; the calls get 503. What such a replica may still do is harmless:
renew leases, commit positions, delete the queue.

A commit names the level of its replica in `writer_level`, which is 0 again when it is stored.
Commits of older code do not name it. Those that set `barriers` know all features before this
revision. The error has a code that all replicas take for one of the database, not for a defect.
"""

from __future__ import annotations

from alembic import op

revision = "control_0012"
down_revision = "control_0011"
branch_labels = None
depends_on = None
serves_from = "control_0001"


def upgrade() -> None:
    op.execute("""
        ALTER TABLE counterpoise.queues
            ADD COLUMN level smallint NOT NULL DEFAULT 0,
            ADD COLUMN writer_level smallint NOT NULL DEFAULT 0;
        UPDATE counterpoise.queues SET level = CASE
            WHEN ordered_resize OR barriers IS NOT NULL THEN 9
            WHEN partitioning = 'dynamic' THEN 7
            ELSE 0 END;

        CREATE FUNCTION counterpoise.know_barriers() RETURNS trigger
        LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
        BEGIN
            NEW.writer_level := greatest(NEW.writer_level, 11);
            RETURN NEW;
        END $$;

        CREATE FUNCTION counterpoise.refuse_older() RETURNS trigger
        LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
        BEGIN
            IF NEW.writer_level < greatest(OLD.level, NEW.level) THEN
                RAISE EXCEPTION 'The queue ''%'' uses what only a newer release knows (level %; '
                    'this replica has level %). Upgrade this replica.',
                    OLD.name, greatest(OLD.level, NEW.level), NEW.writer_level
                    USING ERRCODE = '58C01', CONSTRAINT = TG_NAME;
            END IF;
            NEW.writer_level := 0;
            RETURN NEW;
        END $$;

        -- Only commits set these columns. Triggers fire in the order of their names.
        CREATE TRIGGER level_0_of_older BEFORE UPDATE OF barriers ON counterpoise.queues
            FOR EACH ROW WHEN (OLD.level > NEW.writer_level)
            EXECUTE FUNCTION counterpoise.know_barriers();
        CREATE TRIGGER level_1_suffices BEFORE UPDATE OF partition_count ON counterpoise.queues
            FOR EACH ROW WHEN (OLD.level > 0 OR NEW.level > 0)
            EXECUTE FUNCTION counterpoise.refuse_older();
    """)


def downgrade() -> None:
    op.execute("""
        DROP TRIGGER level_0_of_older ON counterpoise.queues;
        DROP TRIGGER level_1_suffices ON counterpoise.queues;
        DROP FUNCTION counterpoise.know_barriers;
        DROP FUNCTION counterpoise.refuse_older;
        ALTER TABLE counterpoise.queues DROP COLUMN level, DROP COLUMN writer_level;
    """)
