"""`counterpoise backup` and `restore`: whole, of files that are no backups, and killed amid it."""

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from broker.exits import Exit
from broker.postgres import backups, schema
from broker.postgres.binaries import installed_wheel
from broker.postgres.embedded import url_of_running
from broker.service import Broker
from counterpoise.client import Client
from counterpoise.publisher import Publisher
from tests.broker.test_cli import refusal, run
from tests.databases import Databases, new_database
from tests.faults.disk import INSIDE, MOUNT
from tests.forked import Forked
from tests.next_release import NextRelease
from tests.processes import kill_family
from tests.service import COUNTERPOISE, ServeProcess, eventually, running, settings_for

pytestmark = pytest.mark.xdist_group("processes")

MESSAGES = 1000
PROGRAMS = installed_wheel() / "bin"
# An administrator's own, which a backup names and does not contain.
ROLE = 'the "analyst"'


@pytest.fixture(scope="module")
def url(databases: Databases) -> Iterator[str]:
    """A database with a queue and its messages, an outage, and a role of an administrator."""
    with databases.lend() as url, psycopg.connect(url, autocommit=True) as connection:
        settings = settings_for(url)
        with running(Broker(settings), settings) as service:
            with Client(service.url) as client:
                client.create_queue("orders", 4)
            with Publisher("orders", url=service.url) as publisher:
                for number in range(MESSAGES):
                    publisher.publish(os.urandom(500), key=f"{number}")
        connection.execute("INSERT INTO counterpoise.outages (began, seconds) VALUES (1, 2)")
        role = sql.Identifier(ROLE)
        connection.execute(sql.SQL("CREATE ROLE {}").format(role))
        connection.execute(sql.SQL("GRANT SELECT ON counterpoise.history_moves TO {}").format(role))
        yield url
        connection.execute(sql.SQL("DROP OWNED BY {0}").format(role))
        connection.execute(sql.SQL("DROP ROLE {0}").format(role))


