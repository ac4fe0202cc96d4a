"""The server's commands: `counterpoise serve`, `migrate`, `backup` and `restore`.

Their help and a wrong option need only this module; so dependencies are imported when a command
runs.
"""

import gc
import json
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from counterpoise.cli.options import json_option

if TYPE_CHECKING:
    from broker.postgres.migrations import MigrationStep

# What libraries load, where it is installed, although the service uses none of it: structlog rich
# and colorama, for tracebacks that show values; FastAPI the models of another pydantic; uvicorn
# what sees that a file has changed.
NEEDLESS = ("colorama", "pydantic.v1", "rich", "watchfiles")

database_url_option = click.option(
    "--database-url",
    help="postgresql://user@host/database. Without it the service starts its own Postgres. ps "
    "shows it: a password is better in the variable, or in a file that "
    "COUNTERPOISE_DATABASE_URL_FILE names. [env: COUNTERPOISE_DATABASE_URL]",
)
data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    show_default="the user's data directory",
    help="Where the service's own Postgres lives. [env: COUNTERPOISE_DATA_DIR]",
)
epochs_above_option = click.option(
    "--epochs-above",
    type=click.IntRange(min=0, max=2**62),
    default=0,
    show_default=False,
    help="After a restore: the highest epoch that a sink knows, if the clock was perhaps set back.",
)
log_restored_option = click.option(
    "--log-restored/--log-kept",
    default=None,
    show_default="restored if it is in the same database",
    help="After a restore: whether the built-in log was restored too.",
)


@click.command("serve")
@click.option(
    "--host", show_default="127.0.0.1", help="Address to listen on. [env: COUNTERPOISE_HOST]"
)
@click.option(
    "--port",
    type=int,
    show_default="8640",
    help="Port to listen on, 0 for any free port. [env: COUNTERPOISE_PORT]",
)
@data_dir_option
@database_url_option
@click.option("--no-migrate", is_flag=True, help="Do not bring the database up to date.")
@click.option(
    "--tls-cert",
    type=click.Path(path_type=Path),
    help="The certificate for HTTPS (PEM, with its chain); read again on SIGHUP. "
    "[env: COUNTERPOISE_TLS_CERT]",
)
@click.option(
    "--tls-key",
    type=click.Path(path_type=Path),
    show_default="in the certificate's file",
    help="The certificate's private key (PEM). [env: COUNTERPOISE_TLS_KEY]",
)
@click.option(
    "--allowed-hosts",
    help="Names by which the service may be called, separated by commas; addresses and "
    "localhost need no mention. [env: COUNTERPOISE_ALLOWED_HOSTS]",
)
@click.option(
    "--keys-optional",
    is_flag=True,
    help="Callers without a key may do everything although there are keys: while keys are "
    "handed out. [env: COUNTERPOISE_KEYS_OPTIONAL]",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Listen beyond this machine without keys or TLS. Without keys, everybody who "
    "reaches the service may administer it.",
)
@click.option("--log-level", show_default="info", help="debug, info, warning or error.")
def serve(
    host: str | None,
    port: int | None,
    data_dir: Path | None,
    database_url: str | None,
    no_migrate: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    allowed_hosts: str | None,
    keys_optional: bool,
    insecure: bool,
    log_level: str | None,
) -> None:
    """Run the service."""
    from broker.exits import Exit, fail, loaded
    from broker.exposure import refusal_at_once
    from broker.listener import listen

    # Before the service is imported, which takes seconds, and its database started.
    settings = loaded(
        host=host,
        port=port,
        data_dir=data_dir,
        database_url=database_url,
        auto_migrate=False if no_migrate else None,
        tls_cert=tls_cert,
        tls_key=tls_key,
        allowed_hosts=allowed_hosts,
        keys_optional=True if keys_optional else None,
        insecure=True if insecure else None,
        log_level=log_level,
    )
    refusal = refusal_at_once(settings)
    if refusal is not None:
        # A mistyped address is no address of this machine, and that is what has to be said.
        with listen(settings.host, settings.port):
            fail(Exit.EXPOSED, refusal)
    _import_less()
    # `launch.serve` enables it again.
    gc.disable()
    from broker import launch

    launch.serve(settings)


def _import_less() -> None:
    """Leave out what libraries do at their import although the service does not use it."""
    for name in NEEDLESS:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    # pydantic would search all installed packages for plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from importlib import metadata

    from pydantic import BaseModel

    # FastAPI's models are for the OpenAPI document: they are built when it is asked for.
    BaseModel.model_config["defer_build"] = True
    import_module("fastapi.openapi.models")
    del BaseModel.model_config["defer_build"]
    # So would APScheduler, for triggers and stores. It gets those of the service (`alarms`).
    search = metadata.entry_points
    metadata.entry_points = lambda **_: metadata.EntryPoints()  # type: ignore[assignment]
    import_module("apscheduler.schedulers.base")
    metadata.entry_points = search


@click.command("migrate")
@data_dir_option
@database_url_option
@click.option(
    "--contract",
    is_flag=True,
    help="Also remove what only older versions use. Only when none of them runs any more.",
)
@click.option(
    "--after-restore",
    is_flag=True,
    help="The database was restored from a backup: end all flows and fence all grants made "
    "after the backup. Only while no service runs.",
)
@epochs_above_option
@log_restored_option
@json_option
def migrate(
    data_dir: Path | None,
    database_url: str | None,
    contract: bool,
    after_restore: bool,
    epochs_above: int,
    log_restored: bool | None,
    as_json: bool,
) -> None:
    """Bring the database up to date, and report the changes."""
    from broker import launch

    restored = launch.Restored(epochs_above, log_restored) if after_restore else None
    if restored is None and (epochs_above or log_restored is not None):
        raise click.BadParameter("give --after-restore, or leave out its options")
    _report(
        launch.migrate(
            contract=contract, restored=restored, data_dir=data_dir, database_url=database_url
        ),
        as_json=as_json,
    )


@click.command("backup")
@click.argument("file", type=click.Path(path_type=Path), help="The file to make.")
@data_dir_option
@database_url_option
def backup(file: Path, data_dir: Path | None, database_url: str | None) -> None:
    """Back up the database into a file, whether a service uses it or not.

    The file is in pg_dump's custom format, and only you can read it.
    """
    from broker import recovery

    click.echo(recovery.backup(file, data_dir=data_dir, database_url=database_url))


@click.command("restore")
@click.argument(
    "file", type=click.Path(path_type=Path), help="The backup: of pg_dump, not its plain text."
)
@data_dir_option
@epochs_above_option
@log_restored_option
@json_option
def restore(
    file: Path, data_dir: Path | None, epochs_above: int, log_restored: bool | None, as_json: bool
) -> None:
    """Restore a backup into a data directory without a database: all of it or nothing.

    It ends all flows and fences all grants made after the backup, as 'counterpoise migrate
    --after-restore' does.
    """
    from broker import launch, recovery

    restored = launch.Restored(epochs_above, log_restored)
    _report(recovery.restore(file, restored, data_dir=data_dir), as_json=as_json)


def _report(said: "Iterable[MigrationStep | str]", *, as_json: bool) -> None:
    """Print the steps of migrations and the lines, each as it comes, or all as JSON."""
    steps: list[dict[str, str | None]] = []
    fenced: list[str] = []
    for one in said:
        if isinstance(one, str):
            fenced.append(one)
        else:
            steps.append({"tree": one.tree, "before": one.before, "after": one.after})
        if not as_json:
            click.echo(one)
    if as_json:
        click.echo(json.dumps({"migrations": steps, "restored": fenced}, indent=2))
