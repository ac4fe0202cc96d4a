"""How a tree of migrations is run; each tree's env.py calls `run` with its schema.

The caller gives either `config.attributes["connection"]` (a SQLAlchemy connection, sync, not in a
transaction) or `sqlalchemy.url`. Everything happens in one transaction under an advisory lock, so
that processes that migrate at the same time take turns and the later ones find nothing to do. The
version table is in the schema itself.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.pool import NullPool

# Any number that no other program uses: "counterp" in ASCII.
LOCK = 0x636F756E74657270


def run(schema: str) -> None:
    """Migrate over the given connection, or over one of our own."""
    if context.is_offline_mode():
        context.configure(
            dialect_name="postgresql", literal_binds=True, version_table_schema=schema
        )
        context.run_migrations()
        return
    given = context.config.attributes.get("connection")
    if given is not None:
        _migrate(given, schema)
        return
    url = context.config.get_main_option("sqlalchemy.url")
    if not url:
        raise ValueError("sqlalchemy.url is not set")
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        _migrate(connection, schema)


def _migrate(connection: Connection, schema: str) -> None:
    with connection.begin():
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        # Not IF NOT EXISTS: that wants the right to create schemas even if there is nothing to do.
        found = connection.execute(
            text("SELECT 1 FROM pg_namespace WHERE nspname = :schema"), {"schema": schema}
        ).first()
        if found is None:
            connection.execute(text(f"CREATE SCHEMA {schema}"))
        context.configure(connection=connection, version_table_schema=schema, target_metadata=None)
        context.run_migrations()
