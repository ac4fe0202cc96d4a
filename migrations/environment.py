"""Runs a tree of migrations; each tree's env.py calls `run` with its schema.

The caller gives `config.attributes["connection"]`: a SQLAlchemy connection, sync, not in a
transaction. A migration is one transaction under a lock, so that processes that migrate at the same
time take turns and the later ones have nothing to do. The lock is that of
the version table, which is in the schema itself: clients of the log have no right to it. Only where
the table is not there yet, and so no client either, it is an advisory lock, which anybody can take.

For other locks a migration waits LOCK_SECONDS, because whoever comes after it waits, too: a reader
that keeps a lock on a table must not stop the appends. `broker.postgres.migrations` tries again.

Beside the revision, the version table lists the revisions whose code works with the tables
(`serves`): replicas of the previous release do not know the newest revision and read this list. A
revision that does not break old code names in `serves_from` the oldest revision whose code still
works; without it, only its own code does. Code that one revision excludes stays excluded in all
later ones. A revision with `contracts = True` is not run at a start (`broker.postgres.migrations`).
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, text

# A number that no other program uses: "counterp" in ASCII.
LOCK = 0x636F756E74657270
LOCK_SECONDS = 2.0


def run(schema: str) -> None:
    """Migrate over the given connection."""
    if context.is_offline_mode():
        context.configure(
            dialect_name="postgresql", literal_binds=True, version_table_schema=schema
        )
        context.run_migrations()
        return
    connection: Connection = context.config.attributes["connection"]
    with connection.begin():
        _lock(connection, schema)
        connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
        # Not IF NOT EXISTS: it requires the right to create schemas even if there is nothing to do.
        found = connection.execute(
            text("SELECT 1 FROM pg_namespace WHERE nspname = :schema"), {"schema": schema}
        ).first()
        if found is None:
            connection.execute(text(f"CREATE SCHEMA {schema}"))
        context.configure(connection=connection, version_table_schema=schema, target_metadata=None)
        context.run_migrations()
        _say_what_it_serves(connection, schema)


def _lock(connection: Connection, schema: str) -> None:
    """Wait for other processes; afterwards, what they have committed is seen."""
    table = f"{schema}.alembic_version"
    known = text("SELECT to_regclass(:table) IS NOT NULL")
    if not connection.execute(known, {"table": table}).scalar():
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    if connection.execute(known, {"table": table}).scalar():
        connection.execute(text(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"))


def _say_what_it_serves(connection: Connection, schema: str) -> None:
    """Update `serves` of the version table: the revisions whose code works with the tables."""
    table = f"{schema}.alembic_version"
    revision = connection.execute(text(f"SELECT version_num FROM {table}")).scalar()
    if revision is None:
        return
    scripts = list(context.script.walk_revisions(base="base", head=revision))[::-1]
    chain = [script.revision for script in scripts]
    floors = [getattr(script.module, "serves_from", script.revision) for script in scripts]
    serves = chain[max(chain.index(floor) for floor in floors) :]
    # Only if there is something to do, as above.
    kept = connection.execute(
        text("SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass(:table) AND attname = :name"),
        {"table": table, "name": "serves"},
    ).first()
    if kept is None:
        connection.execute(text(f"ALTER TABLE {table} ADD COLUMN serves text[]"))
    connection.execute(
        text(f"UPDATE {table} SET serves = :serves WHERE serves IS DISTINCT FROM :serves"),
        {"serves": serves},
    )
