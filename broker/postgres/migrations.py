"""Brings databases up to date: two Alembic trees, one for the control tables, one for the log.

The trees are in the package `migrations`, each with an env.py that takes a connection, takes turns
with other processes under an advisory lock, and keeps its version in a table of its own.

Replicas of two releases serve one database while they are replaced one by one. So a migration is
split (expand, then contract): an *expanding* revision only adds, and says with `serves_from` the
oldest revision whose code still works with the tables; a *contracting* one (`contracts = True`)
takes away what no code uses any more. The rules that follow:

- Expanding revisions run when a replica starts; contracting ones only when an administrator says
  that no older replica is left (`migrate --contract`), or where there are no tables at all.
- A database says which revisions it serves, so code that does not know its revision can tell.
- Code *needs* its newest expanding revision. It serves a database at that revision or a later one
  of its own, and one at a revision it does not know if that serves what it needs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

import migrations

CONNECT_SECONDS = 10


class DatabaseUnreachable(Exception):
    """The database cannot be connected to; the message is one line, without credentials."""


class MigrationFailed(Exception):
    """A database could not be brought up to date; the message is one line."""


@dataclass(frozen=True, slots=True)
class Tree:
    """One Alembic tree, and where a database says how far it has come in it."""

    name: str
    version_table: str
    # Directories with revisions besides the package's own: those of a release to come, in tests.
    more_versions: tuple[str, ...] = ()

    @property
    def location(self) -> str:
        return f"migrations:{self.name}"

    @property
    def versions(self) -> list[str]:
        """Where its revisions are."""
        package = Path(migrations.__file__).parent
        return [str(package / self.name / "versions"), *self.more_versions]


CONTROL = Tree("control", "counterpoise.alembic_version")
LOG = Tree("log", "counterpoise_log.alembic_version")


@dataclass(frozen=True, slots=True)
class Step:
    """What was done to one database: `before` is None where there was nothing."""

    tree: str
    before: str | None
    after: str


class _Level(NamedTuple):
    """Where a database is: its revision (None: no tables), and the revisions whose code it serves.

    `serves` is empty for one that was last migrated by a version that did not say.
    """

    revision: str | None
    serves: frozenset[str] = frozenset()


def upgrade(
    database_url: str, log_database_url: str | None = None, *, contract: bool = False
) -> list[Step]:
    """Migrate the control tables and the log, with `contract` also what older replicas cannot bear.

    A newer database that this version can serve is left alone. Blocks; idempotent.
    Raises DatabaseUnreachable, MigrationFailed.
    """
    return [
        _upgrade(tree, url, contract=contract)
        for tree, url in _databases(database_url, log_database_url)
    ]


class Unfit(NamedTuple):
    """A tree that this version cannot serve; `why` is a sentence that says what to do."""

    tree: str
    why: str


def unfit(database_url: str, log_database_url: str | None = None) -> list[Unfit]:
    """What keeps this version from serving the databases; empty if nothing does. Blocks.

    Raises DatabaseUnreachable.
    """
    found = []
    for tree, url in _databases(database_url, log_database_url):
        with _connected(url) as connection:
            level = _level(connection, tree)
        if not _fits(tree, level):
            found.append(Unfit(tree.name, _why(tree, level)))
    return found


@cache
def head(tree: Tree) -> str:
    """The newest revision of a tree, contracting ones included."""
    return _chain(tree)[-1][0]


@cache
def needed(tree: Tree) -> str:
    """The revision that this version's code needs at least: the newest that does not contract."""
    return next(revision for revision, contracts in reversed(_chain(tree)) if not contracts)


def _databases(database_url: str, log_database_url: str | None) -> list[tuple[Tree, str]]:
    return [(CONTROL, database_url), (LOG, log_database_url or database_url)]


