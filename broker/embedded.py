"""The Postgres that starts when no database is given: a child of the service, and gone with it.

```python
with EmbeddedPostgres(default_data_dir()) as url:
    ...  # postgresql://counterpoise:PASSWORD@127.0.0.1:PORT/counterpoise
```

What holds, and by what means:

* **One service per data directory.** The service holds an exclusive lock on `service.lock`; a
  second one gets DataDirectoryInUse at once.
* **One Postgres per data directory, and no process is ever signalled by a number read from a
  file.** Postgres, with all its backends, inherits the lock on `postgres.lock`, and the kernel
  releases it when the last of them is gone. Whoever holds it knows that a `postmaster.pid` in the
  directory is stale, whatever process its number names today, and removes it.
* **Postgres ends with the service**, also after `kill -9`: the kernel sends it SIGINT (a fast,
  clean shutdown) when the service's main thread ends. The next start waits on `postgres.lock`
  until it is gone.
* **Root needs no special care.** Postgres then runs as `nobody` (see postgres_binaries). Its
  directory may lie below ones that only root may enter,
  `/root/.local/share/counterpoise/postgres` for one: the child is put into it while it is still
  root, and Postgres is told that its data is at `/proc/self/cwd`, which leads there without
  passing the parents. Postgres and its backends never leave that directory, and no permission of
  any parent changes.
* **Only who can read the password gets in**: TCP on 127.0.0.1 with SCRAM, no unix socket, and the
  generated password in a file of mode 0600 that belongs to the user of the service.
* **A start that was cut short leaves nothing half made**: a cluster is made under another name,
  complete with database and password, and then renamed.

The directory: `service.lock`, `postgres.lock`, `password`, `port` (the last one; taken again when
it is free, so that consumers which know it can go on after a restart), `postgres.log` (and `.1`,
the previous run's), `postgres/` (the cluster).
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from broker.postgres_binaries import (
    OURSELVES,
    Binaries,
    EmbeddedPostgresError,
    account_for,
    find_binaries,
)

USER = DATABASE = "counterpoise"
HOST = "127.0.0.1"

SETTINGS: Mapping[str, str] = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "password_encryption": "scram-sha-256",
    "fsync": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Short statements only: compiling them costs more than it saves.
    "jit": "off",
    # Shown by ps, so that an administrator sees whose Postgres this is.
    "cluster_name": "counterpoise",
}


class DataDirectoryInUse(EmbeddedPostgresError):
    """Another service is using the data directory."""


class DataDirectoryUnwritable(EmbeddedPostgresError):
    """The data directory cannot be made or written to."""


class DataDirectoryOfAnotherVersion(EmbeddedPostgresError):
    """The data directory was made by another major version of Postgres."""


class PostgresDidNotStart(EmbeddedPostgresError):
    """Postgres ended, or did not become ready, while it was being started."""


class _PortTaken(Exception):
    """Somebody took the port between our choosing it and Postgres listening on it."""


def default_data_dir() -> Path:
    """The user's data directory for Counterpoise: $XDG_DATA_HOME or ~/.local/share,
    /counterpoise."""
    base = os.environ.get("XDG_DATA_HOME", "")
    # The XDG base directory specification: a relative path is invalid and to be ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share"
    return root / "counterpoise"


class EmbeddedPostgres:
    """A Postgres of our own under `data_dir`, started and stopped by this process.

    `settings` are Postgres settings that override SETTINGS. `start_seconds` bounds how long
    Postgres may take until it accepts connections (recovery after a crash included), and how long
    the Postgres of an earlier service may take to end.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        settings: Mapping[str, str] | None = None,
        start_seconds: float = 300.0,
        stop_seconds: float = 30.0,
    ) -> None:
        self.data_dir = Path(data_dir).absolute()
        self._cluster = self.data_dir / "postgres"
        self._settings = {**SETTINGS, **(settings or {})}
        self._start_seconds = start_seconds
        self._stop_seconds = stop_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._binaries: Binaries | None = None
        self._service_lock: IO[str] | None = None
        self._postgres_lock: IO[str] | None = None

    def start(self) -> str:
        """Start Postgres and wait until it accepts connections. Returns its URL, password
        included.

        To be called from the main thread: Postgres is told to end when the thread that started it
        ends.

        Raises DataDirectoryInUse, DataDirectoryUnwritable, DataDirectoryOfAnotherVersion,
        PostgresDidNotStart, PostgresNotInstalled, PostgresNotRunnable.
        """
        assert threading.current_thread() is threading.main_thread(), (
            "start it from the main thread"
        )
        assert self._process is None, "started already"
        try:
            self._take_locks()
            self._binaries = find_binaries(account_for(self._cluster))
            password = self._prepare_cluster()
            port = self._launch_on_a_free_port()
        except OSError as error:
            self.stop()
            raise self._unwritable(error) from error
        except BaseException:
            self.stop()
            raise
        return f"postgresql://{USER}:{password}@{HOST}:{port}/{DATABASE}"

    def poll(self) -> int | None:
        """The exit code of Postgres if it has ended by itself or by `stop`, None while it runs."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """Shut Postgres down cleanly, disconnecting everybody, and let the data directory go.

        Postgres that does not end within `stop_seconds` is stopped without a checkpoint; nothing
        committed is lost by that. Does nothing when it has not been started.
        """
        if self._process is not None:
            _end(self._process, self._stop_seconds)
            self._process = None
        if self._binaries is not None:
            self._binaries.close()
            self._binaries = None
        for lock in (self._postgres_lock, self._service_lock):
            if lock is not None:
                lock.close()
        self._postgres_lock = self._service_lock = None

    def __enter__(self) -> str:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # -- the data directory ------------------------------------------------------------------------

    def _take_locks(self) -> None:
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._service_lock = _open_private(self.data_dir / "service.lock")
            self._postgres_lock = _open_private(self.data_dir / "postgres.lock")
        except OSError as error:
            raise self._unwritable(error) from error
        if not _try_lock(self._service_lock):
            holder = self._service_lock.read().strip()
            raise DataDirectoryInUse(
                f"the data directory {self.data_dir} is in use by another service"
                + (f" (process {holder})" if holder else "")
                + "; stop it, or give another --data-dir"
            )
        self._service_lock.truncate(0)
        self._service_lock.write(f"{os.getpid()}\n")
        self._service_lock.flush()
        give_up = time.monotonic() + self._start_seconds
        while not _try_lock(self._postgres_lock):
            if time.monotonic() > give_up:
                raise DataDirectoryInUse(
                    f"the Postgres of an earlier service is still running on {self._cluster}"
                )
            time.sleep(0.02)

    def _unwritable(self, error: OSError) -> DataDirectoryUnwritable:
        return DataDirectoryUnwritable(
            f"the data directory {self.data_dir} cannot be used: {error.strerror or error} "
            f"({error.filename or self.data_dir}); give another --data-dir"
        )

    def _prepare_cluster(self) -> str:
        """Make the cluster if there is none, else check it. Returns the password of its owner."""
        assert self._binaries is not None
        password_file = self.data_dir / "password"
        if not self._cluster.exists():
            password = secrets.token_hex(24)
            _write_private(password_file, password)
            self._make_cluster(password)
            return password
        version = (self._cluster / "PG_VERSION").read_text("ascii").strip()
        if version != str(self._binaries.major):
            raise DataDirectoryOfAnotherVersion(
                f"{self._cluster} was made by Postgres {version}, and this is Postgres "
                f"{self._binaries.version}; dump and restore it, or give another --data-dir"
            )
        # We hold the lock that every Postgres on this directory inherits, so none is running.
        (self._cluster / "postmaster.pid").unlink(missing_ok=True)
        if not password_file.exists():
            password = secrets.token_hex(24)
            self._run_alone(self._cluster, f"ALTER ROLE {USER} PASSWORD '{password}'")
            _write_private(password_file, password)
        return password_file.read_text("ascii").strip()

    def _make_cluster(self, password: str) -> None:
        assert self._binaries is not None
        unfinished = self.data_dir / "postgres.new"
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(mode=0o700)
        with tempfile.TemporaryFile() as password_input:
            password_input.write(password.encode() + b"\n")
            password_input.seek(0)
            account = self._binaries.account
            if account.uid is not None and account.gid is not None:
                os.chown(unfinished, account.uid, account.gid)
                os.fchown(password_input.fileno(), account.uid, account.gid)
            arguments = [
                *("--username", USER, "--pwfile", "/dev/stdin", "--auth", "scram-sha-256"),
                # A locale of Postgres's own: strings sort alike on every machine.
                *("--encoding", "UTF8", "--locale", "C"),
                *("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"),
                *("--no-instructions", "-D", self._data_argument(unfinished)),
            ]
            self._run(unfinished, "initdb", arguments, password_input)
        self._run_alone(unfinished, f"CREATE DATABASE {DATABASE}")
        unfinished.rename(self._cluster)

    # -- its programs ------------------------------------------------------------------------------

    def _data_argument(self, cluster: Path) -> str:
        """How a program that starts inside `cluster` is to name it; see the module's docstring."""
        assert self._binaries is not None
        through_proc = self._binaries.account != OURSELVES and sys.platform == "linux"
        return "/proc/self/cwd" if through_proc else str(cluster)

    def _spawn(
        self, cluster: Path, program: str, arguments: Sequence[str], stdin: int, log: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        assert self._binaries is not None
        assert self._postgres_lock is not None
        return subprocess.Popen(
            self._binaries.command(program, *arguments),
            cwd=cluster,
            # Nothing of ours: PGDATA, PGPORT and LD_LIBRARY_PATH would be obeyed.
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            stdin=stdin,
            stdout=log,
            stderr=log,
            pass_fds=(self._postgres_lock.fileno(),),
            # Ctrl-C in a terminal is for the service, which needs its database to shut down.
            start_new_session=True,
        )

    def _run(self, cluster: Path, program: str, arguments: Sequence[str], stdin: IO[bytes]) -> None:
        """Run a program to its end. Raises PostgresDidNotStart with its last error if it fails."""
        with tempfile.TemporaryFile() as log:
            process = self._spawn(cluster, program, arguments, stdin.fileno(), log)
            try:
                code = process.wait(self._start_seconds)
            except subprocess.TimeoutExpired:
                raise PostgresDidNotStart(f"{program} took over {self._start_seconds} s") from None
            finally:
                _end(process, self._stop_seconds)
            if code != 0:
                log.seek(0)
                raise PostgresDidNotStart(f"{program} failed: {_last_error(log.read())}")

    def _run_alone(self, cluster: Path, statement: str) -> None:
        """Run one statement in single-user mode: no port, no password, nobody else there."""
        with tempfile.TemporaryFile() as commands:
            commands.write(statement.encode() + b"\n")
            commands.seek(0)
            data = self._data_argument(cluster)
            arguments = ["--single", "-D", data, "-c", "exit_on_error=on", "postgres"]
            self._run(cluster, "postgres", arguments, commands)

    def _launch_on_a_free_port(self) -> int:
        log = self.data_dir / "postgres.log"
        if log.exists():
            log.replace(log.with_name("postgres.log.1"))
        port_file = self.data_dir / "port"
        wanted = int(port_file.read_text("ascii")) if port_file.exists() else 0
        for _ in range(10):
            port = _free_port(wanted)
            wanted = 0
            with contextlib.suppress(_PortTaken):
                self._launch(port, log)
                _write_private(port_file, str(port))
                return port
        raise PostgresDidNotStart(f"no port stayed free on {HOST} until Postgres listened on it")

    def _launch(self, port: int, log_file: Path) -> None:
        settings = {**self._settings, "port": str(port)}
        arguments = ["-D", self._data_argument(self._cluster)]
        for name, value in settings.items():
            arguments += ["-c", f"{name}={value}"]
        with open(os.open(log_file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab") as log:
            began = log_file.stat().st_size
            process = self._spawn(self._cluster, "postgres", arguments, subprocess.DEVNULL, log)
        self._process = process
        give_up = time.monotonic() + self._start_seconds
        while not self._accepts_connections(process.pid):
            if process.poll() is not None:
                self._process = None
                said = log_file.read_bytes()[began:]
                if b"could not create any TCP/IP sockets" in said:
                    raise _PortTaken
                raise PostgresDidNotStart(
                    f"Postgres ended while starting: {_last_error(said)} (see {log_file})"
                )
            if time.monotonic() > give_up:
                raise PostgresDidNotStart(
                    f"Postgres was not ready within {self._start_seconds} s (see {log_file})"
                )
            time.sleep(0.01)

    def _accepts_connections(self, pid: int) -> bool:
        """Whether the process we started says so: line 1 is its number, line 8 its status."""
        try:
            lines = (self._cluster / "postmaster.pid").read_text("utf-8").splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


def _open_private(path: Path) -> IO[str]:
    return open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="ascii")


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its user can read; it is there complete or not at all."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(os.open(unfinished, flags, 0o600), "w", encoding="ascii") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free_port(wanted: int) -> int:
    """`wanted` if nobody listens there, else a port that the system says is free just now."""
    for port in (wanted, 0):
        with socket.socket() as probe, contextlib.suppress(OSError, OverflowError):
            # As Postgres does: connections of the last run that linger do not take the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return int(probe.getsockname()[1])
    raise PostgresDidNotStart(f"no port is free on {HOST}")


def _end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """End a child of ours: cleanly, else at once (recovery at the next start), else by force."""
    for request, patience in ((signal.SIGINT, seconds), (signal.SIGQUIT, 10.0)):
        if process.poll() is not None:
            return
        process.send_signal(request)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return
    process.kill()
    process.wait()


def _last_error(output: bytes) -> str:
    """The line that says why, of what a Postgres program has written."""
    lines = [
        line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()
    ]
    marks = ("PANIC:", "FATAL:", "ERROR:", "error:")
    telling = [line for line in lines if any(mark in line for mark in marks)]
    return (telling or lines or ["it said nothing"])[-1]
