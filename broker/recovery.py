"""`counterpoise backup` and `counterpoise restore`.

A backup is of the whole database, whether a service runs on it or not. A restore makes the database
of a data directory, or leaves none there: whatever goes wrong in any of its steps, and also if it
is killed (`broker.postgres.backups`). Its steps are those of `migrate --after-restore`, after the
backup has been loaded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from msgspec import structs

from broker.exits import Exit, fail
from broker.launch import (
    Restored,
    data_dir_of,
    database,
    fail_to_start,
    fenced,
    ignore_signals,
    migrated,
    name_of_database,
    refuse_none,
    settings_of,
    told,
    urls,
)
from broker.postgres import backups, migrations, restoring
from broker.postgres.embedded import EmbeddedPostgresError
from broker.postgres.migrations import MigrationStep
from broker.settings import Secret, Settings
from broker.telemetry import configure_logging


def backup(file: Path, **given: object) -> str:
    """Back up the database into a new file. Returns a line that reports it."""
    settings = settings_of(**given)
    configure_logging("warning", settings.log_format)
    refuse_none(settings)
    name = name_of_database(settings)
    with database(settings, running_may=True) as settings, _told():
        url, log_url = urls(settings)
        if migrations.asked(url, restoring.identity) is None:
            raise backups.BackupFailed(f"{name} has no tables of a service")
        backups.make(url, file)
    elsewhere = (
        "" if log_url is None else "; the log has a database, and needs a backup, of its own"
    )
    return f"{file}: a backup of {name}{elsewhere}"


def restore(file: Path, restored: Restored, **given: object) -> Iterator[MigrationStep | str]:
    """Restore a backup into a data directory. Reports the steps of migrations, then lines."""
    settings = settings_of(**given)
    configure_logging("warning", settings.log_format)
    if settings.database_url is not None:
        fail(
            Exit.SETTINGS,
            "a restore makes the database of a data directory; give --data-dir (into the one that "
            "COUNTERPOISE_DATABASE_URL names, restore with pg_restore --single-transaction)",
        )
    directory = data_dir_of(settings)
    with _told():
        backup = backups.read(file)
        _refuse_partial(backup, settings)
        with _new_database(directory) as url:
            settings = structs.replace(settings, database_url=Secret(url))
            backups.load(backup, url)
            yield from migrated(settings)
            yield from fenced(settings, restored)
    yield f"restored {file} into {directory}; now the service can be started"


def _refuse_partial(backup: backups.Backup, settings: Settings) -> None:
    if not backup.has_control:
        other = "only the log" if backup.has_log else "something else"
        raise backups.BackupFailed(
            f"{backup.path} is a backup of {other}: it has no tables in the schema counterpoise"
        )
    if not backup.has_log and settings.log_database_url is None:
        raise backups.BackupFailed(
            f"{backup.path} has no log: it has no tables in the schema counterpoise_log; back up "
            "the whole database, or give COUNTERPOISE_LOG_DATABASE_URL if the log has its own"
        )


@contextlib.contextmanager
def _new_database(directory: Path) -> Iterator[str]:
    """The URL of an empty database that nobody else uses. The directory's own once the block has
    ended well."""
    postgres = backups.RestoredPostgres(directory)
    try:
        url = postgres.start()
    except EmbeddedPostgresError as error:
        fail_to_start(error)
    try:
        yield url
        postgres.keep()
    except backups.BackupFailed as error:
        fail(Exit.BACKUP, f"{error} (see {directory / 'postgres.log'})")
    except OSError as error:
        fail(Exit.DATA_DIRECTORY, f"{directory} cannot be used: {error.strerror}")
    finally:
        ignore_signals()
        postgres.stop()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Errors end the command, with one line."""
    try:
        with told():
            yield
    except EmbeddedPostgresError as error:
        fail_to_start(error)
    except backups.BackupFailed as error:
        fail(Exit.BACKUP, str(error))
