"""The Postgres that starts if no database is given: a child that stops with the service.

```python
with EmbeddedPostgres(default_data_dir()) as url:
    ...  # postgresql://counterpoise:PASSWORD@127.0.0.1:PORT/counterpoise
```

Guarantees, and their means:

* **One service per data directory.** The service holds an exclusive lock on `service.lock`; a
  second one gets DataDirectoryInUse at once.
* **One Postgres per data directory, and no process is ever signalled by a number read from a
  file.** Postgres, with all its backends, inherits the lock on `postgres.lock`, and the kernel
  releases it when the last of them is gone. The holder of this lock knows that a
  `postmaster.pid` in the directory is stale, even if its number belongs to a running process,
  and removes it.
* **Postgres ends with the service**, also after `kill -9`: the kernel sends it SIGINT (a fast,
  clean shutdown) when the service's main thread ends (see `child`). The next start waits
  on `postgres.lock` until it is gone.
* **Root needs no special care.** Postgres then runs as `nobody`, from programs that `nobody` can
  reach (see `binaries`), on a directory below parents that it need not be able to enter
  (see `cluster`). No permission of any parent is changed.
* **Only a reader of the password can log in**: TCP on 127.0.0.1 with SCRAM, no unix socket, and
  the generated password in a file of mode 0600 that belongs to the user of the service.
* **Each has connections of its own**: clients of the log, logins that are not finished (see
  `logins`), and the service.
* **An interrupted start leaves no incomplete files**: files and the cluster get their names when
  they are complete.

The directory: `service.lock`, `postgres.lock`, `password`, `port` (the last one; taken again when
it is free, so that consumers which know it can continue after a restart of the service; while the
service runs its Postgres keeps this port), `postgres.log` (and `.1`, what was in it before),
`postgres/` (the cluster), `restoring/` (a cluster in the making; see `backups`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from broker.postgres.binaries import (
    Binaries,
    EmbeddedPostgresError,
    account_for,
    find_binaries,
    unknown_user,
)
from broker.postgres.cluster import (
    DATABASE,
    USER,
    Cluster,
    DataDirectoryUnusable,
    end,
    ends_of,
    telling_line,
)
from broker.postgres.logins import MOST_LOGINS

__all__ = [
    "DataDirectoryInUse",
    "DataDirectoryUnusable",
    "EmbeddedPostgres",
    "EmbeddedPostgresError",
    "default_data_dir",
    "url_of_running",
]

HOST = "127.0.0.1"
CLUSTER, RESTORING = "postgres", "restoring"

# Connections for the log's clients, all together.
CLIENTS = 200
# For logins that are not finished: as many as there may be, those that begin between two looks, and
# those that are ending.
LOGINS = 3 * MOST_LOGINS
# For the service, beside its pool: one listens, 24 administer the log, and commands use the rest.
BESIDE_POOL = 35

SETTINGS: Mapping[str, str] = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    # What a login may take, as long as there are few.
    "authentication_timeout": "5s",
    # These show how far a login is.
    "update_process_title": "on",
    # Sessions of the log beyond it are ended (`broker.logs.roles`).
    "counterpoise.clients": str(CLIENTS),
    # No statement of a client fills the disk; the service's own may need more, and set it.
    "temp_file_limit": "1GB",
    # Nor does a session that listens and does not read: 64 MB, of 8 kB each. Notifications of the
    # service are hints, and the queue is empty again when such a session has been ended.
    "max_notify_queue_pages": "8192",
    # Statements and parameters may be as large as a client likes, and are the client's own.
    "log_min_error_statement": "panic",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
    # So the service knows that nobody else uses this server.
    "counterpoise.own_server": "on",
    "password_encryption": "scram-sha-256",
    "fsync": "on",
    # The crash of one of its processes ends it, and it is started again (`keeper` says why).
    "restart_after_crash": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # All statements are short: compiling them costs more than it saves.
    "jit": "off",
    # Shown by ps, so that an administrator sees the owner of this Postgres.
    "cluster_name": "counterpoise",
}
# Of `postgres.log`, and of the one before.
LOG_BYTES = 16 * 1024 * 1024
# Postgres writes a line with it every 10 s during a recovery (`log_startup_progress_interval`).
_PROGRESS = b", elapsed time: "
_LAST_BYTES = 64 * 1024


class DataDirectoryInUse(DataDirectoryUnusable):
    """Another service is using the data directory."""


def default_data_dir() -> Path:
    """The user's data directory: `counterpoise` in $XDG_DATA_HOME, else in ~/.local/share.

    Raises EmbeddedPostgresError for a user without a home directory, who is in no user database.
    """
    base = os.environ.get("XDG_DATA_HOME", "")
    try:
        # The XDG base directory specification: a relative path is invalid and must be ignored.
        root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share"
    except RuntimeError:
        raise unknown_user() from None
    return root / "counterpoise"


def url_of_running(data_dir: Path) -> str | None:
    """The URL of the Postgres that a running service has in this directory; None if unknown."""
    directory = Path(data_dir).absolute()
    try:
        password = (directory / "password").read_text("ascii").strip()
    except OSError:
        return None
    port = _read_port(directory / "port")
    return f"postgresql://{USER}:{password}@{HOST}:{port}/{DATABASE}" if port else None


class EmbeddedPostgres:
    """A Postgres of our own under `data_dir`, started and stopped by this process.

    `pool_size` connections, and BESIDE_POOL more, are for the service alone. `settings` are
    Postgres settings that override SETTINGS. `start_seconds` bounds how long Postgres may take
    until it accepts connections (a recovery that goes on has as long again, and again), and how
    long the Postgres of an earlier service may take to end; `stop_seconds` how long a clean
    shutdown may take.

    As a context manager it gives the URL.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        pool_size: int = 10,
        settings: Mapping[str, str] | None = None,
        start_seconds: float = 300.0,
        stop_seconds: float = 30.0,
    ) -> None:
        self.data_dir = Path(data_dir).absolute()
        self._cluster = self.data_dir / CLUSTER
        self._log = self.data_dir / "postgres.log"
        reserved = pool_size + BESIDE_POOL
        self._settings = {
            **SETTINGS,
            "max_connections": str(CLIENTS + LOGINS + reserved),
            "superuser_reserved_connections": str(reserved),
            **(settings or {}),
        }
        self._start_seconds = start_seconds
        self._stop_seconds = stop_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._port: int | None = None
        # The resources that `stop` releases, the last one first.
        self._held = contextlib.ExitStack()

    def start(self) -> str:
        """Start Postgres and wait until it accepts connections. Returns its URL, with the password.

        Call it from the main thread: Postgres ends when the thread that started it ends.

        Raises DataDirectoryUnusable, DataDirectoryInUse, EmbeddedPostgresError; each is
        one line that says what to do.
        """
        assert threading.current_thread() is threading.main_thread(), "not the main thread"
        return self._start(self._launch_on_a_free_port)

    def restart(self) -> str:
        """Start it again after it has ended by itself, as `start` does.

        On the same port, because clients know it: EmbeddedPostgresError while another program has
        the port. Call it from a thread that lives until `stop`: Postgres ends with that thread.
        """
        # The resources of the ended one.
        self.stop()
        return self._start(self._launch_on_its_port)

    def _start(self, launch: Callable[[Cluster], int]) -> str:
        assert self.poll() is not None or self._process is None, "started already"
        try:
            lock_fd = self._take_locks()
            self._enter()
            binaries: Binaries = find_binaries(account_for(self._cluster))
            self._held.callback(binaries.close)
            cluster = Cluster(self._cluster, binaries, lock_fd, self._start_seconds)
            password = self._prepare(cluster)
            self._port = launch(cluster)
        except OSError as error:
            self.stop()
            raise self._unwritable(error) from error
        except BaseException:
            self.stop()
            raise
        return f"postgresql://{USER}:{password}@{HOST}:{self._port}/{DATABASE}"

    def poll(self) -> int | None:
        """The exit code of Postgres once it has ended, None while it runs or before it is
        started.
        """
        return None if self._process is None else self._process.poll()

    def why_it_ended(self) -> str:
        """The last line of its log that says that one of its processes, or itself, has crashed;
        empty if there is none.
        """
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - _LAST_BYTES))
            ends = ends_of(log.read().decode("utf-8", "replace").splitlines())
            return ends[-1].strip() if ends else ""
        return ""

    def bound_log(self) -> None:
        """Empty `postgres.log` if it has grown beyond LOG_BYTES. Raises OSError."""
        if self._log.stat().st_size > LOG_BYTES:
            _set_aside(self._log)

    @property
    def pid(self) -> int | None:
        """The process number of the server, None when it does not run."""
        return None if self._process is None or self.poll() is not None else self._process.pid

    def stop(self) -> None:
        """Shut Postgres down cleanly, disconnect all clients, and release the data directory.

        A Postgres that does not end within `stop_seconds` is stopped without a checkpoint; this
        loses no committed data. Does nothing when it is not running.
        """
        if self._process is not None:
            end(self._process, self._stop_seconds)
        self._held.close()

    def __enter__(self) -> str:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _take_locks(self) -> int:
        """Lock the directory. Returns the descriptor of the lock that Postgres inherits."""
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        service_lock = self._open_lock(self.data_dir / "service.lock")
        if not _try_lock(service_lock):
            holder = os.pread(service_lock, 20, 0).decode("ascii", "replace").strip()
            raise DataDirectoryInUse(
                f"the data directory {self.data_dir} is in use by another service"
                + (f" (process {holder})" if holder else "")
                + "; stop it, or give another --data-dir"
            )
        # Only for people: no decision uses this number.
        os.truncate(service_lock, 0)
        os.pwrite(service_lock, f"{os.getpid()}\n".encode("ascii"), 0)
        postgres_lock = self._open_lock(self.data_dir / "postgres.lock")
        give_up = time.monotonic() + self._start_seconds
        while not _try_lock(postgres_lock):
            if time.monotonic() > give_up:
                raise DataDirectoryInUse(
                    f"the Postgres of an earlier service is still running in {self.data_dir}"
                )
            time.sleep(0.02)
        return postgres_lock

    def _enter(self) -> None:
        """Called with the locks held, before anything is made."""
        restoring = self.data_dir / RESTORING
        if restoring.exists() and not self._cluster.exists():
            raise DataDirectoryUnusable(
                f"a restore into the data directory {self.data_dir} did not finish; run "
                f"'counterpoise restore' again, or remove {restoring} to begin with no data"
            )

    def _open_lock(self, path: Path) -> int:
        # A bare descriptor: a file object would release the lock when it is garbage-collected.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._held.callback(os.close, descriptor)
        return descriptor

    def _unwritable(self, error: OSError) -> DataDirectoryUnusable:
        where = f" ({error.filename})" if error.filename else ""
        return DataDirectoryUnusable(
            f"the data directory {self.data_dir} cannot be used: {error.strerror or error}{where}; "
            "give another --data-dir"
        )

    def _prepare(self, cluster: Cluster) -> str:
        """Prepare a cluster that can be started. Returns the password of its owner."""
        password_file = self.data_dir / "password"
        if not cluster.exists():
            # One that is there is of a cluster that was moved away, and may come back.
            if not password_file.exists():
                _write_private(password_file, secrets.token_hex(24))
            cluster.make(password_file.read_text("ascii").strip())
        cluster.make_usable()
        if not password_file.exists():
            password = secrets.token_hex(24)
            cluster.set_password(password)
            _write_private(password_file, password)
        return password_file.read_text("ascii").strip()

    def _launch_on_its_port(self, cluster: Cluster) -> int:
        """On the port it had before, or not at all."""
        assert self._port is not None, "never started"
        is_free = _free_port(self._port) == self._port
        if not is_free or not self._launch(cluster, self._port, self._new_log()):
            raise EmbeddedPostgresError(f"port {self._port} on {HOST} is taken by another program")
        return self._port

    def _launch_on_a_free_port(self, cluster: Cluster) -> int:
        log = self._new_log()
        port_file = self.data_dir / "port"
        wanted = _read_port(port_file)
        for _ in range(10):
            port = _free_port(wanted)
            wanted = 0
            if self._launch(cluster, port, log):
                _write_private(port_file, str(port))
                return port
        raise EmbeddedPostgresError(f"no port stayed free on {HOST} until Postgres listened on it")

    def _new_log(self) -> Path:
        if self._log.exists():
            _set_aside(self._log)
        return self._log

    def _launch(self, cluster: Cluster, port: int, log_file: Path) -> bool:
        """False: another program took the port before Postgres listened on it."""
        settings = {**self._settings, "port": str(port)}
        with open(os.open(log_file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab") as log:
            began = log_file.stat().st_size
            process = cluster.launch([f"{k}={v}" for k, v in settings.items()], log)
        self._process = process
        give_up, progress = time.monotonic() + self._start_seconds, 0
        while not cluster.accepts_connections(process.pid):
            if process.poll() is not None:
                said = log_file.read_bytes()[began:]
                if b"could not create any TCP/IP sockets" in said:
                    return False
                raise EmbeddedPostgresError(
                    f"Postgres ended while starting: {telling_line(said)} (see {log_file})"
                )
            if time.monotonic() > give_up:
                before, progress = progress, log_file.read_bytes()[began:].count(_PROGRESS)
                if progress > before:
                    give_up += self._start_seconds
                    continue
                raise EmbeddedPostgresError(
                    f"Postgres was not ready within {self._start_seconds} s (see {log_file})"
                )
            time.sleep(0.01)
        return True


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its user can read; it exists complete or not at all."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(os.open(unfinished, flags, 0o600), "w", encoding="ascii") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def _set_aside(log: Path) -> None:
    """Move the last LOG_BYTES of a log to `.1`, and empty it. Its writers append, and go on.

    What is written in between is lost, and so is what there is no room for.
    """
    aside = log.with_name(log.name + ".1")
    aside.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with (
        contextlib.suppress(OSError),
        log.open("rb") as old,
        open(os.open(aside, flags, 0o600), "wb") as new,
    ):
        old.seek(max(0, log.stat().st_size - LOG_BYTES))
        new.write(old.read(LOG_BYTES))
    os.truncate(log, 0)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_port(path: Path) -> int:
    """The port in the file; 0, any port, without one."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int(path.read_text("ascii"))
    return 0


def _free_port(wanted: int) -> int:
    """`wanted` if it is free, else a port that the system reports as free."""
    for port in (wanted, 0):
        with socket.socket() as probe, contextlib.suppress(OSError, OverflowError):
            # As Postgres does: lingering connections of the last run do not block the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return int(probe.getsockname()[1])
    raise EmbeddedPostgresError(f"no port is free on {HOST}")
