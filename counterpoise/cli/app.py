"""Assembles the commands: our own, and those of other packages.

Every command fails with one line on stderr and exit code 1. Wrong usage has exit code 2. A
traceback appears only with COUNTERPOISE_TRACEBACK=1, or from the service's own commands, whose
defects belong into its log.

The commands of other packages are the entry points of the group `counterpoise.commands`. Each is a
function (made a command by typer) or a Typer application, under the name of its entry point. A
command that cannot be loaded, or is known but not installed, reports this when it is called. No
other package is imported before one of its commands is called.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from counterpoise.cli import (
    consumers,
    dead_letters,
    doctor,
    environment,
    history,
    lag,
    messages,
    partitions,
    positions,
    queues,
    reading,
    status,
)
from counterpoise.cli.output import how_to_reach
from counterpoise.client import package_version
from counterpoise.errors import (
    CounterpoiseError,
    QueueExists,
    QueueInUse,
    QueueNotFound,
    Unreachable,
)
from counterpoise.plain import plain_line

PLUGINS = "counterpoise.commands"

# Known commands, and the packages that have them.
ELSEWHERE: Mapping[str, str] = {
    "serve": "counterpoise-server",
    "migrate": "counterpoise-server",
    "keys": "counterpoise-server",
    "simulate": "counterpoise-server",
}


def installed_plugins() -> dict[str, EntryPoint]:
    """The commands of installed packages, by name."""
    return {point.name: point for point in entry_points(group=PLUGINS)}


def load_plugin(point: EntryPoint) -> Any:
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


def missing_plugin(name: str) -> Any | None:
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


class Commands(TyperGroup):
    """Our own commands and those of other packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(installed_plugins())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        point = installed_plugins().get(cmd_name)
        return missing_plugin(cmd_name) if point is None else load_plugin(point)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CounterpoiseError as error:
            fail(_with_notes(_worded(error), error))
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except BrokenPipeError:
            # The reader of our output has ended, so there is no one to report to.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(1) from None
        except Exception as error:
            if not isinstance(error, OSError) and not _ours(ctx, error):
                raise
            fail(_with_notes(f"{type(error).__name__}: {error}", error))


def _with_notes(said: str, error: Exception) -> str:
    """The message with the notes of the error, which name the place and the meaning."""
    return "; ".join([said, *getattr(error, "__notes__", ())])


# The commands for methods of `Client` that errors name (`counterpoise.errors.in_python`).
COMMANDS: Mapping[str, str] = {
    "Client.rebalance_status()": "'counterpoise status'",
    "Client.lineage()": "'counterpoise lineage'",
    "Client.set_positions()": "'counterpoise positions set'",
    "Client.delete_queue(force=True)": "'counterpoise queues delete --force'",
}


def _worded(error: CounterpoiseError) -> str:
    """The error and what to do; it names commands where others name calls."""
    said = str(error)
    if isinstance(error, Unreachable):
        return f"{said}; {how_to_reach(error)}"
    if isinstance(error, QueueNotFound):
        return f"{said.partition(';')[0]}; 'counterpoise queues list' shows the queues"
    if isinstance(error, QueueExists):
        return f"{said.partition(';')[0]}; 'counterpoise queues change' changes its settings"
    if isinstance(error, QueueInUse):
        return f"{said.partition(';')[0]}; stop them first, or delete with --force"
    for method, command in COMMANDS.items():
        said = said.replace(method, command)
    return said


def _ours(ctx: Any, error: Exception) -> bool:
    """Whether to report `error` in one line: not for errors of typer or of a plugin."""
    if os.environ.get("COUNTERPOISE_TRACEBACK"):
        return False
    of_typer = type(error).__module__.split(".")[0] in ("typer", "click")
    return not of_typer and ctx.invoked_subcommand not in installed_plugins()


def fail(message: str) -> NoReturn:
    """Print one line on stderr and end with exit code 1."""
    sys.stderr.write(f"counterpoise: {plain_line(' '.join(message.split()))}\n")
    raise SystemExit(1)


app = typer.Typer(
    cls=Commands,
    name="counterpoise",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"counterpoise {package_version()}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Share one partitioned queue among many consumers.

    The service's address is --url, or COUNTERPOISE_URL, or http://127.0.0.1:8640.
    """


@app.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "help_option_names": [],
    }
)
def demo(context: typer.Context) -> None:
    """Watch PySpark applications join, leave and share a real queue."""
    try:
        run = importlib.import_module("counterpoise.demo").main
        code = run(context.args)
    except ModuleNotFoundError as error:
        fail(
            f"the demo needs {error.name}, which is not installed: "
            "pip install 'counterpoise[demo]' counterpoise-server"
        )
    raise typer.Exit(int(code or 0))


app.add_typer(queues.app, name="queues")
app.add_typer(consumers.app, name="consumers")
app.add_typer(consumers.app, name="flows", hidden=True)
app.add_typer(positions.app, name="positions")
app.add_typer(partitions.app, name="partitions")
app.add_typer(dead_letters.app, name="dead-letters")
app.command(name="doctor")(doctor.doctor)
app.command(name="status")(status.show_status)
app.command(name="lineage")(partitions.show_lineage)
app.command(name="history")(history.show_history)
app.command(name="rebalance")(status.rebalance)
app.command(name="lag")(lag.show_lag)
app.command(name="audit")(history.show_audit)
app.command(name="java-home")(environment.java_home)
app.command(name="publish")(messages.publish)
app.command(name="consume")(messages.consume)
app.command(name="peek")(reading.peek)


def main() -> None:
    """The console script."""
    try:
        app()
    except OSError as error:  # of options that are answered before there is a command
        fail(f"{type(error).__name__}: {error}")
