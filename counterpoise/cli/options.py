"""The arguments and options that commands share."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import click


class InOrder(click.Group):
    """Commands in the order of their definition."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands]


def queue_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """What a shell completes to the name of a queue."""
    from counterpoise.cli import names

    return names.queues(context, incomplete)


def consumer_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """What a shell completes to the name of a consumer of the queue before it."""
    from counterpoise.cli import names

    return names.consumers(context, incomplete)


def _stands_for(variable: str) -> Callable[..., None]:
    """The callback of an option that takes the place of a variable, for all of this process."""

    def set_variable(_: click.Context, __: click.Parameter, value: str | None) -> None:
        if value is not None:
            os.environ[variable] = value

    return set_variable


def _token_of(_: click.Context, __: click.Parameter, file: str | None) -> None:
    """Read once: a file may be a pipe."""
    if file is None:
        return
    from counterpoise.errors import InvalidSettings
    from counterpoise.reading import token_in

    try:
        os.environ["COUNTERPOISE_TOKEN"] = token_in(file)
    except InvalidSettings as error:
        raise click.BadParameter(str(error)) from None


queue_argument = click.argument("queue", help="The queue's name.", shell_complete=queue_names)
_ADDRESS: Any = {
    "envvar": "COUNTERPOISE_URL",
    "show_envvar": True,
    "show_default": "http://127.0.0.1:8640",
    "help": "The service's address.",
}
_KEY_OPTIONS = (
    click.option(
        "--token-file",
        metavar="FILE",
        expose_value=False,
        callback=_token_of,
        help="A file with the key. [env: COUNTERPOISE_TOKEN_FILE]",
    ),
    click.option(
        "--token",
        metavar="KEY",
        expose_value=False,
        callback=_stands_for("COUNTERPOISE_TOKEN"),
        help="The key; ps shows it to everybody on this machine, so better give a file or the "
        "variable. [env: COUNTERPOISE_TOKEN]",
    ),
)


def key_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--token-file and --token: they take the place of the variables."""
    for option in _KEY_OPTIONS:
        command = option(command)
    return command


def service_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where the service is (`url`), and the key for it."""
    return click.option("--url", **_ADDRESS)(key_options(command))


def options_before_commands(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same before the name of a command; what stands after it wins."""
    said = {**_ADDRESS, "envvar": None, "help": "The service's address. [env: COUNTERPOISE_URL]"}
    before = click.option(
        "--url", expose_value=False, callback=_stands_for("COUNTERPOISE_URL"), **said
    )
    return before(key_options(command))


partitions_option = click.option(
    "--partition",
    "-p",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    show_default="all",
    help="Only this partition; repeat it for more.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def finite(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """The callback of options that are numbers of seconds; click takes nan and inf for numbers."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no number of seconds")
    return value
