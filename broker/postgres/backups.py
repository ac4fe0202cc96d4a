"""Backups by Postgres's own programs: made, read, and restored into a data directory.

The programs are those of the embedded Postgres, so they fit its version.

A restore must be whole. So nobody else uses the server meanwhile (`RestoredPostgres`), `pg_restore`
ends at the first error and is one transaction, and the data directory gets its database only when
all further steps are done (`broker.postgres.restoring`), too.

A dump names roles and contains none. Those that it needs are made without a login: the groups of
the log's clients, and whatever role an administrator granted something.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from broker.postgres.binaries import OURSELVES, child_command, installed_wheel
from broker.postgres.cluster import end, telling_line
from broker.postgres.connections import connect
from broker.postgres.embedded import CLUSTER, RESTORING, DataDirectoryUnusable, EmbeddedPostgres
from counterpoise.logs import postgres

PLAIN = "text format dump"
# Of what pg_dump writes, each in a line of its own.
_ROLE = r'(\w+|"(?:[^"]|"")+")'
_NAMED_ROLE = re.compile(
    rf"^(?:GRANT|REVOKE) .*(?: TO| FROM) {_ROLE}(?: WITH GRANT OPTION)?;$"
    rf"|^CREATE POLICY .*? TO {_ROLE}"
    rf"|^ALTER DEFAULT PRIVILEGES FOR ROLE {_ROLE}"
    rf"|^SET SESSION AUTHORIZATION {_ROLE};$",
    re.M,
)
_VERSION = re.compile(r"^-- Dumped from database version (\S+)", re.M)


class BackupFailed(Exception):
    """A backup cannot be made, or a file be restored; the message is one line."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A file (or directory) of pg_dump. `roles`: those that it names; `version`: of its server."""

    path: Path
    has_control: bool
    has_log: bool
    roles: frozenset[str]
    version: str


def make(database_url: str, path: Path) -> None:
    """Back up a database into a new file; there is no file if it fails. Blocks.

    Raises BackupFailed, EmbeddedPostgresError.
    """
    if path.exists():
        raise BackupFailed(f"{path} is there already; give another name")
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        # It has the messages, and the hashes of keys. To its stdout pg_dump writes a part twice.
        os.close(os.open(unfinished, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600))
        _run("pg_dump", ["--format=custom", f"--file={unfinished}"], database_url)
        unfinished.rename(path)
    except OSError as error:
        raise BackupFailed(f"{path} cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def read(path: Path) -> Backup:
    """What is in a backup. Blocks. Raises BackupFailed, EmbeddedPostgresError."""
    try:
        script = _run("pg_restore", ["--schema-only", "--no-owner", "--file=-", str(path)])
    except BackupFailed as error:
        why = "it is plain text of pg_dump" if PLAIN in str(error) else str(error)
        raise BackupFailed(
            f"{path} cannot be restored: {why}; make a backup with 'counterpoise backup' or "
            "'pg_dump --format=custom'"
        ) from None
    named = {_unquoted(name) for found in _NAMED_ROLE.findall(script) for name in found if name}
    version = _VERSION.search(script)
    return Backup(
        path,
        has_control="\nCREATE TABLE counterpoise.service (" in script,
        has_log="\nCREATE TABLE counterpoise_log.logs (" in script,
        roles=frozenset(named - {"PUBLIC"}),
        version=version[1] if version else "unknown",
    )


def load(backup: Backup, database_url: str) -> None:
    """Restore into an empty database, as a superuser; all or nothing. Blocks.

    Raises BackupFailed.
    """
    try:
        with connect(database_url) as connection:
            known = {name for (name,) in connection.execute("SELECT rolname FROM pg_roles")}
            for role in sorted(backup.roles - known):
                connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(role)))
        _run("pg_restore", ["--no-owner", "--single-transaction", str(backup.path)], database_url)
    except (BackupFailed, psycopg.Error) as error:
        why = str(error).splitlines()[0]
        raise BackupFailed(
            f"{backup.path}, made from Postgres {backup.version}, cannot be restored: {why}"
        ) from None


def _run(program: str, arguments: Sequence[str], database_url: str = "") -> str:
    """The output of a program, which has ended well. Raises BackupFailed with its own words."""
    environment = {**os.environ, "LC_ALL": "C"}
    if database_url:
        # Arguments can be read by all users of the machine.
        address = postgres.read(database_url)
        if (password := address.pop("password", None)) is not None:
            environment["PGPASSWORD"] = password
        arguments = [f"--dbname={make_conninfo('', **address)}", *arguments]
    done = subprocess.run(
        child_command(OURSELVES, installed_wheel() / "bin" / program, *arguments),
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    if done.returncode != 0:
        raise BackupFailed(
            telling_line(done.stderr).removeprefix(f"{program}: ").removeprefix("error: ")
        )
    return done.stdout.decode("utf-8", "replace")


def _unquoted(role: str) -> str:
    return role[1:-1].replace('""', '"') if role.startswith('"') else role


class RestoredPostgres(EmbeddedPostgres):
    """A Postgres for a restore, under a data directory without a database.

    Its cluster is in `restoring/` until `keep`, and `stop` removes it if it was not kept. After a
    `kill -9`, `restoring/` shows that a restore did not finish: a service does not start, and the
    next restore begins anew.
    """

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self._cluster = self.data_dir / RESTORING / CLUSTER

    def keep(self) -> None:
        """Shut down, and make the cluster that of the data directory. Raises OSError."""
        assert self._process is not None, "not started"
        end(self._process, self._stop_seconds)
        self._cluster.rename(self.data_dir / CLUSTER)
        directory = os.open(self.data_dir, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _enter(self) -> None:
        present = self.data_dir / CLUSTER
        if present.exists():
            raise DataDirectoryUnusable(
                f"the data directory {self.data_dir} has a database already; move it away, for "
                f"example with 'mv {present} {present}.before', or give another --data-dir"
            )
        restoring = self.data_dir / RESTORING
        if restoring.exists():
            shutil.rmtree(restoring)
        restoring.mkdir(mode=0o700)
        self._held.callback(shutil.rmtree, restoring, ignore_errors=True)
