"""Commands of other packages: entry points of the group `counterpoise.commands`.

Each is a function (made a command by typer) or a Typer application, under the name of its entry
point. A command that cannot be loaded, or is known but not installed, reports this when it is
called. No other package is imported before one of its commands is called.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NoReturn

import typer

GROUP = "counterpoise.commands"

# Known commands, and the packages that have them.
ELSEWHERE: Mapping[str, str] = {
    "serve": "counterpoise-server",
    "migrate": "counterpoise-server",
    "keys": "counterpoise-server",
    "simulate": "counterpoise-server",
}


def installed() -> dict[str, EntryPoint]:
    """The commands of installed packages, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load(point: EntryPoint) -> Any:
    """The command behind an entry point."""
    try:
        found = point.load()
    except ImportError as error:
        return _saying(point.name, f"the command {point.name} cannot be loaded: {error}")
    if isinstance(found, typer.Typer):
        command = typer.main.get_command(found)
        command.name = point.name  # the help of `counterpoise` lists it by its own name
        return command
    return _command(point.name, found)


def missing(name: str) -> Any | None:
    """A command that names the package of `name`; None for an unknown name."""
    package = ELSEWHERE.get(name)
    if package is None:
        return None
    return _saying(
        name, f"the command {name} comes with the service: pip install {package}", hidden=True
    )


def _saying(name: str, message: str, hidden: bool = False) -> Any:
    def say(_: typer.Context) -> NoReturn:
        sys.stderr.write(f"counterpoise: {message}\n")
        raise typer.Exit(1)

    say.__doc__ = f"({message})"
    return _command(name, say, hidden, ignore_unknown_options=True, allow_extra_args=True)


def _command(name: str, function: Any, hidden: bool = False, **context_settings: Any) -> Any:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name, hidden=hidden, context_settings=context_settings)(function)
    return typer.main.get_command(app)
