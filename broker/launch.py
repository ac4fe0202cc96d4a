"""Starts the service from its settings, and stops it in order.

Each error that prevents a start is one line on stderr with its own exit code (`broker.exits`),
never a traceback, because operators read it.
"""

import contextlib
import gc
import os
import pkgutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import psycopg
import structlog
from msgspec import structs
from sqlalchemy.exc import DBAPIError

from broker import access_keys, exposure
from broker.certificate import certificate_of
from broker.core.errors import Invalid
from broker.exits import Exit, fail, loaded
from broker.listener import listen
from broker.postgres import checks, migrations, restoring, schema
from broker.postgres.connections import DatabaseUnreachable, line_of
from broker.postgres.embedded import (
    CLUSTER,
    DataDirectoryInUse,
    DataDirectoryUnusable,
    EmbeddedPostgres,
    EmbeddedPostgresError,
    default_data_dir,
    url_of_running,
)
from broker.postgres.keeper import PostgresKeeper
from broker.settings import Secret, Settings, SettingsError
from broker.telemetry import configure_logging
from counterpoise.logs import postgres

if TYPE_CHECKING:
    from broker.key_database import Served, Silent

log = structlog.get_logger("launch")

# By name, because the HTTP service imports the broker and never the other way round.
SERVER = "api.server:run"


def serve(settings: Settings) -> None:
    """Run the service until a signal ends it. Only in the main thread."""
    _obey_signals()
    postgres.forget_environment()
    configure_logging(settings.log_level, settings.log_format)
    _check_certificate(settings)
    run: Callable[[Settings, socket.socket], None] = pkgutil.resolve_name(SERVER)
    # What was imported stays, 140,000 objects: no collection looks through them.
    gc.freeze()
    gc.enable()
    listener = listen(settings.host, settings.port)
    with listener, database(settings) as settings:
        with told():
            _prepare(settings)
            _refuse_exposure(settings)
        run(settings, listener)


@contextlib.contextmanager
def told() -> Iterator[None]:
    """What keeps a command from the database ends it, with one line."""
    try:
        yield
    except DatabaseUnreachable as error:
        fail(Exit.DATABASE, f"cannot reach the database: {error}")
    except migrations.MigrationFailed as error:
        fail(Exit.MIGRATION, str(error))
    except (psycopg.Error, DBAPIError) as error:
        said = line_of(getattr(error, "orig", None) or error)
        fail(Exit.DATABASE, f"the database refuses what the service needs: {said}")


class Restored(NamedTuple):
    """That a database was restored from a backup; see `broker.postgres.restoring.fence`."""

    epochs_above: int = 0
    log_restored: bool | None = None


def migrate(
    *, contract: bool = False, restored: Restored | None = None, **given: object
) -> Iterator[migrations.MigrationStep | str]:
    """Bring the database up to date; reports the step of each tree of migrations.

    `contract`: also run revisions that break replicas of older versions. `restored`: then fence the
    grants made after the backup; lines report them.
    """
    settings = settings_of(**given)
    configure_logging("warning", settings.log_format)
    name = name_of_database(settings)
    if restored is not None:
        refuse_none(settings)
    with database(settings) as settings, told():
        _refuse_unusable(settings)
        if restored is not None and not migrations.asked(urls(settings)[0], restoring.identity):
            fail(Exit.MIGRATION, f"{name} has no tables of a service; restore a backup first")
        yield from migrated(settings, contract=contract)
        if restored is not None:
            yield from fenced(settings, restored)


class Reached(NamedTuple):
    """The database of a command on keys: its URL, and a sentence for people that names it."""

    url: str
    said: str


def names_database(**given: object) -> bool:
    """Whether the settings name a database, or a directory for one: by an option or a variable."""
    settings = loaded(**given)
    return settings.database_url is not None or settings.data_dir is not None


