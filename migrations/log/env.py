"""Runs the migrations of the built-in log.

The caller gives either `config.attributes["connection"]` (a SQLAlchemy connection, sync, not in a
transaction) or `sqlalchemy.url`. Everything happens in one transaction under an advisory lock, so
that processes that migrate at the same time take turns and the later ones find nothing to do.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.pool import NullPool

SCHEMA = "counterpoise_log"
# Any number that no other program uses: "counterp" in ASCII.
LOCK = 0x636F756E74657270


def migrate(connection: Connection) -> None:
    """Bring the schema of the connection's database up to date, in one transaction."""
    with connection.begin():
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        # Not IF NOT EXISTS: that wants the right to create schemas even if there is nothing to do.
        found = connection.execute(
            text("SELECT 1 FROM pg_namespace WHERE nspname = :schema"), {"schema": SCHEMA}
        ).first()
        if found is None:
            connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))
        context.configure(connection=connection, version_table_schema=SCHEMA, target_metadata=None)
        context.run_migrations()


def main() -> None:
    """Migrate over the given connection, or over one of our own."""
    if context.is_offline_mode():
        context.configure(
            dialect_name="postgresql", literal_binds=True, version_table_schema=SCHEMA
        )
        context.run_migrations()
        return
    given = context.config.attributes.get("connection")
    if given is not None:
        migrate(given)
        return
    url = context.config.get_main_option("sqlalchemy.url")
    if not url:
        raise ValueError("sqlalchemy.url is not set")
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        migrate(connection)


main()
