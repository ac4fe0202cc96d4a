"""Brings databases up to date: two Alembic trees, one for the control tables, one for the log.

The trees are in the package `migrations`. The `.sql` files of a tree make a new database as it is
today, and its revisions lead older databases there. Each has an env.py that takes a connection,
waits for other processes at an advisory lock, and stores its version in its own table.

Replicas of two releases serve one database while they are replaced one by one. So a migration has
two steps (expand, then contract). An *expanding* revision only adds, and names in `serves_from` the
oldest revision whose code still works with the tables. A *contracting* one (`contracts = True`)
removes what no code uses any more. From this follow these rules:

- Expanding revisions run when a replica starts; contracting ones only when an administrator
  declares that no older replica is left (`migrate --contract`), or if there are no tables at all.
- A database lists the revisions that it serves, for code that does not know its revision.
- Code *needs* its newest expanding revision. It serves a database at that revision or a later one
  of its own, and a database at an unknown revision if that one serves the needed revision.

Most starts find current tables. They do without Alembic, which takes a tenth of a start to import.
"""

from __future__ import annotations

import re
import threading
import time
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

import migrations
from broker.postgres.connections import DatabaseUnreachable, connect

if TYPE_CHECKING:
    from alembic.config import Config

T = TypeVar("T")

# A change of tables waits for a lock for two seconds (`migrations.environment`): appends come after
# it. Then they have their turn, and it tries again. So it does if it has locked tables in another
# order than a running replica.
ATTEMPTS = 60
PAUSE_SECONDS = 0.5
LOCK_NOT_AVAILABLE, DEADLOCK = "55P03", "40P01"
ALREADY_THERE = "42P07"
# For longer transactions of the log's clients it does not wait.
IN_THE_WAY_SECONDS = 1.0
WATCH_SECONDS = 0.5


RESTORE_AGAIN = (
    "A restore or its backup was not complete: restore a backup of the whole database (of pg_dump "
    "without --no-acl) into an empty one, with 'counterpoise restore' or 'pg_restore "
    "--single-transaction'"
)


class MigrationFailed(Exception):
    """A database is not as the migrations make it, or cannot be migrated; the message is one
    line.
    """


@dataclass(frozen=True, slots=True)
class Tree:
    """One Alembic tree, and the table with a database's revision in it."""

    name: str
    version_table: str
    location: Path


_PACKAGE = Path(migrations.__file__).parent
CONTROL = Tree("control", "counterpoise.alembic_version", _PACKAGE / "control")
LOG = Tree("log", "counterpoise_log.alembic_version", _PACKAGE / "log")


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """The change of one database: `before` is None if it had no tables."""

    tree: str
    before: str | None
    after: str

    def __str__(self) -> str:
        if self.before == self.after:
            return f"{self.tree}: at {self.after} already"
        return f"{self.tree}: {self.before or 'nothing'} -> {self.after}"


class Level(NamedTuple):
    """A database's revision (None: no tables), and the revisions whose code it serves."""

    revision: str | None
    serves: frozenset[str] = frozenset()


def upgrade(
    database_url: str, log_database_url: str | None = None, *, contract: bool = False
) -> list[MigrationStep]:
    """Migrate the control tables and the log; `contract`: also revisions that break older replicas.

    A newer database that this version can serve is not changed. Blocks; idempotent.
    Raises DatabaseUnreachable, MigrationFailed.
    """
    return [
        _upgrade(tree, url, contract=contract)
        for tree, url in databases(database_url, log_database_url)
    ]


class Unfit(NamedTuple):
    """A tree that this version cannot serve; `why` says what to do."""

    tree: str
    why: str


def unfit(database_url: str, log_database_url: str | None = None) -> list[Unfit]:
    """The reasons why this version cannot serve the databases; empty if it can. Blocks.

    Raises DatabaseUnreachable.
    """
    return unfit_at(
        {
            tree: asked(url, partial(level_of, tree))
            for tree, url in databases(database_url, log_database_url)
        }
    )