@contextlib.contextmanager
def reached(
    *, migrates: bool = False, service_url: str | None = None, **given: object
) -> Iterator[Reached]:
    """The control tables for a command on keys, within the block.

    The service's own Postgres may be running for a service. What goes wrong is one line on stderr,
    in the block too: also if the service at `service_url` answers and uses another database.
    `migrates`: as at the start of the service.
    """
    from broker.key_database import service_at

    settings = settings_of(**given)
    configure_logging("warning", settings.log_format)
    try:
        service = service_at(service_url)
    except SettingsError as error:
        fail(Exit.SETTINGS, str(error))
    name = name_of_database(settings)
    if settings.database_url is None and not _is_running(settings):
        _refuse_another_postgres(settings, service, name, service_url)
        if not migrates:
            refuse_none(settings)
    with database(settings, running_may=True) as settings, told():
        url, log_url = urls(settings)
        _refuse_unusable(settings)
        try:
            used = _use_by(service, url, name)
            if migrates and settings.auto_migrate:
                migrated(settings)
            if unfit := migrations.unfit(url, log_url):
                fail(Exit.MIGRATION, " ".join(each.why for each in unfit))
            yield Reached(url, f"Database: {name}; {used}.")
        except (access_keys.KeyRefused, Invalid) as error:
            fail(Exit.KEY, str(error))


def _refuse_another_postgres(
    settings: Settings, service: "Served | Silent | str", name: str, service_url: str | None
) -> None:
    """No Postgres runs in the data directory. None is made there if a service seems to have
    another one."""
    from broker.key_database import Served, Silent

    if isinstance(service, Served):
        _refuse_other_database(service, name)
    if isinstance(service, Silent):
        fail(
            Exit.ANOTHER_DATABASE,
            f"{service.reason}, so it may use another database than {name}; try again, or "
            "give the --data-dir or --database-url that it was started with",
        )
    named = service_url or os.environ.get("COUNTERPOISE_URL")
    if named and settings.data_dir is None and not data_dir_of(settings).exists():
        fail(
            Exit.ANOTHER_DATABASE,
            f"no service answers at {service}, and no database is named: correct the address, "
            "or give the --data-dir or --database-url of the service",
        )


def _use_by(service: "Served | Silent | str", url: str, name: str) -> str:
    """For people, whether the service uses the database at `url`; another one is refused."""
    from broker.key_database import Served, Silent

    if isinstance(service, Silent):
        return f"{service.reason}: whether it uses it is unknown"
    if not isinstance(service, Served):
        return f"no service answers at {service}"
    if service.database is None:
        return f"whether the service at {service.url} uses it is unknown"
    if service.database != migrations.asked(url, restoring.identity):
        _refuse_other_database(service, name)
    return f"the service at {service.url} uses it"


def _refuse_other_database(service: "Served", name: str) -> NoReturn:
    fail(
        Exit.ANOTHER_DATABASE,
        f"the service at {service.url} uses another database than {name}; set COUNTERPOISE_TOKEN "
        "to an administrator's key, so that the service does it, or give the --data-dir or "
        "--database-url that the service was started with, or the --url of the service that uses "
        "this database",
    )


def name_of_database(settings: Settings) -> str:
    """The database for people, without a password."""
    if settings.database_url is None:
        return f"the service's own Postgres in {data_dir_of(settings)}"
    parameters = postgres.read(settings.database_url.get_secret_value())
    place = {n: value for n, value in parameters.items() if n in ("host", "port", "dbname")}
    return postgres.written(place).removeprefix("postgresql://")


def data_dir_of(settings: Settings) -> Path:
    """Where the service's own Postgres is."""
    try:
        return settings.data_dir or default_data_dir()
    except EmbeddedPostgresError as error:
        fail(Exit.DATABASE, str(error))


def refuse_none(settings: Settings) -> None:
    """End if there is no database: a start would make an empty one."""
    if settings.database_url is not None:
        return
    directory = data_dir_of(settings)
    if not (directory / CLUSTER).exists():
        fail(Exit.DATA_DIRECTORY, f"there is no database in {directory}; give another --data-dir")


def _is_running(settings: Settings) -> bool:
    """Whether the Postgres of the data directory accepts connections."""
    url = url_of_running(data_dir_of(settings))
    if url is None:
        return False
    try:
        migrations.asked(url, restoring.identity)
    except DatabaseUnreachable:
        return False
    return True


def fenced(settings: Settings, restored: Restored) -> Iterator[str]:
    try:
        done = restoring.fence(
            *urls(settings), above=restored.epochs_above, log_restored=restored.log_restored
        )
    except restoring.StillServed as error:
        fail(Exit.SERVED, str(error))
    yield (
        f"fenced: {done.queues} queues; the epochs of {done.partitions} partitions are above "
        f"{done.epochs_above}; {done.flows} flows ended"
    )
    yield f"logs with a new incarnation: {', '.join(done.logs) or 'none'}"
    for queue, count in done.ahead:
        yield (
            f"{queue}: {count} positions are beyond the end of its log, whose backup is older; set "
            f"them with 'counterpoise positions set {queue}' before consumers connect"
        )


