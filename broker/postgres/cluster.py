"""A database cluster of the embedded Postgres: the directory that `initdb` makes, and its
programs.

A program starts *inside* the cluster's directory, while it is still root if the service is. If it
runs as another user, it gets `/proc/self/cwd` as the path of its data. This link leads to the
directory without passing its parents, which that user may not be able to enter; Postgres and its
backends never leave the directory. No permission of any parent is changed. (On other systems than
Linux it gets the path itself.)

Every program inherits `lock_fd`, a file descriptor that holds an flock; `embedded` explains
its meaning.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from broker.postgres.binaries import OURSELVES, Binaries, EmbeddedPostgresError

USER = DATABASE = "counterpoise"


class DataDirectoryUnusable(EmbeddedPostgresError):
    """The data directory cannot be written, is of another version, or not for this start."""


class Cluster:
    """The cluster at `path`, run with `binaries`. `limit_seconds` bounds each program."""

    def __init__(self, path: Path, binaries: Binaries, lock_fd: int, limit_seconds: float) -> None:
        self.path = path
        self._binaries = binaries
        self._lock_fd = lock_fd
        self._limit_seconds = limit_seconds

    def exists(self) -> bool:
        return self.path.exists()

    def make(self, password: str) -> None:
        """Make the cluster: the owner USER with `password`, and the DATABASE.

        It is made under another name and renamed when complete, so that an interrupted start
        leaves no incomplete cluster.

        Raises EmbeddedPostgresError.
        """
        unfinished = Cluster(
            self.path.with_name(self.path.name + ".new"),
            self._binaries,
            self._lock_fd,
            self._limit_seconds,
        )
        if unfinished.exists():
            shutil.rmtree(unfinished.path)
        unfinished.path.mkdir(mode=0o700)
        with tempfile.TemporaryFile() as password_input:
            password_input.write(f"{password}\n".encode("ascii"))
            password_input.seek(0)
            account = self._binaries.account
            if account.uid is not None and account.gid is not None:
                os.chown(unfinished.path, account.uid, account.gid)
                # The user opens it again under the name /dev/stdin.
                os.fchown(password_input.fileno(), account.uid, account.gid)
            arguments = [
                *("--username", USER, "--pwfile", "/dev/stdin", "--auth", "scram-sha-256"),
                # A locale of Postgres's own: strings sort alike on every machine.
                *("--encoding", "UTF8", "--locale", "C"),
                *("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"),
                *("--no-instructions", "-D", unfinished.data_argument),
            ]
            unfinished._run("initdb", arguments, password_input)
        unfinished._execute(f"CREATE DATABASE {DATABASE}")
        unfinished.path.rename(self.path)

    def make_usable(self) -> None:
        """Check that these programs can run the cluster, and remove leftovers of a crash.

        Call it only while the lock of `lock_fd` is held: then no Postgres runs on the cluster, even
        if the number in `postmaster.pid` belongs to a running process.

        Raises DataDirectoryUnusable.
        """
        version = (self.path / "PG_VERSION").read_text("ascii").strip()
        if version != str(self._binaries.major):
            raise DataDirectoryUnusable(
                f"{self.path} was made by Postgres {version}, and this is Postgres "
                f"{self._binaries.version}; dump and restore it, or give another --data-dir"
            )
        (self.path / "postmaster.pid").unlink(missing_ok=True)

    def set_password(self, password: str) -> None:
        """Set the owner's password; Postgres must not run. Raises EmbeddedPostgresError."""
        self._execute(f"ALTER ROLE {USER} PASSWORD '{password}'")

    def launch(self, settings: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start the server as a child, with `settings` as `name=value`."""
        arguments = ["-D", self.data_argument]
        for setting in settings:
            arguments += ["-c", setting]
        return self._spawn("postgres", arguments, subprocess.DEVNULL, log)

    def accepts_connections(self, pid: int) -> bool:
        """Whether the server with this number, our child, reports that it is ready."""
        try:
            lines = (self.path / "postmaster.pid").read_text("utf-8").splitlines()
        except FileNotFoundError:
            return False
        # Line 1 is its number, line 8 its status (Postgres's miscadmin.h).
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"

    @property
    def data_argument(self) -> str:
        """The path of the cluster for a program that starts inside it."""
        through_proc = self._binaries.account != OURSELVES and sys.platform == "linux"
        return "/proc/self/cwd" if through_proc else str(self.path)

    def _execute(self, statement: str) -> None:
        """Run one statement in single-user mode: no port, no password, no other user."""
        with tempfile.TemporaryFile() as commands:
            commands.write(f"{statement}\n".encode("ascii"))
            commands.seek(0)
            alone = ["--single", "-D", self.data_argument, "-c", "exit_on_error=on", "postgres"]
            self._run("postgres", alone, commands)

    def _run(self, program: str, arguments: Sequence[str], stdin: IO[bytes]) -> None:
        with tempfile.TemporaryFile() as log:
            process = self._spawn(program, arguments, stdin.fileno(), log)
            try:
                code = process.wait(self._limit_seconds)
            except subprocess.TimeoutExpired:
                raise EmbeddedPostgresError(
                    f"{program} took over {self._limit_seconds} s"
                ) from None
            finally:
                end(process)
            if code != 0:
                log.seek(0)
                raise EmbeddedPostgresError(f"{program} failed: {telling_line(log.read())}")

    def _spawn(
        self, program: str, arguments: Sequence[str], stdin: int, log: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._binaries.command(program, *arguments),
            cwd=self.path,
            # No inherited variables: PGDATA, PGPORT and LD_LIBRARY_PATH would have an effect.
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            stdin=stdin,
            stdout=log,
            stderr=log,
            pass_fds=(self._lock_fd,),
            # Ctrl-C in a terminal is for the service, which needs its database to shut down.
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes], limit_seconds: float = 30.0) -> None:
    """End a child: cleanly, after `limit_seconds` s without a checkpoint, and then by force."""
    for request, seconds in ((signal.SIGINT, limit_seconds), (signal.SIGQUIT, 10.0)):
        if process.poll() is not None:
            return
        process.send_signal(request)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    if process.poll() is None:
        process.kill()
        process.wait()


def telling_line(output: bytes) -> str:
    """The line with the reason in the output of a Postgres program.

    A server also writes one for each client that it refuses until it is ready, and one behind the
    reason why its first checkpoint failed. That a process of it was killed is a message of it.
    """
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines()]
    telling = [line for line in lines if any(mark in line for mark in _MARKS)]
    reasons = [line for line in telling if not any(mark in line for mark in _FOLLOWING)]
    return (
        reasons or ends_of(lines) or telling or [line for line in lines if line] or ["no output"]
    )[-1]


def ends_of(lines: Iterable[str]) -> list[str]:
    """The lines of a server that say that a process of it has ended, and how, or that it ends."""
    return [line for line in lines if _ENDS.search(line)]


_MARKS = ("PANIC:", "FATAL:", "ERROR:", "error:")
_FOLLOWING = ("FATAL:  the database system is ", "FATAL:  checkpoint request failed")
# A background worker exits with 1 in an orderly shutdown.
_ENDS = re.compile(
    "PANIC:| was terminated by signal |LOG:  (?!background worker ).* exited with exit code "
)
