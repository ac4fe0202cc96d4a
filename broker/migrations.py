"""Brings databases up to date: two Alembic trees, one for the control tables, one for the log.

The trees are in the package `migrations`, each with an env.py that takes a connection, takes turns
with other processes under an advisory lock, and keeps its version in a table of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

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

    @property
    def location(self) -> str:
        return f"migrations:{self.name}"


CONTROL = Tree("control", "counterpoise.alembic_version")
LOG = Tree("log", "counterpoise_log.alembic_version")


@dataclass(frozen=True, slots=True)
class Step:
    """What was done to one database: `before` is None where there was nothing."""

    tree: str
    before: str | None
    after: str


def upgrade(database_url: str, log_database_url: str | None = None) -> list[Step]:
    """Migrate the control tables and the log to the newest revision. Blocks; idempotent.

    Raises DatabaseUnreachable, MigrationFailed.
    """
    return [_upgrade(tree, url) for tree, url in _databases(database_url, log_database_url)]


def outdated(database_url: str, log_database_url: str | None = None) -> list[str]:
    """The names of the trees that are not at their newest revision. Blocks.

    Raises DatabaseUnreachable.
    """
    names = []
    for tree, url in _databases(database_url, log_database_url):
        with _connected(url) as connection:
            if _revision(connection, tree) != head(tree):
                names.append(tree.name)
    return names


@cache
def head(tree: Tree) -> str:
    """The newest revision of a tree: what its version table says when it is current."""
    revision = ScriptDirectory.from_config(_config(tree)).get_current_head()
    assert revision is not None, f"migrations/{tree.name} is empty"
    return revision


def revision_query(tree: Tree) -> str:
    """SQL for the revision a database is at: one row or none; fails where there is no table."""
    return f"SELECT version_num FROM {tree.version_table}"


def _databases(database_url: str, log_database_url: str | None) -> list[tuple[Tree, str]]:
    return [(CONTROL, database_url), (LOG, log_database_url or database_url)]


def _upgrade(tree: Tree, url: str) -> Step:
    config = _config(tree)
    with _connected(url) as connection:
        before = _revision(connection, tree)
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise MigrationFailed(
                f"the {tree.name} tables are at revision {before}, which this version does not "
                f"know; a newer one made them ({error})"
            ) from error
        except DBAPIError as error:
            raise MigrationFailed(
                f"migrating the {tree.name} tables: {_first_line(error)}"
            ) from error
        return Step(tree.name, before, head(tree))


def _config(tree: Tree) -> Config:
    config = Config()
    config.set_main_option("script_location", tree.location)
    return config


def _revision(connection: Connection, tree: Tree) -> str | None:
    with connection.begin():
        exists = text("SELECT to_regclass(:table) IS NOT NULL")
        if not connection.execute(exists, {"table": tree.version_table}).scalar():
            return None
        revision: str | None = connection.execute(text(revision_query(tree))).scalar()
        return revision


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
