"""The server's commands: `counterpoise serve`, `migrate`, `backup` and `restore`.

Every start of `counterpoise` imports this module to list the commands; so their dependencies are
imported when a command runs.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from broker.postgres.migrations import MigrationStep

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        help="postgresql://user:password@host/database. Without it the service starts its own "
        "Postgres. [env: COUNTERPOISE_DATABASE_URL]",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Where the service's own Postgres lives. [env: COUNTERPOISE_DATA_DIR]",
        show_default="the user's data directory",
    ),
]
EpochsAbove = Annotated[
    int,
    typer.Option(
        min=0,
        max=2**62,
        help="After a restore: the highest epoch that a sink knows, if the clock was perhaps set "
        "back.",
        show_default=False,
    ),
]
LogRestored = Annotated[
    bool | None,
    typer.Option(
        "--log-restored/--log-kept",
        help="After a restore: whether the built-in log was restored too.",
        show_default="restored if it is in the same database",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def serve(
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on. [env: COUNTERPOISE_HOST]", show_default="127.0.0.1"
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Port to listen on, 0 for any free port. [env: COUNTERPOISE_PORT]",
            show_default="8640",
        ),
    ] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    no_migrate: Annotated[
        bool, typer.Option("--no-migrate", help="Do not bring the database up to date.")
    ] = False,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="The certificate for HTTPS (PEM, with its chain); read again on SIGHUP. "
            "[env: COUNTERPOISE_TLS_CERT]",
            show_default=False,
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            help="The certificate's private key (PEM). [env: COUNTERPOISE_TLS_KEY]",
            show_default="in the certificate's file",
        ),
    ] = None,
    allowed_hosts: Annotated[
        str | None,
        typer.Option(
            help="Names by which the service may be called, separated by commas; addresses and "
            "localhost need no mention. [env: COUNTERPOISE_ALLOWED_HOSTS]",
            show_default=False,
        ),
    ] = None,
    keys_optional: Annotated[
        bool,
        typer.Option(
            "--keys-optional",
            help="Callers without a key may do everything although there are keys: while keys are "
            "handed out. [env: COUNTERPOISE_KEYS_OPTIONAL]",
        ),
    ] = False,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Listen beyond this machine without keys or TLS. Without keys, everybody who "
            "reaches the service may administer it.",
        ),
    ] = False,
    log_level: Annotated[
        str | None,
        typer.Option(help="debug, info, warning or error.", show_default="info"),
    ] = None,
) -> None:
    """Run the service."""
    from broker import launch

    launch.serve(
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


def migrate(
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    contract: Annotated[
        bool,
        typer.Option(
            "--contract",
            help="Also remove what only older versions use. Only when none of them runs any more.",
        ),
    ] = False,
    after_restore: Annotated[
        bool,
        typer.Option(
            "--after-restore",
            help="The database was restored from a backup: end all flows and fence all grants made "
            "after the backup. Only while no service runs.",
        ),
    ] = False,
    epochs_above: EpochsAbove = 0,
    log_restored: LogRestored = None,
    as_json: AsJson = False,
) -> None:
    """Bring the database up to date, and report the changes."""
    from broker import launch

    restored = launch.Restored(epochs_above, log_restored) if after_restore else None
    if restored is None and (epochs_above or log_restored is not None):
        raise typer.BadParameter("give --after-restore, or leave out its options")
    _report(
        launch.migrate(
            contract=contract, restored=restored, data_dir=data_dir, database_url=database_url
        ),
        as_json=as_json,
    )


def backup(
    file: Annotated[Path, typer.Argument(help="The file to make.", show_default=False)],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Back up the database into a file, whether a service uses it or not.

    The file is in pg_dump's custom format, and only you can read it.
    """
    from broker import recovery

    typer.echo(recovery.backup(file, data_dir=data_dir, database_url=database_url))


def restore(
    file: Annotated[
        Path, typer.Argument(help="The backup: of pg_dump, not its plain text.", show_default=False)
    ],
    data_dir: DataDir = None,
    epochs_above: EpochsAbove = 0,
    log_restored: LogRestored = None,
    as_json: AsJson = False,
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
            typer.echo(one)
    if as_json:
        typer.echo(json.dumps({"migrations": steps, "restored": fenced}, indent=2))