def unfit_at(levels: Mapping[Tree, Level]) -> list[Unfit]:
    """Those that this version cannot serve. Blocks when it reads the revisions first."""
    return [
        Unfit(tree.name, _why(tree, level))
        for tree, level in levels.items()
        if not _fits(tree, level)
    ]


@cache
def head(tree: Tree) -> str:
    """The newest revision of a tree, contracting ones included."""
    return _chain(tree)[-1][0]


@cache
def needed(tree: Tree) -> str:
    """The least revision for this version's code: the newest one that does not contract."""
    return next(revision for revision, contracts in reversed(_chain(tree)) if not contracts)


def databases(database_url: str, log_database_url: str | None) -> list[tuple[Tree, str]]:
    """Each tree with the URL of its database: the log's own, or that of the service."""
    return [(CONTROL, database_url), (LOG, log_database_url or database_url)]


# What a file says of its revision.
_FACT = re.compile(r"^(revision|down_revision|contracts) = (.+)$", re.M)


@cache
def _chain(tree: Tree) -> list[tuple[str, bool]]:
    """The tree's revisions, the oldest first, and whether each contracts; from their text."""
    after: dict[str | None, tuple[str, bool]] = {}
    for file in (tree.location / "versions").glob("*.py"):
        found = _FACT.findall(file.read_text("utf-8"))
        said: dict[str, Any] = {name: literal_eval(value) for name, value in found}
        if said:
            after[said["down_revision"]] = said["revision"], said.get("contracts", False)
    chain: list[tuple[str, bool]] = []
    while following := after.get(chain[-1][0] if chain else None):
        chain.append(following)
    assert chain, f"migrations/{tree.name} is empty"
    return chain


def _fits(tree: Tree, level: Level) -> bool:
    revisions = [revision for revision, _ in _chain(tree)]
    enough = revisions[revisions.index(needed(tree)) :]
    if level.revision in revisions:
        return level.revision in enough
    return not level.serves.isdisjoint(enough)


def _why(tree: Tree, level: Level) -> str:
    revisions = [revision for revision, _ in _chain(tree)]
    if level.revision is not None and level.revision not in revisions:
        return (
            f"The {tree.name} tables are at revision {level.revision}, made by a newer version, "
            "and this version cannot serve them; run the newer version."
        )
    if level.revision is not None and _target(tree, level.revision, contract=False) != head(tree):
        behind = revisions.index(_target(tree, level.revision, contract=False))
        if behind < revisions.index(needed(tree)):
            return (
                f"The {tree.name} tables are not current, and the next migration breaks "
                "replicas of the previous version; stop those and run 'counterpoise migrate "
                "--contract'."
            )
    return f"The {tree.name} tables are not current; run 'counterpoise migrate'."


def _target(tree: Tree, revision: str, *, contract: bool) -> str:
    """The last revision to run from a known one on: before the next that contracts, or the end."""
    chain = _chain(tree)
    target = revision
    for after, contracts in chain[[name for name, _ in chain].index(revision) + 1 :]:
        if contracts and not contract:
            break
        target = after
    return target


