"""`counterpoise keys`: who may call the service.

The commands work on the database, like `migrate`; the service's own Postgres may be in use by a
running service. A command that fails says why in one line.
"""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from broker.cli import AsJson, DatabaseUrl, DataDir

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Keys: who may call the service, and what for.",
)

_DURATION = re.compile(r"([0-9]{1,6})(m|h|d)")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def _end(text: str) -> datetime:
    """A duration from now (`12h`), or a time; one without an offset is of this machine's zone."""
    if found := _DURATION.fullmatch(text):
        return datetime.now(UTC) + timedelta(**{_UNITS[found[2]]: int(found[1])})
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter("give a duration like 12h or 90d, or a time") from None


@app.command()
def create(
    role: Annotated[
        str,
        typer.Option(
            help="viewer (sees), publisher (and publishes), consumer (and consumes) or admin.",
            show_default=False,
        ),
    ],
    queue: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="A queue, or a pattern with * and ?; repeat it for more.",
            show_default="*",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Who or what the key is for.")] = "",
    ends: Annotated[
        str | None,
        typer.Option(
            help="When the key ends: a duration (30m, 12h, 90d) or a time like "
            "2026-11-20T10:00:00Z; without an offset it is of this machine's time zone.",
            show_default="never",
        ),
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a key, and print it. It is not shown again.

    Brings the database up to date first, as the service does at its start. The first key closes the
    service for callers without one.
    """
    from broker import keys, launch
    from broker.core.access import Role

    if role not in set(Role):
        raise typer.BadParameter(f"should be one of {', '.join(Role)}", param_hint="--role")
    ends_at = None if ends is None else _end(ends)
    with launch.reached(migrates=True, data_dir=data_dir, database_url=database_url) as url:
        made = keys.create(url, Role(role), queue or ["*"], name, ends_at)
    if as_json:
        _print({**_document(made.key), "key": made.text})
    else:
        typer.echo(made.text)
    if made.key.ends_at is not None:
        typer.echo(f"It ends at {_time(made.key.ends_at)}.", err=True)
    if made.is_first:
        typer.echo("This is the first key: from now on every caller needs one.", err=True)


@app.command("list")
def list_keys(
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that were revoked or have ended.")
    ] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """List the keys, without their secrets."""
    from broker import keys, launch

    with launch.reached(data_dir=data_dir, database_url=database_url) as url:
        found = [key for key in keys.every(url) if everything or key.state == "valid"]
    if as_json:
        _print([_document(key) for key in found])
        return
    rows = [("ID", "NAME", "ROLE", "QUEUES", "STATE", "ENDS", "LAST USED")]
    rows += [
        (
            key.id,
            key.name,
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
        typer.echo("  ".join(cells).rstrip())


@app.command()
def revoke(
    key_id: Annotated[
        str, typer.Argument(metavar="ID", help="The key's id, as listed.", show_default=False)
    ],
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Revoke a key, for good. Within 5 s it is refused everywhere, and its flows end."""
    from broker import keys, launch

    with launch.reached(data_dir=data_dir, database_url=database_url) as url:
        key = keys.revoke(url, key_id)
    if as_json:
        _print(_document(key))
    else:
        typer.echo(f"{key.id} is revoked")


def _time(unix_seconds: float | None) -> str | None:
    if unix_seconds is None:
        return None
    return datetime.fromtimestamp(int(unix_seconds), UTC).isoformat().replace("+00:00", "Z")


def _document(key: Any) -> dict[str, Any]:
    times = ("created_at", "ends_at", "revoked_at", "last_used_at")
    return {**key._asdict(), **{name: _time(getattr(key, name)) for name in times}}


def _print(document: Any) -> None:
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
