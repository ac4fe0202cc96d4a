"""`counterpoise keys` as an operator meets it."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import PIPE
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from click.testing import CliRunner, Result

from broker.core.access import digest, key_id_of
from broker.exits import Exit
from broker.key_commands import app
from broker.postgres.embedded import EmbeddedPostgres
from tests.broker.test_cli import run
from tests.forked import Forked
from tests.service import NO_SERVICE, ServeProcess, listen

KEY = re.compile(r"cp_[0-9a-f]{12}_[0-9a-f]{64}")


def keys(url: str, *arguments: str, service: str = NO_SERVICE) -> Result:
    given = [arguments[0], "--database-url", url, "--url", service, *arguments[1:]]
    return CliRunner().invoke(app, given)


def document(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_key_is_shown_once_and_stored_as_a_hash(migrated_url: str) -> None:
    made = keys(migrated_url, "create", "--role", "viewer", "--queue", "team-a.*", "--name", "etl")
    assert made.exit_code == 0
    [text] = made.stdout.splitlines()
    assert KEY.fullmatch(text)
    assert "first key" in made.stderr
    with psycopg.connect(migrated_url) as connection:
        [row] = connection.execute("SELECT id, hash, role, queues, name FROM counterpoise.keys")
        everything = connection.execute("SELECT audit::text FROM counterpoise.audit").fetchall()
    assert row == (key_id_of(text), digest(text), "viewer", ["team-a.*"], "etl")
    assert text[16:] not in str(everything)
    listed = keys(migrated_url, "list")
    assert text[16:] not in listed.stdout
    assert re.search(rf"{row[0]} +etl +viewer +team-a\.\* +valid +never +never", listed.stdout)
    assert "first key" not in keys(migrated_url, "create", "--role", "admin").stderr


def test_a_key_that_ends(migrated_url: str) -> None:
    for given, expected in (
        ("90d", datetime.now(UTC) + timedelta(days=90)),
        ("30m", datetime.now(UTC) + timedelta(minutes=30)),
        ("2100-01-01T00:00:00Z", datetime(2100, 1, 1, tzinfo=UTC)),
        ("2100-01-01T02:00:00+02:00", datetime(2100, 1, 1, tzinfo=UTC)),
        # As in `counterpoise positions set`.
        ("2100-01-01", datetime(2100, 1, 1).astimezone(UTC)),
    ):
        said = keys(migrated_url, "create", "--role", "consumer", "--ends", given, "--json")
        made = document(said)
        assert f"It ends at {made['ends_at']}." in said.stderr
        ends_at = datetime.fromisoformat(made["ends_at"])
        assert abs(ends_at - expected) < timedelta(seconds=60)
        assert KEY.fullmatch(made["key"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--role", "owner"],
        ["--role", "viewer", "--queue", "a b"],
        ["--role", "viewer", "--queue", ""],
        ["--role", "viewer", "--ends", "soon"],
        ["--role", "viewer", "--ends", "2001-01-01"],
        ["--role", "viewer", "--name", "a\nb"],
        ["--role", "viewer", "--name", "x" * 201],
        [],
    ],
)
def test_what_is_no_key(migrated_url: str, arguments: list[str]) -> None:
    refused = keys(migrated_url, "create", *arguments)
    assert refused.exit_code in (2, Exit.KEY)
    assert refused.stdout == ""
    assert document(keys(migrated_url, "list", "--all", "--json")) == []


def test_a_revoked_key_is_listed_on_request(migrated_url: str) -> None:
    made = document(keys(migrated_url, "create", "--role", "viewer", "--json"))
    for _ in range(2):
        assert keys(migrated_url, "revoke", made["id"]).exit_code == 0
    assert document(keys(migrated_url, "list", "--json")) == []
    [listed] = document(keys(migrated_url, "list", "--all", "--json"))
    assert (listed["id"], listed["state"]) == (made["id"], "revoked")
    with psycopg.connect(migrated_url) as connection:
        calls = connection.execute("SELECT call FROM counterpoise.audit ORDER BY id").fetchall()
    assert calls == [("create_key",), ("revoke_key",)]


def test_an_id_that_no_key_has(migrated_url: str) -> None:
    refused = keys(migrated_url, "revoke", "nobody's")
    assert refused.exit_code == Exit.KEY
    assert "keys list" in refused.stderr


@pytest.mark.long
def test_the_database_comes_from_a_pipe_as_in_the_cluster(database_url: str) -> None:
    """deploy/README.md: nothing but the pipe has the URL, and it is read once."""
    given = ["keys", "create", "--role", "admin", "--url", NO_SERVICE]
    with Forked(
        "counterpoise.cli",
        given,
        environment={**os.environ, "COUNTERPOISE_DATABASE_URL_FILE": "/dev/stdin"},
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(f"{database_url}\n")
        made, said = process.communicate(timeout=240)
        assert process.wait() == 0, said
    assert KEY.fullmatch(made.strip())


@pytest.mark.long
def test_an_empty_database_gets_its_tables_and_its_first_key(database_url: str) -> None:
    fenced = run(["migrate", "--after-restore", "--database-url", database_url])
    assert fenced.returncode == Exit.MIGRATION
    assert "has no tables of a service; restore a backup first" in fenced.stderr
    assert keys(database_url, "list").exit_code == Exit.MIGRATION
    assert keys(database_url, "create", "--role", "admin").exit_code == 0
    assert len(document(keys(database_url, "list", "--json"))) == 1


@pytest.mark.long
def test_the_postgres_of_a_running_service(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path, settings={"fsync": "off"}):
        given = ["--data-dir", str(tmp_path), "--url", NO_SERVICE]
        made = run(["keys", "create", "--role", "admin", *given])
        assert made.returncode == 0, made.stderr
        assert KEY.fullmatch(made.stdout.strip())
    # And without a service: the command starts it.
    listed = run(["keys", "list", "--json", *given])
    assert [key["role"] for key in json.loads(listed.stdout)] == ["admin"]


@pytest.mark.long
@pytest.mark.matrix(of="starts")
def test_a_directory_without_a_database_gets_none_by_a_command_that_needs_one(
    tmp_path: Path,
) -> None:
    """`migrate --after-restore` would fence an empty one, and say that it is done."""
    wrong = tmp_path / "wrong"
    given = ["--data-dir", str(wrong)]
    at = ["--url", NO_SERVICE]
    for command in (
        ["keys", "list", *at],
        ["keys", "revoke", "0" * 12, *at],
        ["migrate", "--after-restore"],
    ):
        done = run([*command, *given])
        assert done.returncode == Exit.DATA_DIRECTORY, done.stderr
        assert f"there is no database in {wrong}" in done.stderr
    assert not wrong.exists()


@pytest.mark.long
def test_a_command_names_the_database_and_the_service(
    served: ServeProcess, migrated_url: str
) -> None:
    name = urlsplit(migrated_url).path
    alone = keys(migrated_url, "list")
    assert f"{name}; no service answers at {NO_SERVICE}." in alone.stderr
    for command in (["create", "--role", "viewer"], ["list"]):
        done = keys(migrated_url, *command, service=served.url)
        assert done.exit_code == 0, done.output
        assert f"{name}; the service at {served.url} uses it." in done.stderr


@pytest.mark.long
def test_another_database_than_the_services_gets_no_key(
    served: ServeProcess, tmp_path: Path, database_url: str
) -> None:
    """Also not in a data directory of its own: no second Postgres is made for it."""
    directory = tmp_path / "another"
    command = ["keys", "create", "--role", "admin", "--url", served.url]
    for other in (["--data-dir", str(directory)], ["--database-url", database_url]):
        refused = run([*command, *other])
        assert refused.returncode == Exit.ANOTHER_DATABASE, refused.stderr
        assert refused.stdout == ""
        assert f"the service at {served.url} uses another database" in refused.stderr
    assert not directory.exists()
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT to_regclass('counterpoise.keys')").fetchone() == (None,)
    assert httpx.get(f"{served.url}/v1/queues").status_code == 200


@pytest.mark.long
def test_where_a_service_does_not_answer_no_second_postgres_is_made(
    migrated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be slow, or frozen: the first key would close another database."""
    monkeypatch.setattr("broker.key_database.TIMEOUT_SECONDS", 0.2)
    monkeypatch.delenv("COUNTERPOISE_DATABASE_URL", raising=False)
    directory = tmp_path / "another"
    command = ["create", "--role", "viewer"]
    with listen() as frozen:
        silent = f"http://127.0.0.1:{frozen.getsockname()[1]}"
        for given in ([], ["--data-dir", str(directory)]):
            refused = CliRunner().invoke(app, [*command, *given, "--url", silent])
            assert refused.exit_code in (Exit.KEY, Exit.ANOTHER_DATABASE)
            assert "did not answer in time" in refused.stderr
            assert "--database-url" in refused.stderr
        named = keys(migrated_url, *command, service=silent)
    assert not directory.exists()
    assert named.exit_code == 0
    assert "whether it uses it is unknown" in named.stderr


@pytest.mark.parametrize("is_option", [True, False])
def test_for_an_address_where_nobody_answers_no_database_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_option: bool
) -> None:
    """It may be mistyped; the first key of another database would be of no use."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name in ("DATABASE_URL", "DATA_DIR", "URL"):
        monkeypatch.delenv(f"COUNTERPOISE_{name}", raising=False)
    if not is_option:
        monkeypatch.setenv("COUNTERPOISE_URL", NO_SERVICE)
    for command in (["create", "--role", "admin"], ["list"]):
        refused = CliRunner().invoke(app, [*command, *(["--url", NO_SERVICE] if is_option else [])])
        assert refused.exit_code == Exit.ANOTHER_DATABASE, refused.output
        assert f"no service answers at {NO_SERVICE}" in refused.stderr
    assert not [*tmp_path.iterdir()]


def test_the_database_is_named_without_its_password(migrated_url: str) -> None:
    listed = keys(migrated_url, "list").stderr
    password = urlsplit(migrated_url).password
    assert password is None or password not in listed