def _upgrade(tree: Tree, url: str, *, contract: bool) -> MigrationStep:
    with _connected(url) as connection:
        with connection.begin():
            before = level_of(tree, connection)
        known = before.revision is None or before.revision in dict(_chain(tree))
        if not known and _fits(tree, before):
            assert before.revision is not None
            return MigrationStep(tree.name, before.revision, before.revision)
        target = head(tree)
        if before.revision is not None and known:
            target = _target(tree, before.revision, contract=contract)
        if target == before.revision:
            return MigrationStep(tree.name, target, target)
        from alembic.util import CommandError

        config = _config(tree)
        config.attributes["connection"] = connection
        try:
            with _sessions_ended(tree, url, connection):
                _run(config, target)
        except CommandError as error:
            raise MigrationFailed(
                f"the {tree.name} tables are at revision {before.revision}, which this version "
                f"does not know; a newer one made them ({error})"
            ) from error
        except DBAPIError as error:
            said = f"migrating the {tree.name} tables: {_first_line(error)}"
            if before.revision is None and getattr(error.orig, "sqlstate", None) == ALREADY_THERE:
                said = f"there are {tree.name} tables, and not their revision. {RESTORE_AGAIN}."
            raise MigrationFailed(said) from error
        with connection.begin():
            after = level_of(tree, connection)
        if not _fits(tree, after):
            raise MigrationFailed(_why(tree, after))
        assert after.revision is not None
        return MigrationStep(tree.name, before.revision, after.revision)


def _run(config: Config, target: str) -> None:
    """Migrate, again while somebody else keeps a lock on a table."""
    from alembic import command

    for attempt in range(1, ATTEMPTS + 1):
        try:
            command.upgrade(config, target)
        except DBAPIError as error:
            sqlstate = getattr(error.orig, "sqlstate", None)
            if sqlstate not in (LOCK_NOT_AVAILABLE, DEADLOCK) or attempt == ATTEMPTS:
                raise
            time.sleep(PAUSE_SECONDS)
        else:
            return


@contextmanager
def _sessions_ended(tree: Tree, url: str, connection: Connection) -> Iterator[None]:
    """Meanwhile, no client of the log is in the way of this connection for long, with a transaction
    that it keeps open.

    Replicas look after that, too (`broker.logs.roles`), but perhaps none runs now.
    """
    if tree.name != LOG.name:
        yield
        return
    with connection.begin():
        pid = connection.scalar(text("SELECT pg_backend_pid()"))
    over = threading.Event()
    watch = threading.Thread(target=_end_sessions, args=(url, pid, over), daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


_END_SESSIONS = """
SELECT pg_terminate_backend(a.pid)
FROM pg_stat_activity AS a JOIN counterpoise_log.clients AS c ON c.role = a.usename
WHERE a.pid = ANY (pg_blocking_pids(:migrates))
    AND a.xact_start < clock_timestamp() - make_interval(secs => :seconds)
"""


def _end_sessions(url: str, migrates: int, over: threading.Event) -> None:
    while not over.wait(WATCH_SECONDS):
        try:
            with _connected(url) as connection, connection.begin():
                connection.execute(
                    text(_END_SESSIONS), {"migrates": migrates, "seconds": IN_THE_WAY_SECONDS}
                )
        except (DBAPIError, DatabaseUnreachable):
            # The table may not be there yet, or the database be away: the migration says so.
            continue


def _config(tree: Tree) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(tree.location).replace("%", "%%"))
    return config


def level_of(tree: Tree, connection: Connection) -> Level:
    """The level of a tree, within a transaction."""
    exists = text("SELECT to_regclass(:table) IS NOT NULL")
    if not connection.execute(exists, {"table": tree.version_table}).scalar():
        return Level(None)
    row = connection.execute(text(f"SELECT version_num, serves FROM {tree.version_table}")).first()
    return Level(None) if row is None else Level(row.version_num, frozenset(row.serves))


def asked(url: str, question: Callable[[Connection], T]) -> T:
    """The answer of a transaction on a new connection. Blocks. Raises DatabaseUnreachable."""
    with _connected(url) as connection, connection.begin():
        return question(connection)


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    with _engine(url).connect() as connection:
        yield connection


@cache
def _engine(url: str) -> Engine:
    """Keeps no connection, only what SQLAlchemy has found out about the server."""
    return create_engine("postgresql+psycopg://", creator=lambda: connect(url), poolclass=NullPool)


def _first_line(error: DBAPIError) -> str:
    """The driver's message, without SQLAlchemy's wrapping and the statement."""
    return str(error.orig).strip().splitlines()[0]
