"""Positions that are mirrored into consumer groups of Kafka.

`mirror_group` names the group of a queue. Older replicas keep it, and mirror nothing; but they do
not know the change of this setting, so a queue that has it has level 19. See
`broker.store.mirrors`.
"""

from __future__ import annotations

from alembic import op

revision = "control_0019"
down_revision = "control_0018"
branch_labels = None
depends_on = None
serves_from = "control_0001"


def upgrade() -> None:
    op.execute("""
        ALTER TABLE counterpoise.queues ADD COLUMN mirror_group text;
        CREATE INDEX queues_mirrored ON counterpoise.queues (id) WHERE mirror_group IS NOT NULL;
        CREATE TABLE counterpoise.mirror_failures (
            queue_id text PRIMARY KEY REFERENCES counterpoise.queues (id) ON DELETE CASCADE,
            consumer_group text NOT NULL,
            text text NOT NULL,
            since double precision NOT NULL
        );
        ALTER TABLE counterpoise.service
            ADD COLUMN mirrored_by text,
            ADD COLUMN mirrored_until double precision;
    """)


def downgrade() -> None:
    op.execute("""
        ALTER TABLE counterpoise.service DROP COLUMN mirrored_by, DROP COLUMN mirrored_until;
        DROP TABLE counterpoise.mirror_failures;
        ALTER TABLE counterpoise.queues DROP COLUMN mirror_group;
    """)
