"""`counterpoise keys`: who may call the service.

The commands work through the service that answers at `--url`, with the rights of our key
(`COUNTERPOISE_TOKEN`), or on the database, like `migrate`; the service's own Postgres may be in use
by a running service. The database is for who names one, and for who has no key: of the first key of
a service beyond loopback, and of a lost one. Each command names the service or the database, and
refuses another database than that of the service that answers. A command that fails says why in one
line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.cli import data_dir_option, database_url_option
from counterpoise.cli.options import InOrder, json_option, key_options
from counterpoise.durations import duration_seconds
from counterpoise.plain import plain_json, plain_line

if TYPE_CHECKING:
    from broker.key_access import KeysOf


@click.group("keys", cls=InOrder)
def app() -> None:
    """Keys: who may call the service, and what for."""


service_url_option = click.option(
    "--url",
    show_default="http://127.0.0.1:8640",
    help="The service; it makes the keys unless a database is given. [env: COUNTERPOISE_URL]",
)

LATEST = 253_402_300_799


def _end(text: str) -> datetime:
    """A duration from now (`12h`), or a time; one without an offset is of this machine's zone."""
    try:
        if (seconds := duration_seconds(text)) is not None:
            return datetime.now(UTC) + timedelta(seconds=seconds)
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter("give a duration like 12h or 90d, or a time") from None


@app.command("create")
@click.option(
    "--role",
    required=True,
    help="viewer (sees), publisher (and publishes), consumer (and consumes) or admin.",
)
@click.option(
    "--queue",
    multiple=True,
    metavar="PATTERN",
    show_default="*",
    help="A queue, or a pattern with * and ?; repeat it for more.",
)
@click.option("--name", default="", show_default=False, help="Who or what the key is for.")
@click.option(
    "--ends",
    show_default="never",
    help="When the key ends: a duration (30m, 12h, 90d) or a time like "
    "2026-11-20T10:00:00Z; without an offset it is of this machine's time zone.",
)
@json_option
@data_dir_option
@database_url_option
@service_url_option
@key_options
def create(
    role: str,
    queue: tuple[str, ...],
    name: str,
    ends: str | None,
    as_json: bool,
    data_dir: Path | None,
    database_url: str | None,
    url: str | None,
) -> None:
    """Make a key, and print it. It is not shown again.

    Through the service, with an administrator's key: no stronger than that one. On the database:
    any key; that brings the database up to date first, as the service does at its start. The first
    key closes the service for callers without one.
    """
    from broker.core.access import Role

    if role not in set(Role):
        raise click.BadParameter(f"should be one of {', '.join(Role)}", param_hint="--role")
    ends_at = None if ends is None else _end(ends)
    with _reached(url, data_dir, database_url, migrates=True) as keys:
        made = keys.create(Role(role), queue or ["*"], name, ends_at)
    click.echo(keys.said, err=True)
    if as_json:
        _print({**_document(made.key), "key": made.text})
    else:
        click.echo(made.text)
    if made.key.ends_at is not None:
        click.echo(f"It ends at {_time(made.key.ends_at)}.", err=True)
    if made.is_first:
        click.echo(
            "This is the first key: from now on every caller of a service on this database "
            "needs one.",
            err=True,
        )


@app.command("list")
@click.option(
    "--all", "everything", is_flag=True, help="Also those that were revoked or have ended."
)
@json_option
@data_dir_option
@database_url_option
@service_url_option
@key_options
def list_keys(
    everything: bool,
    as_json: bool,
    data_dir: Path | None,
    database_url: str | None,
    url: str | None,
) -> None:
    """List the keys, without their secrets."""
    with _reached(url, data_dir, database_url) as keys:
        found = [key for key in keys.every() if everything or key.state == "valid"]
    click.echo(keys.said, err=True)
    if as_json:
        _print([_document(key) for key in found])
        return
    rows = [("ID", "NAME", "ROLE", "QUEUES", "STATE", "ENDS", "LAST USED")]
    rows += [
        (
            key.id,
            plain_line(key.name),
            key.role,
            " ".join(key.queues),
            key.state,
            _time(key.ends_at) or "never",
            _time(key.last_used_at) or "never",
        )
        for key in found
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


@app.command("revoke")
@click.argument("key_id", metavar="ID", help="The key's id, as listed.")
@json_option
@data_dir_option
@database_url_option
@service_url_option
@key_options
def revoke(
    key_id: str, as_json: bool, data_dir: Path | None, database_url: str | None, url: str | None
) -> None:
    """Revoke a key, for good. Within 5 s it is refused everywhere, and its flows end."""
    with _reached(url, data_dir, database_url) as keys:
        key = keys.revoke(key_id)
    click.echo(keys.said, err=True)
    if as_json:
        _print(_document(key))
    else:
        click.echo(f"{key.id} is revoked")


@contextmanager
def _reached(
    url: str | None, data_dir: Path | None, database_url: str | None, *, migrates: bool = False
) -> Iterator[KeysOf]:
    """The keys of the service that answers and takes our key; else those of the database."""
    from broker import launch
    from broker.access_keys import KeyRefused
    from broker.exits import Exit, fail
    from broker.key_access import keys_in, keys_of_service

    if not launch.names_database(data_dir=data_dir, database_url=database_url):
        try:
            with keys_of_service(url) as keys:
                if keys is not None:
                    yield keys
                    return
        except KeyRefused as error:
            fail(Exit.KEY, str(error))
    with launch.reached(
        migrates=migrates, service_url=url, data_dir=data_dir, database_url=database_url
    ) as database:
        yield keys_in(database)


def _time(unix_seconds: float | None) -> str | None:
    if unix_seconds is None:
        return None
    # A database may have later ones, which no year has.
    return (
        datetime.fromtimestamp(min(int(unix_seconds), LATEST), UTC)
        .isoformat()
        .replace("+00:00", "Z")
    )


def _document(key: Any) -> dict[str, Any]:
    times = ("created_at", "ends_at", "revoked_at", "last_used_at")
    return {**key._asdict(), **{name: _time(getattr(key, name)) for name in times}}


def _print(document: Any) -> None:
    click.echo(plain_json(json.dumps(document, indent=2, ensure_ascii=False)))
