"""`counterpoise flows …`: list the flows of a queue, drain or unbind one from the outside."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.text import Text

from counterpoise.cli.common import (
    AsJson,
    QueueName,
    Url,
    console,
    duration,
    print_json,
    say,
    seconds_until,
    table,
)
from counterpoise.client import Client
from counterpoise.wire import FlowSummary

app = typer.Typer(no_args_is_help=True, help="Flows: list, drain, unbind.")

FlowName = Annotated[
    str,
    typer.Argument(
        metavar="FLOW",
        help="The flow's id, or its client name if no other flow has it.",
        show_default=False,
    ),
]
LOOK_SECONDS = 0.2


@app.command("list")
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


@app.command()
def drain(
    queue: QueueName,
    flow: FlowName,
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds after which warm-ups of its successors are cut short, and after which "
            "this command stops waiting."
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option(help="Wait until it owns no partition, or has left.")
    ] = True,
    url: Url = None,
) -> None:
    """Let a flow hand over all its partitions in order; it stays bound until its consumer leaves.

    Exit code 1 if it still owns partitions after --timeout.
    """
    with Client(url) as client:
        chosen = _find(client, queue, flow)
        client.drain(queue, chosen.flow_id, timeout_seconds=timeout)
        if not wait:
            return
        give_up_at = None if timeout is None else time.monotonic() + timeout
        while left := _owned(client, queue, chosen.flow_id):
            if give_up_at is not None and time.monotonic() > give_up_at:
                say(f"{chosen.client_name} still owns {left} partitions")
                raise typer.Exit(1)
            time.sleep(LOOK_SECONDS)
    say(f"{chosen.client_name} owns no partition any more")


@app.command()
def unbind(queue: QueueName, flow: FlowName, url: Url = None) -> None:
    """End a flow at once. Its messages in progress may be processed twice; `drain` avoids that."""
    with Client(url) as client:
        client.unbind(queue, _find(client, queue, flow).flow_id)


def _find(client: Client, queue: str, name: str) -> FlowSummary:
    flows = client.flows(queue)
    found = [flow for flow in flows if flow.flow_id == name] or [
        flow for flow in flows if flow.client_name == name
    ]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} flows of this name: give the id" if found else "no such flow"
    raise typer.BadParameter(f"{problem} (counterpoise flows list {queue})", param_hint="FLOW")


def _owned(client: Client, queue: str, flow_id: str) -> int:
    return sum(flow.partitions for flow in client.flows(queue) if flow.flow_id == flow_id)
