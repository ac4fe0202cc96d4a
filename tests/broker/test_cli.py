"""`counterpoise serve` and `counterpoise migrate` from an operator's view."""

import json
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import PIPE
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from broker.exits import Exit
from broker.postgres.embedded import EmbeddedPostgres
from broker.postgres.migrations import asked
from broker.postgres.restoring import identity
from tests.databases import new_database
from tests.forked import Forked
from tests.service import COUNTERPOISE, ServeProcess, eventually, listen

UNREACHABLE = "postgresql://nobody:hunter2@127.0.0.1:1/nothing"


def run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    process = Forked("counterpoise.cli", arguments, stdout=PIPE, stderr=PIPE)
    said, errors = process.communicate()
    return subprocess.CompletedProcess(arguments, process.wait(), said, errors)


def refusal(arguments: Sequence[str], code: Exit) -> str:
    """The message when it does not start: one line on stderr, nothing else."""
    done = run(arguments)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("counterpoise: ")
    assert "hunter2" not in lines[0]
    return lines[0]


def test_every_reason_has_an_exit_code_of_its_own() -> None:
    assert len({int(code) for code in Exit}) == len(Exit)
    assert not {0, 1} & {int(code) for code in Exit}


def test_a_wrong_setting() -> None:
    line = refusal(["serve", "--log-level", "loud", "--port", "99999"], Exit.SETTINGS)
    assert "--log-level" in line
    assert "--port" in line


@pytest.mark.long
def test_a_port_in_use() -> None:
    with listen() as taken:
        port = taken.getsockname()[1]
        line = refusal(["serve", "--port", str(port), "--database-url", UNREACHABLE], Exit.ADDRESS)
    assert f"127.0.0.1:{port}" in line
    assert "give another --host or --port" in line


@pytest.mark.long
@pytest.mark.matrix(of="starts")
def test_an_address_that_is_not_here() -> None:
    for host in ("192.0.2.1", "127..0.1", "a" * 64):
        refusal(["serve", "--host", host, "--database-url", UNREACHABLE], Exit.ADDRESS)


@pytest.mark.long
@pytest.mark.matrix(of="starts")
def test_postgres_is_unreachable() -> None:
    for command in (["serve", "--port", "0"], ["serve", "--port", "0", "--no-migrate"]):
        line = refusal([*command, "--database-url", UNREACHABLE], Exit.DATABASE)
        assert "cannot reach the database" in line


@pytest.mark.long
@pytest.mark.matrix("command")
@pytest.mark.parametrize(
    ("encoding", "command"),
    [
        ("LATIN1", ["migrate"]),
        ("SQL_ASCII", ["serve", "--port", "0"]),
        ("LATIN1", ["keys", "list"]),
    ],
)
def test_a_database_of_another_encoding(
    postgres_url: str, encoding: str, command: list[str]
) -> None:
    more = f"ENCODING '{encoding}' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0"
    with new_database(postgres_url, more) as url:
        line = refusal([*command, "--database-url", url], Exit.DATABASE)
    assert f"has the encoding {encoding}, and the service needs UTF8" in line


def test_an_invalid_data_directory_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "file"
    directory.write_text("")
    line = refusal(["serve", "--port", "0", "--data-dir", str(directory)], Exit.DATA_DIRECTORY)
    assert str(directory) in line


@pytest.mark.long
def test_a_data_directory_in_use(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path, settings={"fsync": "off"}):
        line = refusal(["serve", "--port", "0", "--data-dir", str(tmp_path)], Exit.DATA_DIRECTORY)
    assert str(tmp_path) in line


def test_tables_that_are_not_current(database_url: str) -> None:
    arguments = ["serve", "--port", "0", "--no-migrate", "--database-url", database_url]
    assert "counterpoise migrate" in refusal(arguments, Exit.MIGRATION)


