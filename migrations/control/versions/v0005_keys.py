"""Keys and sessions, the key of a flow, and the audit (docs, *Security*).

Only hashes of keys and sessions are stored, as of the flows' tokens. A key is never deleted: the
audit and flows name it, and a service that had a key once stays closed.

The instance of a flow belongs to its key, so a bound instance is unique for each key. A replica of
an older version binds without keys and so keeps the narrower rule.
"""

from __future__ import annotations

from alembic import op

revision = "control_0005"
down_revision = "control_0004"
branch_labels = None
depends_on = None
serves_from = "control_0001"


def upgrade() -> None:
    op.execute("""
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
            ends_at double precision NOT NULL
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

        ALTER TABLE counterpoise.flows ADD COLUMN key_id text;
        DROP INDEX counterpoise.flows_bound_instance;
        CREATE UNIQUE INDEX flows_bound_instance
            ON counterpoise.flows (queue_id, instance_id, coalesce(key_id, ''))
            WHERE reason IS NULL;
        CREATE INDEX flows_bound_key ON counterpoise.flows (key_id)
            WHERE reason IS NULL AND key_id IS NOT NULL;
        CREATE INDEX flows_bound_token ON counterpoise.flows (token_hash) WHERE reason IS NULL;
    """)


def downgrade() -> None:
    op.execute("""
        DROP INDEX counterpoise.flows_bound_token, counterpoise.flows_bound_instance;
        ALTER TABLE counterpoise.flows DROP COLUMN key_id;
        CREATE UNIQUE INDEX flows_bound_instance ON counterpoise.flows (queue_id, instance_id)
            WHERE reason IS NULL;
        DROP TABLE counterpoise.audit, counterpoise.sessions, counterpoise.keys;
    """)
