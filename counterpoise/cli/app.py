"""Assembles the commands: our own, and those of the service.

Every command fails with one line on stderr and exit code 1. Wrong usage has exit code 2. A
traceback appears only with COUNTERPOISE_TRACEBACK=1, or from the service's own commands, whose
defects belong into its log.

`COMMANDS` says where each command is. Most of what a short command costs are imports. So a module
is imported when its command is called, and `--help` imports none: the summaries stand here, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from copy import copy
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, NoReturn

import click

from counterpoise import __version__
from counterpoise.cli.options import options_before_commands
from counterpoise.errors import (
    CounterpoiseError,
    QueueExists,
    QueueNotFound,
    Unreachable,
)

SERVER = "counterpoise-server"


class CommandPlace(NamedTuple):
    """Where a command is, or a group of commands."""

    module: str
    name: str
    summary: str
    """The first sentence of its help."""
    package: str = "counterpoise"
    hidden: bool = False
    """Another name of a command."""


COMMANDS: Mapping[str, CommandPlace] = {
    "queues": CommandPlace(
        "counterpoise.cli.queues",
        "app",
        "Queues: list, create, show, change, resize, pause, resume, pin, unpin, delete.",
    ),
    "status": CommandPlace(
        "counterpoise.cli.status",
        "show_status",
        "Show the owners of the partitions, the handoffs, and the trigger.",
    ),
    "consumers": CommandPlace(
        "counterpoise.cli.consumers", "app", "Consumers: list, drain, unbind."
    ),
    "flows": CommandPlace(
        "counterpoise.cli.consumers", "app", "Consumers: list, drain, unbind.", hidden=True
    ),
    "partitions": CommandPlace(
        "counterpoise.cli.partitions", "app", "Partitions of a dynamic queue: split, merge."
    ),
    "positions": CommandPlace("counterpoise.cli.positions", "app", "Positions: show, set, export."),
    "lag": CommandPlace(
        "counterpoise.cli.lag",
        "show_lag",
        "Show how many messages of each partition are not processed, and how old the next is.",
    ),
    "history": CommandPlace(
        "counterpoise.cli.history",
        "show_history",
        "Show why a queue was rebalanced, newest first: what led to it, and what moved.",
    ),
    "lineage": CommandPlace(
        "counterpoise.cli.partitions",
        "show_lineage",
        "Show which partition of a dynamic queue comes after which, and which waits for which.",
    ),
    "rebalance": CommandPlace(
        "counterpoise.cli.status", "rebalance", "Rebalance now, without waiting for the holddown."
    ),
    "publish": CommandPlace(
        "counterpoise.cli.messages",
        "publish",
        "Publish each line as a message; messages without a key are spread over the partitions.",
    ),
    "consume": CommandPlace(
        "counterpoise.cli.messages",
        "consume",
        "Print the messages of the partitions that this consumer owns, and commit them.",
    ),
    "peek": CommandPlace(
        "counterpoise.cli.reading",
        "peek",
        "Show messages of a queue, partition by partition, and leave all as it is.",
    ),
    "dead-letters": CommandPlace(
        "counterpoise.cli.dead_letters", "app", "Dead letters: list, show, redrive."
    ),
    "doctor": CommandPlace(
        "counterpoise.cli.doctor",
        "doctor",
        "Check this machine, the service, its database, the logs and Java; say what is wrong.",
    ),
    "audit": CommandPlace(
        "counterpoise.cli.history",
        "show_audit",
        "List administrative calls, newest first: who, what, and what changed by it.",
    ),
    "java-home": CommandPlace(
        "counterpoise.cli.environment",
        "java_home",
        "Print a JAVA_HOME that Spark runs on, for spark-submit and Spark's daemons.",
    ),
    "serve": CommandPlace("broker.cli", "serve", "Run the service.", SERVER),
    "migrate": CommandPlace(
        "broker.cli", "migrate", "Bring the database up to date, and report the changes.", SERVER
    ),
    "backup": CommandPlace(
        "broker.cli",
        "backup",
        "Back up the database into a file, whether a service uses it or not.",
        SERVER,
    ),
    "restore": CommandPlace(
        "broker.cli",
        "restore",
        "Restore a backup into a data directory without a database: all of it or nothing.",
        SERVER,
    ),
    "keys": CommandPlace(
        "broker.key_commands", "app", "Keys: who may call the service, and what for.", SERVER
    ),
    "simulate": CommandPlace(
        "broker.simulate.command",
        "simulate",
        "Try a scaling plan in virtual time: handoffs, pauses, time to balance.",
        SERVER,
    ),
}


def load(name: str) -> Any:
    """The command of this name in `COMMANDS`; one that cannot be loaded says so when called."""
    place = COMMANDS[name]
    if find_spec(place.module.partition(".")[0]) is None:
        return _saying(
            name, f"the command {name} comes with the service: pip install {place.package}"
        )
    try:
        found = getattr(import_module(place.module), place.name)
    except ImportError as error:
        return _saying(name, f"the command {name} cannot be loaded: {error}")
    if place.hidden:
        found = copy(found)
        found.name, found.hidden = name, True
    return found


def _saying(name: str, message: str) -> click.Command:
    @click.command(
        name,
        help=f"({message})",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def say() -> NoReturn:
        fail(message)

    return say


class Commands(click.Group):
    """All commands; `demo` is here, and each of the others where `COMMANDS` says."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load(cmd_name) if cmd_name in COMMANDS else super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """As click's, which loads each command for its summary."""
        shown = {
            name: place.summary
            for name, place in COMMANDS.items()
            if not place.hidden and find_spec(place.module.partition(".")[0])
        }
        shown |= {name: command.get_short_help_str(200) for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl(list(shown.items()))

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
CALLS: Mapping[str, str] = {
    "Client.partitions()": "'counterpoise positions show'",
    "Client.rebalance_status()": "'counterpoise status'",
    "Client.lineage()": "'counterpoise lineage'",
    "Client.set_positions()": "'counterpoise positions set'",
    "Client.delete_queue(force=True)": "'counterpoise queues delete --force'",
    "force=True": "--force",
}


def _worded(error: CounterpoiseError) -> str:
    """The error and what to do; it names commands where others name calls."""
    said = str(error)
    if isinstance(error, Unreachable):
        from counterpoise.cli.output import how_to_reach

        return f"{said}; {how_to_reach(error)}"
    if isinstance(error, QueueNotFound):
        return f"{said.partition(';')[0]}; 'counterpoise queues list' shows the queues"
    if isinstance(error, QueueExists):
        return f"{said.partition(';')[0]}; 'counterpoise queues change' changes its settings"
    for method, command in CALLS.items():
        said = said.replace(method, command)
    return said


def _ours(ctx: Any, error: Exception) -> bool:
    """Whether to report `error` in one line: not for errors of click or of a plugin."""
    if os.environ.get("COUNTERPOISE_TRACEBACK"):
        return False
    of_click = type(error).__module__.split(".")[0] == "click"
    command = COMMANDS.get(ctx.invoked_subcommand)
    return not of_click and (command is None or command.package != SERVER)


def fail(message: str) -> NoReturn:
    """Print one line on stderr and end with exit code 1."""
    from counterpoise.plain import plain_line

    sys.stderr.write(f"counterpoise: {plain_line(' '.join(message.split()))}\n")
    raise SystemExit(1)


@click.group(
    "counterpoise",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, message="counterpoise %(version)s", help="Show the version.")
@options_before_commands
def app() -> None:
    """Share one partitioned queue among many consumers.

    --url, --token-file and --token may also stand after the command.
    """


@app.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "help_option_names": [],
    }
)
@click.pass_context
def demo(context: click.Context) -> None:
    """Watch PySpark applications join, leave and share a real queue."""
    try:
        code = import_module("broker.demo").main(context.args)
    except ModuleNotFoundError as error:
        fail(
            f"the demo needs {error.name}, which is not installed: pip install 'counterpoise[demo]'"
        )
    context.exit(int(code or 0))


def main() -> None:
    """The console script."""
    try:
        app()
    except OSError as error:  # of options that are answered before there is a command
        fail(f"{type(error).__name__}: {error}")