@pytest.mark.long
@pytest.mark.matrix(of="starts")
def test_tables_that_a_restore_left_incomplete(migrated_url: str) -> None:
    """As pg_restore leaves them if a service writes meanwhile, or if it is killed."""
    after_restore = ["migrate", "--after-restore", "--database-url", migrated_url]
    serve = ["serve", "--port", "0", "--database-url", migrated_url]
    with psycopg.connect(migrated_url, autocommit=True) as connection:
        connection.execute("ALTER TABLE counterpoise.outages DROP CONSTRAINT outages_pkey")
        for command in (serve, [*serve, "--no-migrate"]):
            line = refusal(command, Exit.MIGRATION)
            assert "no primary key outages_pkey of counterpoise.outages" in line
            assert "restore a backup" in line
        done = run(after_restore)
        assert done.returncode == Exit.MIGRATION
        assert "no primary key outages_pkey" in done.stderr
        assert "fenced" not in done.stdout
        connection.execute("DELETE FROM counterpoise.alembic_version")
        for command in (serve, after_restore):
            assert "not their revision" in refusal(command, Exit.MIGRATION)


@pytest.mark.long
@pytest.mark.matrix("command")
@pytest.mark.parametrize(
    "command",
    [
        ["serve", "--port", "0"],
        ["migrate", "--after-restore"],
        ["keys", "list"],
        ["backup", "FILE"],
    ],
)
def test_tables_of_another_user(migrated_url: str, command: list[str], tmp_path: Path) -> None:
    here = urlsplit(migrated_url)
    theirs = here._replace(netloc=f"stranger:hunter2@{here.hostname}:{here.port}").geturl()
    command = [str(tmp_path / "backup") if one == "FILE" else one for one in command]
    with psycopg.connect(migrated_url, autocommit=True) as owner:
        owner.execute("CREATE ROLE stranger LOGIN PASSWORD 'hunter2'")
        try:
            line = refusal([*command, "--database-url", theirs], Exit.DATABASE)
        finally:
            owner.execute("DROP ROLE stranger")
    assert "permission denied for schema counterpoise" in line


@pytest.mark.long
def test_migrate_says_what_it_did(database_url: str) -> None:
    first = run(["migrate", "--database-url", database_url])
    assert first.returncode == 0, first.stderr
    assert [line.partition(" ")[0] for line in first.stdout.splitlines()] == ["control:", "log:"]
    assert "nothing -> " in first.stdout
    again = run(["migrate", "--database-url", database_url])
    assert again.stdout.count("already") == 2
    told = json.loads(run(["migrate", "--json", "--database-url", database_url]).stdout)
    assert [one["tree"] for one in told["migrations"]] == ["control", "log"]
    assert all(one["before"] == one["after"] for one in told["migrations"])
    assert told["restored"] == []


@pytest.mark.long
@pytest.mark.matrix(of="starts")
def test_migrations_at_the_same_moment_take_turns(database_url: str) -> None:
    arguments = ["migrate", "--database-url", database_url]
    both = [Forked("counterpoise.cli", arguments, stdout=PIPE, stderr=PIPE) for _ in range(2)]
    assert [process.communicate()[1] for process in both] == ["", ""]
    assert [process.wait() for process in both] == [0, 0]
    assert run(arguments).stdout.count("already") == 2


# A running service


@pytest.fixture
def with_its_own_postgres(tmp_path: Path) -> Iterator[ServeProcess]:
    arguments = ["--data-dir", str(tmp_path / "data")]
    with ServeProcess(tmp_path / "serve.log", arguments) as process:
        yield process


@pytest.mark.long
def test_the_installed_command_says_where_it_is(migrated_url: str, tmp_path: Path) -> None:
    arguments = ["--database-url", migrated_url]
    with ServeProcess(tmp_path / "serve.log", arguments, program=COUNTERPOISE) as service:
        assert service.first_line == f"Counterpoise listens on {service.url}\n"
        ready = httpx.get(f"{service.url}/readyz").json()
        assert ready == {"status": "ready", "database": asked(migrated_url, identity)}
        assert service.end() == 0