@cache
def _chain(tree: Tree) -> list[tuple[str, bool]]:
    """The tree's revisions, the oldest first, and whether each contracts."""
    scripts = ScriptDirectory.from_config(_config(tree)).walk_revisions()
    chain = [(one.revision, bool(getattr(one.module, "contracts", False))) for one in scripts]
    assert chain, f"migrations/{tree.name} is empty"
    return chain[::-1]


def _fits(tree: Tree, level: _Level) -> bool:
    revisions = [revision for revision, _ in _chain(tree)]
    enough = revisions[revisions.index(needed(tree)) :]
    if level.revision in revisions:
        return level.revision in enough
    return not level.serves.isdisjoint(enough)


def _why(tree: Tree, level: _Level) -> str:
    revisions = [revision for revision, _ in _chain(tree)]
    if level.revision is not None and level.revision not in revisions:
        return (
            f"The {tree.name} tables are at revision {level.revision}, which a newer version made "
            "and this one cannot serve; run that newer version."
        )
    if level.revision is not None and _target(tree, level.revision, contract=False) != head(tree):
        behind = revisions.index(_target(tree, level.revision, contract=False))
        if behind < revisions.index(needed(tree)):
            return (
                f"The {tree.name} tables are not current, and what has to be done first breaks "
                "replicas of the version before; stop those and run 'counterpoise migrate "
                "--contract'."
            )
    return f"The {tree.name} tables are not current; run 'counterpoise migrate'."


def _target(tree: Tree, revision: str, *, contract: bool) -> str:
    """How far to go from a known revision: up to the next one that contracts, or to the end."""
    chain = _chain(tree)
    target = revision
    for after, contracts in chain[[name for name, _ in chain].index(revision) + 1 :]:
        if contracts and not contract:
            break
        target = after
    return target


def _upgrade(tree: Tree, url: str, *, contract: bool) -> Step:
    config = _config(tree)
    with _connected(url) as connection:
        before = _level(connection, tree)
        known = before.revision is None or before.revision in dict(_chain(tree))
        if not known and _fits(tree, before):
            assert before.revision is not None
            return Step(tree.name, before.revision, before.revision)
        config.attributes["connection"] = connection
        target = head(tree)
        if before.revision is not None and known:
            target = _target(tree, before.revision, contract=contract)
        try:
            command.upgrade(config, target)
        except CommandError as error:
            raise MigrationFailed(
                f"the {tree.name} tables are at revision {before.revision}, which this version "
                f"does not know; a newer one made them ({error})"
            ) from error
        except DBAPIError as error:
            raise MigrationFailed(
                f"migrating the {tree.name} tables: {_first_line(error)}"
            ) from error
        after = _level(connection, tree)
        if not _fits(tree, after):
            raise MigrationFailed(_why(tree, after))
        assert after.revision is not None
        return Step(tree.name, before.revision, after.revision)


def _config(tree: Tree) -> Config:
    config = Config()
    config.set_main_option("script_location", tree.location)
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", "\n".join(tree.versions).replace("%", "%%"))
    return config


def _level(connection: Connection, tree: Tree) -> _Level:
    with connection.begin():
        exists = text("SELECT to_regclass(:table) IS NOT NULL")
        if not connection.execute(exists, {"table": tree.version_table}).scalar():
            return _Level(None)
        # As JSON, since the column `serves` may not be there.
        row = connection.execute(text(f"SELECT to_jsonb(v) FROM {tree.version_table} AS v")).first()
        if row is None:
            return _Level(None)
        return _Level(row[0]["version_num"], frozenset(row[0].get("serves") or ()))


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    engine = create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        poolclass=NullPool,
        connect_args={"connect_timeout": CONNECT_SECONDS},
    )
    try:
        connection = engine.connect()
    except OperationalError as error:
        raise DatabaseUnreachable(_first_line(error)) from None
    with connection:
        yield connection


def _first_line(error: DBAPIError) -> str:
    """What the driver says, without SQLAlchemy's wrapping and the statement."""
    return str(error.orig).strip().splitlines()[0]
