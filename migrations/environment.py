"""Makes the tables of a new database, or migrates those that are there.

The `.sql` files of a tree make its present tables: a new database is made from them, and gets the
newest revision. Older tables are migrated to the same by the tree's revisions (`versions`). Each
tree's env.py calls `run` with its schema and its files, in their order.

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

from collections.abc import Sequence
from pathlib import Path

from alembic import context
from sqlalchemy import Connection, text

# A number that no other program uses: "counterp" in ASCII.
LOCK = 0x636F756E74657270
LOCK_SECONDS = 2.0


def run(schema: str, directory: Path, files: Sequence[str]) -> None:
    """Make the tables from the files of `directory`, or migrate them, over the given connection."""
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
        if context.get_context().get_current_heads():
            context.run_migrations()
        else:
            for name in files:
                _execute(connection, directory / f"{name}.sql")
            context.get_context().stamp(context.script, "head")
            connection.execute(
                text(f"ALTER TABLE {schema}.alembic_version ADD COLUMN serves text[]")
            )
        _say_what_it_serves(connection, schema)


def _execute(connection: Connection, file: Path) -> None:
    """As it is written: a colon or a per cent sign marks no parameter."""
    connection.exec_driver_sql(file.read_text("utf-8"), execution_options={"no_parameters": True})


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
    assert revision is not None
    scripts = list(context.script.walk_revisions(base="base", head=revision))[::-1]
    chain = [script.revision for script in scripts]
    floors = [getattr(script.module, "serves_from", script.revision) for script in scripts]
    serves = chain[max(chain.index(floor) for floor in floors) :]
    connection.execute(
        text(f"UPDATE {table} SET serves = :serves WHERE serves IS DISTINCT FROM :serves"),
        {"serves": serves},
    )
