"""`counterpoise status` and `rebalance`: the owners of partitions, and the rebalance."""

from __future__ import annotations

import contextlib
import time
from typing import Annotated

import typer
from rich.live import Live

from counterpoise.cli.output.common import AsJson, QueueName, Url, console, print_json
from counterpoise.cli.output.conditions import held_conditions
from counterpoise.cli.output.picture import Snapshot, render
from counterpoise.cli.queues import list_queues
from counterpoise.client import Client
from counterpoise.errors import ServiceUnavailable

REFRESH_SECONDS = 0.25
LOOK_SECONDS = 0.5


def show_status(
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="QUEUE", help="The queue's name; without it, all queues are listed."
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh until interrupted.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the owners of the partitions, the handoffs, and the trigger."""
    if queue is None:
        if watch:
            raise typer.BadParameter("name the queue to watch")
        list_queues(url=url, as_json=as_json)
        return
    with Client(url, timeout_seconds=5.0) as client:
        if as_json:
            reported = [one.raw for one in held_conditions(client, queue)]
            print_json({**client.rebalance_status(queue).raw, "conditions": reported})
        elif watch:
            _watch(client, queue)
        else:
            console.print(render(Snapshot.take(client, queue)))


def _watch(client: Client, queue: str) -> None:
    """Refresh the picture. While the service is away, show the last picture and wait."""
    snapshot, away = Snapshot.take(client, queue), None
    looked_at = time.monotonic()
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(
            render(snapshot), console=console, screen=console.is_terminal, auto_refresh=False
        ) as live,
    ):
        while True:
            time.sleep(REFRESH_SECONDS)
            if time.monotonic() - looked_at >= LOOK_SECONDS:
                try:
                    snapshot, away = Snapshot.take(client, queue), None
                except ServiceUnavailable as error:
                    away = str(error)
                looked_at = time.monotonic()
            live.update(render(snapshot, away), refresh=True)
    if console.is_terminal:  # the previous screen is back; leave the last picture on it
        console.print(render(snapshot, away))


def rebalance(queue: QueueName, url: Url = None, as_json: AsJson = False) -> None:
    """Rebalance now, without waiting for the holddown."""
    with Client(url) as client:
        status = client.rebalance_now(queue)
    if as_json:
        print_json(status.raw)
    else:
        typer.echo(f"{status.queue}: {status.status}, {len(status.handoffs)} handoffs")
