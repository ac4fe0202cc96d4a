"""Both trees of migrations, run by the service or by hand."""

import psycopg
import pytest

from broker import migrations

UNREACHABLE = "postgresql://nobody:hunter2@127.0.0.1:1/nothing"


def test_an_empty_database_is_brought_up_to_date(database_url: str) -> None:
    assert migrations.outdated(database_url) == ["control", "log"]
    steps = migrations.upgrade(database_url)
    assert [(step.tree, step.before) for step in steps] == [("control", None), ("log", None)]
    assert migrations.outdated(database_url) == []


def test_repeating_it_does_nothing(database_url: str) -> None:
    first = migrations.upgrade(database_url)
    again = migrations.upgrade(database_url)
    assert [step.before for step in again] == [step.after for step in first]
    assert [step.after for step in again] == [step.after for step in first]


def test_the_log_may_be_in_another_database(database_url: str, postgres_url: str) -> None:
    name = "log_of_its_own"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    log_url = database_url.rpartition("/")[0] + f"/{name}"
    try:
        migrations.upgrade(database_url, log_url)
        assert migrations.outdated(database_url, log_url) == []
        assert migrations.outdated(database_url) == ["log"]
        with psycopg.connect(log_url) as connection:
            found = connection.execute("SELECT to_regclass('counterpoise.alembic_version')")
            assert found.fetchone() == (None,)
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_database_of_a_newer_version_is_left_alone(database_url: str) -> None:
    migrations.upgrade(database_url)
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE counterpoise.alembic_version SET version_num = 'future'")
    assert migrations.outdated(database_url) == ["control"]
    with pytest.raises(migrations.MigrationFailed, match="newer"):
        migrations.upgrade(database_url)


@pytest.mark.parametrize("call", [migrations.upgrade, migrations.outdated])
def test_an_unreachable_database_is_said_in_a_line(call: object) -> None:
    assert callable(call)
    with pytest.raises(migrations.DatabaseUnreachable) as caught:
        call(UNREACHABLE)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