def settings_of(**given: object) -> Settings:
    """What the environment says of the databases is in their URLs then, and nowhere else: the
    service's own Postgres is none that libpq's variables speak of.
    """
    settings = loaded(**given)
    postgres.forget_environment()
    return settings


def _check_certificate(settings: Settings) -> None:
    try:
        certificate_of(settings)
    except SettingsError as error:
        fail(Exit.SETTINGS, str(error))


@contextlib.contextmanager
def database(settings: Settings, *, running_may: bool = False) -> Iterator[Settings]:
    """The settings with a database: the given one, or the embedded one within the block.

    `running_may`: the one of a running service will do.
    """
    if settings.database_url is not None:
        yield settings
        return
    directory = data_dir_of(settings)
    embedded = EmbeddedPostgres(directory, pool_size=settings.database_pool_size)
    try:
        url = embedded.start()
    except EmbeddedPostgresError as error:
        in_use = isinstance(error, DataDirectoryInUse)
        running = url_of_running(directory) if in_use and running_may else None
        if running is None:
            fail_to_start(error)
        yield _embedded(settings, running)
        return
    try:
        with PostgresKeeper(embedded, url):
            yield _embedded(settings, url)
    finally:
        ignore_signals()
        embedded.stop()


def fail_to_start(error: EmbeddedPostgresError) -> NoReturn:
    fail(
        Exit.DATA_DIRECTORY if isinstance(error, DataDirectoryUnusable) else Exit.DATABASE,
        str(error),
    )


def _embedded(settings: Settings, url: str) -> Settings:
    """The settings with an embedded database, which speaks no TLS: nobody has to ask it."""
    own = postgres.written({**postgres.read(url), "sslmode": "disable"})
    return structs.replace(settings, database_url=Secret(own))


def _prepare(settings: Settings) -> None:
    """Connect to the database and check that its tables are current, or migrate them."""
    _refuse_unusable(settings)
    if settings.auto_migrate:
        migrated(settings)
    unfit = [] if settings.auto_migrate else migrations.unfit(*urls(settings))
    if unfit:
        fail(Exit.MIGRATION, " ".join(each.why for each in unfit))
    schema.check(*urls(settings))
    if migrations.asked(urls(settings)[0], restoring.moved):
        fail(Exit.NOT_FENCED, restoring.NOT_FENCED)


def _refuse_unusable(settings: Settings) -> None:
    for url in urls(settings):
        if url is not None and (why := checks.why_not_usable(url)):
            fail(Exit.DATABASE, why)


def _refuse_exposure(settings: Settings) -> None:
    """End if the service would be open to other machines and is not prepared for that."""
    has_keys = access_keys.any_made(urls(settings)[0])
    refusal = exposure.refusal(settings, has_keys=has_keys)
    if refusal is not None:
        fail(Exit.EXPOSED, refusal)
    warning = exposure.warning(settings, has_keys=has_keys)
    if warning is not None:
        log.warning(warning, host=settings.host)


def migrated(settings: Settings, *, contract: bool = False) -> list[migrations.MigrationStep]:
    return migrations.upgrade(*urls(settings), contract=contract)


def urls(settings: Settings) -> tuple[str, str | None]:
    assert settings.database_url is not None
    log_url = settings.log_database_url
    return (
        settings.database_url.get_secret_value(),
        None if log_url is None else log_url.get_secret_value(),
    )


def _obey_signals() -> None:
    """What a signal does to the service; while the server runs, it handles SIGTERM, SIGINT and
    SIGHUP itself.
    """

    def leave(number: int, _: FrameType | None) -> NoReturn:
        # Runs every `finally`.
        raise SystemExit(0 if number == signal.SIGTERM else 130)

    def terminate(_number: int, _: FrameType | None) -> None:
        signal.raise_signal(signal.SIGTERM)

    def go_on(_number: int, _: FrameType | None) -> None:
        """Tools that rotate logs or renew certificates send these to every service."""

    handlers = {
        **dict.fromkeys((signal.SIGTERM, signal.SIGINT), leave),
        **dict.fromkeys((signal.SIGQUIT, signal.SIGALRM), terminate),
        **dict.fromkeys((signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2), go_on),
    }
    for number, handler in handlers.items():
        signal.signal(number, handler)


def ignore_signals() -> None:
    """The service is stopping already; a second signal must not interrupt that."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
