"""`counterpoise status` and `rebalance`: the picture of a queue, and the end of its holddown."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import click
from msgspec import structs

from counterpoise.cli.options import json_option, queue_argument, queue_names, service_options
from counterpoise.cli.output import counted, print_json, tell, total_lag
from counterpoise.cli.previews import dry_run_option, show_previews
from counterpoise.cli.queues import list_queues
from counterpoise.client import Client
from counterpoise.errors import ServiceUnavailable, reached_before

REFRESH_SECONDS = 0.25
POLL_SECONDS = 0.5


@click.command("status")
@click.argument(
    "queue",
    required=False,
    shell_complete=queue_names,
    help="The queue's name; without it, all queues are listed.",
)
@click.option("--watch", "-w", is_flag=True, help="Refresh until interrupted.")
@service_options
@json_option
def show_status(queue: str | None, watch: bool, url: str | None, as_json: bool) -> None:
    """Show the owners of the partitions, the handoffs, and the trigger."""
    if queue is None:
        if watch:
            raise click.BadParameter("name the queue to watch")
        click.get_current_context().invoke(list_queues, url=url, as_json=as_json)
        return
    with Client(url, timeout_seconds=5.0) as client:
        if as_json:
            print_json(_document(client, queue))
        elif watch:
            _watch(client, queue)
        else:
            from counterpoise.cli.picture import QueueSnapshot, render
            from counterpoise.cli.tables import console

            console.print(render(QueueSnapshot.take(client, queue)))


def _document(client: Client, queue: str) -> dict[str, Any]:
    """The status with the consumers and the owners."""
    partitions = client.partitions(queue)
    return {
        **client.rebalance_status(queue).raw,
        "lag": total_lag(partitions),
        "consumers": [one.raw for one in client.flows(queue)],
        "partitions": [structs.asdict(one) for one in partitions],
        "conditions": [one.raw for one in client.conditions(queue)],
    }


def _watch(client: Client, queue: str) -> None:
    """Refresh the picture. While the service is away, show the last picture and wait."""
    from rich.live import Live

    from counterpoise.cli.picture import QueueSnapshot, render
    from counterpoise.cli.tables import console

    snapshot, away = QueueSnapshot.take(client, queue), None
    looked_at = time.monotonic()
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(
            render(snapshot), console=console, screen=console.is_terminal, auto_refresh=False
        ) as live,
    ):
        while True:
            time.sleep(REFRESH_SECONDS)
            if time.monotonic() - looked_at >= POLL_SECONDS:
                try:
                    with reached_before():
                        snapshot, away = QueueSnapshot.take(client, queue), None
                except ServiceUnavailable as error:
                    away = str(error)
                looked_at = time.monotonic()
            live.update(render(snapshot, away), refresh=True)
    if console.is_terminal:  # the previous screen is back; leave the last picture on it
        console.print(render(snapshot, away))


@click.command("rebalance")
@queue_argument
@dry_run_option
@service_options
@json_option
def rebalance(queue: str, dry_run: bool, url: str | None, as_json: bool) -> None:
    """Rebalance now, without waiting for the holddown."""
    with Client(url) as client:
        if dry_run:
            show_previews([client.rebalance_now(queue, dry_run=True)], as_json)
            return
        status = client.rebalance_now(queue)
    if as_json:
        print_json(status.raw)
    else:
        tell(f"{status.queue}: {status.status}, {counted(len(status.handoffs), 'handoff')}")