def test_the_log_is_json_without_a_terminal(served: ServeProcess) -> None:
    served.end()
    lines = served.log_file.read_text().splitlines()
    assert lines
    for line in lines:
        assert {"event", "level", "timestamp"} <= set(json.loads(line))


@pytest.mark.long
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_an_open_stream_and_stops(migrated_url: str, tmp_path: Path, signum: int) -> None:
    """And does not wait until requests are cut, which is later than any test would wait."""
    arguments = ["--database-url", migrated_url]
    cut = {"COUNTERPOISE_SHUTDOWN_SECONDS": "300"}
    with (
        ServeProcess(tmp_path / "serve.log", arguments, cut) as served,
        httpx.Client(base_url=f"{served.url}/v1", timeout=60) as http,
    ):
        http.post("/queues", json={"name": "q", "partition_count": 1}).raise_for_status()
        opened, closed = threading.Event(), threading.Event()

        def follow() -> None:
            with http.stream("GET", "/queues/q/events") as response:
                for _ in response.iter_lines():
                    opened.set()
            closed.set()

        thread = threading.Thread(target=follow)
        thread.start()
        assert opened.wait(240)
        assert served.end(signum) in (0, 130)
        assert closed.wait(240), "the stream was cut instead of ended"
        thread.join()


@pytest.mark.long
def test_its_own_postgres_comes_and_goes_with_it(with_its_own_postgres: ServeProcess) -> None:
    process = with_its_own_postgres
    with httpx.Client(base_url=f"{process.url}/v1", timeout=60) as http:
        http.post("/queues", json={"name": "q", "partition_count": 3}).raise_for_status()
        assert process.end() == 0
        process.start()
        assert http.get("/queues/q").json()["partition_count"] == 3
        process.kill()
        process.start()
        assert http.get("/queues/q").json()["partition_count"] == 3


@pytest.mark.long
def test_it_survives_losing_its_database(served: ServeProcess, migrated_url: str) -> None:
    """While Postgres refuses, 503 with Retry-After and not ready; afterwards as before."""
    name = migrated_url.rpartition("/")[2]
    server = migrated_url.rpartition("/")[0] + "/postgres"
    with (
        httpx.Client(base_url=served.url, timeout=60) as http,
        psycopg.connect(server, autocommit=True) as admin,
    ):
        body = {"name": "q", "partition_count": 1}
        http.post("/v1/queues", json=body).raise_for_status()
        admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        try:
            eventually(lambda: http.get("/readyz").status_code == 503)
            refused = http.post("/v1/queues", json={"name": "r", "partition_count": 1})
            assert refused.status_code == 503, refused.text
            assert refused.json()["code"] == "unavailable"
            assert int(refused.headers["retry-after"]) >= 1
            assert http.get("/healthz").status_code == 200
            assert http.get("/metrics").status_code == 200
        finally:
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        eventually(lambda: http.get("/readyz").status_code == 200)
        assert http.get("/v1/queues/q").status_code == 200
        http.post("/v1/queues", json={"name": "r", "partition_count": 1}).raise_for_status()


def test_beyond_this_machine_it_does_not_start_unprotected(migrated_url: str) -> None:
    command = ["serve", "--port", "0", "--host", "0.0.0.0", "--database-url"]
    # Without TLS the database is not asked for keys.
    line = refusal([*command, UNREACHABLE], Exit.EXPOSED)
    assert "a key and TLS" in line
    assert "--insecure" in line
    certificates = Path(__file__).parents[1] / "certificates"
    tls = ["--tls-cert", f"{certificates}/first.pem", "--tls-key", f"{certificates}/first-key.pem"]
    line = refusal([*command, migrated_url, *tls], Exit.EXPOSED)
    assert "needs a key;" in line


def test_an_insecure_service_warns_at_its_start(migrated_url: str, tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    arguments = ["--host", "0.0.0.0", "--insecure", "--database-url", migrated_url]
    with ServeProcess(log, arguments) as service:
        assert httpx.get(f"{service.url}/v1/queues").status_code == 200
    assert "INSECURE" in log.read_text()