@pytest.fixture(scope="module")
def backup(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("backup") / "counterpoise.backup"
    done = run(["backup", str(file), "--database-url", url])
    assert done.returncode == 0, done.stderr
    return file


def dump(url: str, file: Path, *options: str) -> Path:
    subprocess.run([PROGRAMS / "pg_dump", *options, "--file", file, url], check=True)
    return file


@pytest.mark.long
def test_a_backup_is_a_new_file_that_only_its_user_can_read(
    backup: Path, url: str, tmp_path: Path
) -> None:
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert [one.name for one in backup.parent.iterdir()] == [backup.name]
    before = backup.read_bytes()
    again = refusal(["backup", str(backup), "--database-url", url], Exit.BACKUP)
    assert "is there already" in again
    assert backup.read_bytes() == before
    nowhere = str(tmp_path / "no" / "directory")
    assert "No such file" in refusal(["backup", nowhere, "--database-url", url], Exit.BACKUP)


def test_a_backup_of_no_service_is_refused(database_url: str, tmp_path: Path) -> None:
    file, data = tmp_path / "file", tmp_path / "data"
    assert "no tables" in refusal(
        ["backup", str(file), "--database-url", database_url], Exit.BACKUP
    )
    # A start would make a database there, and the backup be empty.
    refusal(["backup", str(file), "--data-dir", str(data)], Exit.DATA_DIRECTORY)
    assert not data.exists()
    assert not file.exists()


def test_a_restored_service_has_everything_and_its_grants_are_fenced(
    backup: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    restore = ["restore", str(backup), "--data-dir", str(data)]
    done = run(restore)
    assert done.returncode == 0, done.stderr
    assert "logs with a new incarnation: orders" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(f"restored {backup} into {data}")
    assert "has a database already; move it away" in refusal(restore, Exit.DATA_DIRECTORY)
    with ServeProcess(tmp_path / "serve.log", ["--data-dir", str(data)]) as served:
        assert "in use by another service" in refusal(restore, Exit.DATA_DIRECTORY)
        with Client(served.url) as client:
            partitions = list(client.partitions("orders"))
        assert sum(int(one.end or 0) for one in partitions) == MESSAGES
        assert all(one.epoch > 2**50 for one in partitions)
        restored = url_of_running(data)
        assert restored is not None
        schema.check(restored)
        with psycopg.connect(restored) as connection:
            role = connection.execute("SELECT rolcanlogin FROM pg_roles WHERE rolname = %s", [ROLE])
            assert role.fetchone() == (False,)
            read = "SELECT count(*) FROM counterpoise_log.messages"
            assert connection.execute(read).fetchone() == (MESSAGES,)
        done = run(["backup", str(tmp_path / "another"), "--data-dir", str(data)])
        assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.matrix(of="backups")
def test_a_directory_comes_back_beside_a_restored_one(tmp_path: Path, backup: Path) -> None:
    """As the refusal says; its password is still that of the file."""
    data = tmp_path / "data"
    assert run(["migrate", "--data-dir", str(data)]).returncode == 0
    (data / "postgres").rename(data / "postgres.before")
    assert run(["restore", str(backup), "--data-dir", str(data)]).returncode == 0
    shutil.rmtree(data / "postgres")
    (data / "postgres.before").rename(data / "postgres")
    assert "already" in run(["migrate", "--data-dir", str(data)]).stdout


def test_a_database_of_ones_own_is_not_restored_into(
    backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTERPOISE_DATABASE_URL", "postgresql://127.0.0.1:1/nothing")
    assert "pg_restore --single-transaction" in refusal(["restore", str(backup)], Exit.SETTINGS)


def test_no_service_starts_on_half_a_restore(tmp_path: Path) -> None:
    (tmp_path / "restoring").mkdir()
    said = refusal(["serve", "--port", "0", "--data-dir", str(tmp_path)], Exit.DATA_DIRECTORY)
    assert "did not finish; run 'counterpoise restore' again" in said
    assert not (tmp_path / "postgres").exists()


@pytest.mark.long
@pytest.mark.matrix("said")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda _file, _url: None, "No such file"),
        (lambda file, _: file.write_text("no backup of anything"), "not appear to be a valid"),
        (lambda file, _: file.mkdir(), "not appear to be a valid archive"),
        (lambda file, url: dump(url, file), "it is plain text of pg_dump"),
        (lambda file, url: dump(url, file, "-Fc", "-n", "counterpoise"), "has no log"),
        (lambda file, url: dump(url, file, "-Fc", "-n", "counterpoise_log"), "only the log"),
        (lambda file, url: dump(url, file, "-Fc", "-n", "public"), "something else"),
        (lambda file, url: dump(url, file, "-Fc", "--data-only"), "something else"),
    ],
    ids=["none", "text", "directory", "plain", "control", "log", "other", "data"],
)
def test_a_file_that_is_no_backup_changes_nothing(
    url: str, tmp_path: Path, make: Callable[[Path, str], object], said: str
) -> None:
    file, data = tmp_path / "file", tmp_path / "data"
    make(file, url)
    line = refusal(["restore", str(file), "--data-dir", str(data)], Exit.BACKUP)
    assert said in line
    assert str(file) in line
    assert not data.exists()


@pytest.mark.long
@pytest.mark.matrix("options")
@pytest.mark.parametrize("options", [["-Fc"], ["-Ft"], ["-Fd"], ["-Fc", "--compress=none"]])
def test_a_backup_is_loaded_from_each_format(
    url: str, database_url: str, tmp_path: Path, options: list[str]
) -> None:
    backups.load(backups.read(dump(url, tmp_path / "file", *options)), database_url)
    schema.check(database_url)


