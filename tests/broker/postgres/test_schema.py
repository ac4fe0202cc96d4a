"""What the migrations make is listed, and what a database lacks of it is found."""

import os
from collections.abc import Iterator

import psycopg
import pytest

from broker.postgres import schema
from broker.postgres.connections import Connection
from broker.postgres.migrations import CONTROL, LOG, MigrationFailed, Tree
from tests.databases import Databases

CLIENT = "counterpoise_log_client"


@pytest.fixture(scope="module")
def url(databases: Databases) -> Iterator[str]:
    with databases.lend() as url:
        yield url


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    """What a test changes is rolled back."""
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()


@pytest.mark.parametrize("tree", [CONTROL, LOG], ids=lambda tree: tree.name)
def test_the_lists_have_what_the_migrations_make(connection: Connection, tree: Tree) -> None:
    """`REWRITE=1` writes them anew; the difference is what to review."""
    made = schema.listed(connection, tree)
    if os.environ.get("REWRITE"):
        schema.list_file(tree).write_text("\n".join(made) + "\n", "utf-8")
    assert schema.list_file(tree).read_text("utf-8").splitlines() == made


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("ALTER TABLE counterpoise.outages DROP CONSTRAINT outages_pkey", ["primary key outages_"]),
        (
            "ALTER TABLE counterpoise.queues DROP CONSTRAINT queues_name_key",
            ["unique constraint queues_name_key of counterpoise.queues"],
        ),
        (
            "ALTER TABLE counterpoise.records DROP CONSTRAINT records_queue_id_fkey",
            ["foreign key records_queue_id_fkey of counterpoise.records"],
        ),
        (
            "ALTER TABLE counterpoise.flows DROP CONSTRAINT left_with_reason",
            ["check left_with_reason of counterpoise.flows"],
        ),
        ("DROP INDEX counterpoise.flows_left", ["index flows_left of counterpoise.flows"]),
        (
            """DROP INDEX counterpoise.flows_bind_number;
            CREATE INDEX flows_bind_number ON counterpoise.flows (queue_id, bind_number)""",
            ["index flows_bind_number of counterpoise.flows is '' instead of 'unique'"],
        ),
        (
            "DROP TRIGGER epochs_rise ON counterpoise.partitions",
            ["trigger epochs_rise of counterpoise.partitions"],
        ),
        (
            "ALTER TABLE counterpoise.partitions DISABLE TRIGGER epochs_rise",
            ["trigger epochs_rise of counterpoise.partitions is 'counterpoise.refuse not enabled'"],
        ),
        (
            "ALTER TABLE counterpoise.flows ALTER COLUMN bind_number DROP NOT NULL",
            ["column counterpoise.flows.bind_number is 'bigint' instead of 'bigint not null'"],
        ),
        (
            "ALTER TABLE counterpoise.outages ALTER COLUMN id DROP IDENTITY",
            ["column counterpoise.outages.id is 'bigint not null' instead of"],
        ),
        ("DROP VIEW counterpoise.history_flows", ["view counterpoise.history_flows"]),
        ("DELETE FROM counterpoise.service", ["rows in counterpoise.service"]),
        ("DROP FUNCTION counterpoise_log.trim", ["function counterpoise_log.trim("]),
        (
            "GRANT EXECUTE ON FUNCTION counterpoise_log.trim TO PUBLIC",
            ["revocation of EXECUTE on function counterpoise_log.trim from PUBLIC"],
        ),
        (
            "ALTER FUNCTION counterpoise_log.readable_log SECURITY INVOKER",
            ["function counterpoise_log.readable_log() is '' instead of 'as its owner'"],
        ),
        (
            "ALTER TABLE counterpoise_log.messages DISABLE ROW LEVEL SECURITY",
            ["row security of counterpoise_log.messages"],
        ),
        (
            "DROP POLICY one_log ON counterpoise_log.messages",
            [f"policy one_log of counterpoise_log.messages to {CLIENT}"],
        ),
        (
            f"REVOKE SELECT (value) ON counterpoise_log.messages FROM {CLIENT}",
            [f"grant of SELECT on column counterpoise_log.messages.value to {CLIENT}"],
        ),
        (
            "ALTER TABLE counterpoise_log.messages ALTER COLUMN value SET STATISTICS -1",
            ["column counterpoise_log.messages.value is 'bytea not null' instead of"],
        ),
        (
            """INSERT INTO counterpoise_log.logs (name, partition_count) VALUES ('a', 1);
            INSERT INTO counterpoise_log.partitions (log_id, partition)
                SELECT log_id, 0 FROM counterpoise_log.logs;
            UPDATE counterpoise_log.ends SET next_position = 3""",
            ["rows in counterpoise_log.messages"],
        ),
        (
            """INSERT INTO counterpoise_log.logs (name, partition_count) VALUES ('a', 1);
            INSERT INTO counterpoise_log.partitions (log_id, partition)
                SELECT log_id, 0 FROM counterpoise_log.logs;
            TRUNCATE counterpoise_log.ends""",
            ["rows in counterpoise_log.ends"],
        ),
        (
            """INSERT INTO counterpoise_log.logs (name, partition_count) VALUES ('a', 1);
            INSERT INTO counterpoise_log.publishers (log_id, publisher)
                SELECT log_id, 'p' FROM counterpoise_log.logs""",
            ["rows in counterpoise_log.sequences"],
        ),
        # What others made, or took away on purpose.
        ("CREATE INDEX ours ON counterpoise.flows (client_name)", []),
        ("GRANT SELECT ON counterpoise.history_flows TO pg_monitor", []),
        ("ALTER TABLE counterpoise_log.messages VALIDATE CONSTRAINT messages_key_size", []),
        (f"DROP OWNED BY {CLIENT}", []),
        # A newer version made it, and has its own list.
        (
            """UPDATE counterpoise.alembic_version SET version_num = 'control_next';
            DROP INDEX counterpoise.flows_left""",
            [],
        ),
    ],
)
def test_what_is_missing_is_named(connection: Connection, change: str, found: list[str]) -> None:
    connection.execute(change.encode())
    missing = schema.lacking(connection, CONTROL) + schema.lacking(connection, LOG)
    assert len(missing) == len(found), missing
    for said, part in zip(missing, found, strict=True):
        assert part in said


def test_a_message_names_some_and_says_what_to_do(migrated_url: str) -> None:
    schema.check(migrated_url)
    with psycopg.connect(migrated_url) as connection:
        connection.execute("DROP TABLE counterpoise.outages")
        connection.execute("DROP TABLE counterpoise_log.sequences")
    with pytest.raises(MigrationFailed) as caught:
        schema.check(migrated_url)
    said = str(caught.value)
    assert "no table counterpoise.outages, no table counterpoise_log.sequences. A" in said
    assert "restore a backup of the whole database" in said
    assert "\n" not in said
