"""The arguments and options that commands share."""

from __future__ import annotations

import math

import click


class InOrder(click.Group):
    """Commands in the order of their definition."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands]


queue_argument = click.argument("queue", help="The queue's name.")
url_option = click.option(
    "--url",
    envvar="COUNTERPOISE_URL",
    show_envvar=True,
    show_default="http://127.0.0.1:8640",
    help="The service's address.",
)
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