@pytest.mark.long
@pytest.mark.matrix(of="backups")
def test_a_backup_that_ends_too_early_loads_nothing(
    backup: Path, postgres_url: str, tmp_path: Path
) -> None:
    whole = backup.read_bytes()
    part = tmp_path / "part"
    with new_database(postgres_url) as url, psycopg.connect(url, autocommit=True) as connection:
        for size in (0, 4, len(whole) // 4, len(whole) // 2, len(whole) - 1000, len(whole) - 1):
            part.write_bytes(whole[:size])
            with pytest.raises(backups.BackupFailed, match="cannot be restored"):
                backups.load(backups.read(part), url)
            found = connection.execute("SELECT to_regnamespace('counterpoise')::text")
            assert found.fetchone() == (None,), size


@pytest.mark.matrix("options")
@pytest.mark.parametrize(
    ("options", "said"),
    [(["--schema-only"], "not their revision"), (["--no-acl"], "no revocation of EXECUTE on")],
)
@pytest.mark.long
def test_a_backup_without_a_part_is_refused(
    url: str, tmp_path: Path, options: list[str], said: str
) -> None:
    file, data = dump(url, tmp_path / "file", "-Fc", *options), tmp_path / "data"
    done = run(["restore", str(file), "--data-dir", str(data)])
    assert done.returncode == Exit.MIGRATION
    assert said in done.stderr
    assert not {"postgres", "restoring"} & {one.name for one in data.iterdir()}


@pytest.mark.long
@pytest.mark.matrix(of="backups")
def test_a_backup_of_an_earlier_release_is_migrated_and_a_log_elsewhere_is_kept(
    url: str, tmp_path: Path
) -> None:
    file, data = dump(url, tmp_path / "file", "-Fc", "-n", "counterpoise"), tmp_path / "data"
    done = subprocess.run(
        [*NextRelease(tmp_path / "next").program, "restore", str(file), "--data-dir", str(data)],
        env={**os.environ, "COUNTERPOISE_LOG_DATABASE_URL": url},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "-> control_next" in done.stdout
    assert "logs with a new incarnation: none" in done.stdout


# When the process is killed: what there is then in the directory, or was printed.
STAGES: dict[str, Callable[[Path, str], bool]] = {
    "begun": lambda data, _: (data / "restoring").exists(),
    "initdb": lambda data, _: (data / "restoring/postgres.new/PG_VERSION").exists(),
    "cluster": lambda data, _: (data / "restoring/postgres").exists(),
    "started": lambda data, _: (data / "port").exists(),
    "migrated": lambda _, said: "log:" in said,
    "fenced": lambda _, said: "fenced:" in said,
    "kept": lambda data, _: (data / "postgres").exists(),
}


@pytest.mark.long
@pytest.mark.matrix("stage")
@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_restore_leaves_all_or_nothing(backup: Path, tmp_path: Path, stage: str) -> None:
    data, said = tmp_path / "data", tmp_path / "said"
    restore = ["restore", str(backup), "--data-dir", str(data)]
    serve = ServeProcess(tmp_path / "serve.log", ["--data-dir", str(data)])
    with said.open("w") as output:
        killed = Forked(
            "counterpoise.cli",
            restore,
            environment={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=output,
            stderr=output,
        )
        eventually(lambda: killed.poll() is not None or STAGES[stage](data, said.read_text()))
        kill_family(killed.pid)
        killed.wait()
    if not (data / "postgres").exists():
        with pytest.raises(AssertionError, match="did not finish"):
            serve.start()
        serve.end()
        done = run(restore)
        assert done.returncode == 0, done.stderr
    with serve, Client(serve.url) as client:
        assert sum(int(one.end or 0) for one in client.partitions("orders")) == MESSAGES


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
@pytest.mark.matrix("megabytes")
@pytest.mark.parametrize("megabytes", [20, 43, 48, 53])
def test_a_full_disk_leaves_all_or_nothing(backup: Path, tmp_path: Path, megabytes: int) -> None:
    """In initdb, while the cluster is made, and while the backup is loaded; 53 may suffice."""
    script = f'{MOUNT} && {COUNTERPOISE[0]} restore {backup} --data-dir "$0"/data; code=$?;'
    script += ' ls "$0"/data; exit $code'
    script = script.replace("160m", f"{megabytes}m")
    done = subprocess.run([*INSIDE, script, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode in (0, Exit.DATA_DIRECTORY, Exit.DATABASE, Exit.BACKUP), done.stderr
    assert len(done.stderr.splitlines()) == (done.returncode != 0)
    assert "restoring" not in done.stdout.split()
    assert ("postgres" in done.stdout.split()) == (done.returncode == 0)
