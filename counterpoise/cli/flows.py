"""`counterpoise flows …`: list the flows of a queue, drain or unbind one from the outside."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from counterpoise.cli.output.common import (
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
from counterpoise.cli.output.progress import WAIT_SECONDS, Drain, Steps
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
            min=0.0,
            help="Seconds after which warm-ups of its successors are cut short, and after which "
            "this command stops waiting.",
            show_default=f"warm-ups take their time; the command waits {WAIT_SECONDS:.0f} s",
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option(help="Wait until it owns no partition, or has left.")
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Let a flow hand over all its partitions in order, and leave.

    Exit code 1 if it still owns partitions when the time is over; the drain then
    goes on without the command. It cannot be undone.
    """
    with Client(url) as client:
        chosen = _find(client, queue, flow)
        client.drain(queue, chosen.flow_id, timeout_seconds=timeout)
        drain = Drain(client, queue, chosen)
        if wait:
            with Steps(shown=not (quiet or as_json)) as steps:
                drain.wait(WAIT_SECONDS if timeout is None else timeout, steps)
    if as_json:
        print_json(drain.document())
    elif wait:
        say(drain.result())
    if wait and drain.left:
        raise typer.Exit(1)


@app.command()
def unbind(queue: QueueName, flow: FlowName, url: Url = None, as_json: AsJson = False) -> None:
    """End a flow at once. Its messages in progress may be processed twice; `drain` avoids that."""
    with Client(url) as client:
        chosen = _find(client, queue, flow)
        client.unbind(queue, chosen.flow_id)
    if as_json:
        print_json({"queue": queue, "flow_id": chosen.flow_id, "client_name": chosen.client_name})


def _find(client: Client, queue: str, name: str) -> FlowSummary:
    flows = client.flows(queue)
    found = [flow for flow in flows if flow.flow_id == name] or [
        flow for flow in flows if flow.client_name == name
    ]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} flows of this name: give the id" if found else "no such flow"
    raise typer.BadParameter(f"{problem} (counterpoise flows list {queue})", param_hint="FLOW")
