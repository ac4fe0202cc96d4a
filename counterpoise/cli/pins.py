"""`counterpoise queues pin` and `unpin`, and how other commands show what is pinned."""

from __future__ import annotations

from collections.abc import Sequence

import click
from msgspec import to_builtins

from counterpoise.cli.options import json_option, queue_argument, service_options
from counterpoise.cli.output import by_text, of_partitions, print_json, tell
from counterpoise.cli.previews import dry_run_option, show_previews
from counterpoise.client import Client
from counterpoise.plain import plain_line
from counterpoise.wire import Pin, PinnedQueue

partitions_option = click.option(
    "--partition",
    "-p",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    required=True,
    help="This partition; repeat it for more.",
)


@click.command("pin")
@queue_argument
@click.argument("client_name", help="With which the consumer binds.")
@partitions_option
@click.option("--reason", help="Shown to those who see the pin; at most 200 characters.")
@dry_run_option
@service_options
@json_option
def pin_partitions(
    queue: str,
    client_name: str,
    partitions: Sequence[int],
    reason: str | None,
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Pin partitions to the consumer CLIENT_NAME: they move there when it is bound.

    While no consumer of this name takes part, the partitions are balanced like
    others, and the condition pin_unmet says so. Pinning again replaces the name
    and the reason.
    """
    with Client(url) as client:
        if dry_run:
            show_previews(
                [
                    client.pin_partition(queue, number, client_name, reason, dry_run=True)
                    for number in partitions
                ],
                as_json,
            )
            return
        for number in partitions:
            answer = client.pin_partition(queue, number, client_name, reason)
    _show(answer, as_json)


@click.command("unpin")
@queue_argument
@partitions_option
@dry_run_option
@service_options
@json_option
def unpin_partitions(
    queue: str, partitions: Sequence[int], dry_run: bool, url: str | None, as_json: bool
) -> None:
    """End the pins of partitions: they are balanced like others."""
    with Client(url) as client:
        if dry_run:
            show_previews(
                [client.unpin_partition(queue, n, dry_run=True) for n in partitions], as_json
            )
            return
        for number in partitions:
            answer = client.unpin_partition(queue, number)
    _show(answer, as_json)


def _show(answer: PinnedQueue, as_json: bool) -> None:
    if as_json:
        print_json(to_builtins(answer))
        return
    for text, numbers in by_text((one.partition, pin_text(one.pin)) for one in answer.partitions):
        verb = "is" if len(numbers) == 1 else "are"
        tell(f"{answer.queue}: {of_partitions(numbers)} {verb} pinned{text}")
    if not answer.partitions:
        tell(f"{answer.queue}: nothing is pinned")


def pin_text(pin: Pin) -> str:
    """` to etl (its cache has them)`; ` to etl, without effect` while it has none."""
    effect = "" if pin.flow_id is not None else ", without effect"
    reason = "" if pin.reason is None else f" ({plain_line(pin.reason)})"
    return f" to {plain_line(pin.client_name)}{effect}{reason}"
