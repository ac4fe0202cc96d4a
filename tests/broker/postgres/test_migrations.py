"""Both trees of migrations, run by the service or by hand."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from broker.postgres import migrations
from broker.postgres.binaries import installed_wheel
from broker.postgres.connections import DatabaseUnreachable
from tests.eventual import eventually
from tests.next_release import NextRelease

UNREACHABLE = "postgresql://nobody:hunter2@127.0.0.1:1/nothing"


def behind(database_url: str, log_database_url: str | None = None) -> list[str]:
    return [each.tree for each in migrations.unfit(database_url, log_database_url)]


def test_an_empty_database_is_brought_up_to_date(database_url: str) -> None:
    assert behind(database_url) == ["control", "log"]
    steps = migrations.upgrade(database_url)
    assert [(step.tree, step.before) for step in steps] == [("control", None), ("log", None)]
    assert behind(database_url) == []


def test_repeating_it_does_nothing(database_url: str) -> None:
    first = migrations.upgrade(database_url)
    again = migrations.upgrade(database_url)
    assert [step.before for step in again] == [step.after for step in first]
    assert [step.after for step in again] == [step.after for step in first]


@pytest.mark.long
def test_current_tables_are_found_without_alembic(database_url: str) -> None:
    """To import it takes a tenth of a start."""
    migrations.upgrade(database_url)
    program = """if True:
        import sys
        from broker.postgres import migrations
        assert [step.before for step in migrations.upgrade(sys.argv[1])] == ["{}", "{}"]
        assert "alembic" not in sys.modules
    """.format(*map(migrations.head, (migrations.CONTROL, migrations.LOG)))
    subprocess.run([sys.executable, "-c", program, database_url], check=True)


@pytest.mark.parametrize("tree", [migrations.CONTROL, migrations.LOG], ids=lambda tree: tree.name)
def test_the_revisions_are_those_that_alembic_finds(tree: migrations.Tree) -> None:
    config = Config()
    config.set_main_option("script_location", str(tree.location))
    found = ScriptDirectory.from_config(config).walk_revisions()
    assert [one.revision for one in found][::-1] == [name for name, _ in migrations._chain(tree)]


def test_the_log_may_be_in_another_database(database_url: str, postgres_url: str) -> None:
    name = "log_of_its_own"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    log_url = database_url.rpartition("/")[0] + f"/{name}"
    try:
        migrations.upgrade(database_url, log_url)
        assert behind(database_url, log_url) == []
        assert behind(database_url) == ["log"]
        with psycopg.connect(log_url) as connection:
            found = connection.execute("SELECT to_regclass('counterpoise.alembic_version')")
            assert found.fetchone() == (None,)
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_database_of_a_newer_version_is_left_alone(database_url: str) -> None:
    migrations.upgrade(database_url)
    with psycopg.connect(database_url) as connection:
        connection.execute("""UPDATE counterpoise.alembic_version
            SET version_num = 'future', serves = ARRAY['nearer', 'future']""")
    assert behind(database_url) == ["control"]
    with pytest.raises(migrations.MigrationFailed, match="newer"):
        migrations.upgrade(database_url)


def test_only_additions_run_by_themselves_and_the_rest_on_demand(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrations.upgrade(database_url)
    old = migrations.CONTROL
    new = NextRelease(tmp_path / "next").control
    monkeypatch.setattr(migrations, "CONTROL", new)
    assert behind(database_url) == ["control"], "the new code needs what is to be added"
    assert migrations.upgrade(database_url)[0].after == "control_next"
    assert behind(database_url) == [], "it works before the contraction"

    monkeypatch.setattr(migrations, "CONTROL", old)
    assert behind(database_url) == [], "the old code serves what was only added to"
    step = migrations.upgrade(database_url)[0]
    assert step.before == step.after == "control_next", "and leaves it alone"

    monkeypatch.setattr(migrations, "CONTROL", new)
    assert migrations.upgrade(database_url, contract=True)[0].after == "control_after"
    assert behind(database_url) == [], "it works after the contraction"

    monkeypatch.setattr(migrations, "CONTROL", old)
    [why] = migrations.unfit(database_url)
    assert why.tree == "control"
    assert "newer version" in why.why
    with pytest.raises(migrations.MigrationFailed, match="newer"):
        migrations.upgrade(database_url)


def test_a_new_database_is_made_as_an_older_one_is_migrated(
    database_url: str, migrated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = NextRelease(tmp_path / "next").control
    monkeypatch.setattr(migrations, "CONTROL", release)
    assert migrations.upgrade(database_url)[0].after == "control_after"
    assert migrations.upgrade(migrated_url, contract=True)[0].before == "control_0001"
    made = dumped(database_url)
    assert made == dumped(migrated_url)
    assert "colour text NOT NULL" in made


def dumped(url: str) -> list[str]:
    """The lines of the control tables in SQL, in any order: a column that is added comes last."""
    program = installed_wheel() / "bin" / "pg_dump"
    dump = subprocess.check_output(
        [program, "--schema-only", "--schema=counterpoise", url], text=True
    )
    # What guards psql against a hostile dump is drawn anew each time.
    lines = (line.strip().rstrip(",") for line in dump.splitlines() if not line.startswith("\\"))
    # A service takes a right on languages of the whole database, and one may have been there.
    return sorted(line for line in lines if line and "ON LANGUAGE" not in line and line[:2] != "--")


# Replicas lock queues before flows.
OTHER_ORDER = """
    for table in ("flows", "queues"):
        op.execute(f"ALTER TABLE counterpoise.{table} ADD COLUMN shade text")
"""
WAITS = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'counterpoise.queues'::regclass"


@pytest.mark.long
def test_a_deadlock_with_a_running_replica_does_not_end_a_migration(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrations.upgrade(database_url)
    release = NextRelease(tmp_path / "next")
    with (release.directory / "versions" / "next.py").open("a") as revision:
        revision.write(OTHER_ORDER)
    monkeypatch.setattr(migrations, "CONTROL", release.control)
    with (
        ThreadPoolExecutor() as threads,
        psycopg.connect(database_url, autocommit=True) as watch,
        psycopg.connect(database_url) as replica,
    ):
        # Postgres ends the migration, not the replica's statement.
        replica.execute("SET deadlock_timeout = '600s'")
        replica.execute("LOCK TABLE counterpoise.queues IN ROW SHARE MODE")
        migrating = threads.submit(migrations.upgrade, database_url)
        eventually(lambda: watch.execute(WAITS).fetchone() is not None)
        replica.execute("LOCK TABLE counterpoise.flows IN ROW SHARE MODE")
        replica.rollback()
        assert migrating.result()[0].after == "control_next"


@pytest.mark.parametrize("call", [migrations.upgrade, migrations.unfit])
def test_an_unreachable_database_is_said_in_a_line(call: object) -> None:
    assert callable(call)
    with pytest.raises(DatabaseUnreachable) as caught:
        call(UNREACHABLE)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
