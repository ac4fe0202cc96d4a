"""The control tables come from migrations alone, and several processes may run them at once."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, make_url
from sqlalchemy.pool import NullPool

from broker.store.tables import SCHEMA, metadata
from tests.databases import alembic_tree


def upgrade(url: str) -> None:
    with alembic_tree("control", url) as config:
        command.upgrade(config, "head")


def differences(url: str) -> list[Any]:
    """The changes that autogenerate would still make for the metadata."""
    engine = create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        # The user has the name of the schema, which would make that the default schema.
        connect_args={"options": "-csearch_path=public"},
        poolclass=NullPool,
    )
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "include_name": lambda name, type, _: type != "schema" or name == SCHEMA,
                "version_table_schema": SCHEMA,
                "compare_type": True,
            },
        )
        return list(compare_metadata(context, metadata))


def test_an_empty_database_gets_the_tables_that_the_store_knows(database_url: str) -> None:
    assert len(differences(database_url)) >= len(metadata.tables)
    upgrade(database_url)
    assert differences(database_url) == []


@pytest.mark.long
def test_many_may_migrate_at_once(database_url: str) -> None:
    program = (
        "import sys; from broker.postgres import migrations;"
        " [step] = [s for s in migrations.upgrade(sys.argv[1]) if s.tree == 'control'];"
        " print(step.after)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, database_url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    ends = [(*process.communicate(), process.returncode) for process in processes]
    assert [(out.strip(), code) for out, _, code in ends] == [("control_0001", 0)] * 3, ends
    assert differences(database_url) == []


def test_migrating_again_keeps_what_is_there(database_url: str) -> None:
    upgrade(database_url)
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE counterpoise.service SET stamped_at = 5")
    upgrade(database_url)
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT stamped_at FROM counterpoise.service").fetchall() == [
            (5.0,)
        ]
