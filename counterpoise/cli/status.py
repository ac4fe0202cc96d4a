"""`counterpoise status`, `flows list` and `rebalance`: who owns what, and why."""

from __future__ import annotations

import contextlib
import time
from typing import Annotated

import typer
from rich.live import Live
from rich.text import Text

from counterpoise.cli.common import (
    AsJson,
    QueueName,
    Url,
    console,
    duration,
    print_json,
    seconds_until,
    table,
)
from counterpoise.cli.picture import Snapshot, render
from counterpoise.client import Client
from counterpoise.errors import ServiceUnavailable

flows_app = typer.Typer(no_args_is_help=True, help="Flows: list those bound to a queue.")

REFRESH_SECONDS = 0.25
LOOK_SECONDS = 0.5


def show_status(
    queue: QueueName,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep looking until interrupted.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show who owns what, what is being handed off, and why."""
    with Client(url, timeout_seconds=5.0) as client:
        if as_json:
            print_json(client.rebalance_status(queue).raw)
        elif watch:
            _watch(client, queue)
        else:
            console.print(render(Snapshot.take(client, queue)))


def _watch(client: Client, queue: str) -> None:
    """Look again and again. A service that is away is waited for, with the last picture shown."""
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
    if console.is_terminal:  # the screen of before is back; leave the last picture on it
        console.print(render(snapshot, away))


def rebalance(queue: QueueName, url: Url = None, as_json: AsJson = False) -> None:
    """Rebalance now, without waiting for the holddown."""
    with Client(url) as client:
        status = client.rebalance_now(queue)
    if as_json:
        print_json(status.raw)
    else:
        typer.echo(f"{status.queue}: {status.status}, {len(status.handoffs)} handoffs")


@flows_app.command("list")
def list_flows(queue: QueueName, url: Url = None, as_json: AsJson = False) -> None:
    """List the flows bound to a queue, the earliest first."""
    with Client(url) as client:
        flows = client.flows(queue)
    if as_json:
        print_json([flow.raw for flow in flows])
        return
    shown = table(
        "FLOW", "CLIENT", "STATE", "PARTITIONS", "BOUND", "LEASE LEFT",
        right=("PARTITIONS", "BOUND", "LEASE LEFT"),
    )  # fmt: skip
    for flow in flows:
        bound = seconds_until(flow.bound_at)
        lease = seconds_until(flow.lease_expires_at)
        shown.add_row(
            flow.flow_id,
            Text(flow.client_name),
            "draining" if flow.draining else "active" if flow.active else "standby",
            str(flow.partitions),
            "" if bound is None else f"{duration(-bound)} ago",
            "" if lease is None else duration(lease),
        )
    console.print(shown)
