"""`counterpoise consumers …`: list the consumers of a queue, drain or unbind one from the outside.

People say *consumer*, the contract *flow*: one consumer's binding to a queue. `counterpoise flows`
is accepted too.

A drained consumer hands its partitions to the others of its queue. Where there is none, nobody can
take them over: it finishes its messages, commits, gives the partitions back and leaves. A
consumer that does not do this (a program of its own on the HTTP calls) keeps them; so the wait for
a drain has an end in any case.

The progress of a drain is on stderr. On a terminal it is one line that changes. Elsewhere (a pipe,
a log of a scheduler) it is a line for each change.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import click
from rich.text import Text

from counterpoise.cli.options import (
    InOrder,
    consumer_names,
    finite,
    json_option,
    queue_argument,
    service_options,
)
from counterpoise.cli.output import count_text, counted, duration, print_json, say, seconds_until
from counterpoise.cli.previews import dry_run_option, show_previews
from counterpoise.cli.tables import PlainConsole, console, table
from counterpoise.client import Client
from counterpoise.errors import ServiceUnavailable, reached_before
from counterpoise.plain import plain_line
from counterpoise.wire import FlowSummary, RebalanceStatus

WAIT_SECONDS = 120.0
POLL_SECONDS = 0.2


@click.group("consumers", cls=InOrder)
def app() -> None:
    """Consumers: list, drain, unbind."""


flow_argument = click.argument(
    "flow",
    metavar="CONSUMER",
    shell_complete=consumer_names,
    help="Its client name, or the id of its flow if others have the same name.",
)


@app.command("list")
@queue_argument
@service_options
@json_option
def list_flows(queue: str, url: str | None, as_json: bool) -> None:
    """List the consumers bound to a queue, the earliest first."""
    with Client(url) as client:
        flows = client.flows(queue)
    if as_json:
        print_json([flow.raw for flow in flows])
        return
    weighted = any(flow.weight != 1 or flow.max_partitions is not None for flow in flows)
    asked = ("WEIGHT", "AT MOST") if weighted else ()
    shown = table(
        "FLOW", "CONSUMER", "STATE", "PARTITIONS", *asked, "BOUND", "LEASE LEFT",
        right=("PARTITIONS", *asked, "BOUND", "LEASE LEFT"),
    )  # fmt: skip
    for flow in flows:
        most = "" if flow.max_partitions is None else count_text(flow.max_partitions)
        asks = (count_text(flow.weight), most) if weighted else ()
        bound = seconds_until(flow.bound_at)
        lease = seconds_until(flow.lease_expires_at)
        shown.add_row(
            flow.flow_id,
            Text(flow.client_name),
            flow.state,
            count_text(flow.partitions),
            *asks,
            "" if bound is None else f"{duration(-bound)} ago",
            "" if lease is None else duration(lease),
        )
    console.print(shown)


@app.command("drain")
@queue_argument
@flow_argument
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.0),
    callback=finite,
    show_default=f"warm-ups take their time; the command waits {WAIT_SECONDS:.0f} s",
    help="Seconds after which warm-ups of its successors are cut short, and after which "
    "this command stops waiting.",
)
@click.option(
    "--wait/--no-wait", default=True, help="Wait until it owns no partition, or has left."
)
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@dry_run_option
@service_options
@json_option
def drain(
    queue: str,
    flow: str,
    timeout: float | None,
    wait: bool,
    quiet: bool,
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Let a consumer hand over all its partitions in order, and leave.

    Exit code 1 if it still owns partitions when the time is over; the drain then
    goes on without the command. It cannot be undone.
    """
    with Client(url) as client:
        chosen = _find(client, queue, flow)
        if dry_run:
            flow_id = chosen.flow_id
            foreseen = client.drain(queue, flow_id, timeout_seconds=timeout, dry_run=True)
            show_previews([foreseen], as_json)
            return
        client.drain(queue, chosen.flow_id, timeout_seconds=timeout)
        drain = DrainProgress(client, queue, chosen)
        if wait:
            with StatusLine(shown=not (quiet or as_json)) as steps:
                drain.wait(WAIT_SECONDS if timeout is None else timeout, steps)
    if as_json:
        print_json(drain.document())
    elif wait:
        say(drain.result())
    if wait and drain.left:
        raise click.exceptions.Exit(1)


@app.command("unbind")
@queue_argument
@flow_argument
@dry_run_option
@service_options
@json_option
def unbind(queue: str, flow: str, dry_run: bool, url: str | None, as_json: bool) -> None:
    """End a consumer at once. Messages in progress may be processed twice; `drain` avoids that."""
    with Client(url) as client:
        chosen = _find(client, queue, flow)
        if dry_run:
            show_previews([client.unbind(queue, chosen.flow_id, dry_run=True)], as_json)
            return
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
    problem = "no such consumer is bound"
    if found:
        problem = f"{len(found)} consumers of this name: give the id"
    advice = f"{problem} (counterpoise consumers list {queue})"
    raise click.BadParameter(advice, param_hint="CONSUMER")


class StatusLine:
    """One line that says how far something is. `tell` may be called again and again."""

    def __init__(self, shown: bool = True) -> None:
        self._console = PlainConsole(stderr=True)
        self._shown = shown
        self._status = self._console.status("") if shown and self._console.is_terminal else None
        self._told: str | None = None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self, said: str, passing: Callable[[], str] = lambda: "") -> None:
        """`said` is news when it differs from the last call's; `passing` is for a terminal only."""
        if self._status is not None:
            self._status.update(Text(plain_line(said + passing())))
        elif self._shown and said != self._told:
            say(said)
        self._told = said


class DrainProgress:
    """The drain of one flow, from the outside. `left`: how many partitions it owns still."""

    def __init__(self, client: Client, queue: str, flow: FlowSummary) -> None:
        self._client = client
        self._queue = queue
        self._flow = flow
        self._started = self._now = time.monotonic()
        self._successors = True
        self.gone = False
        self.left = flow.partitions

    def wait(self, seconds: float, steps: StatusLine) -> None:
        """Until the flow owns nothing, or this time is over."""
        while self._poll(steps) and self._now - self._started < seconds:
            time.sleep(POLL_SECONDS)

    def _poll(self, steps: StatusLine) -> bool:
        """Whether to go on waiting."""
        try:
            with reached_before():
                flows = self._client.flows(self._queue)
                status = self._client.rebalance_status(self._queue)
        except ServiceUnavailable as error:
            # The drain goes on, and so does the wait for it.
            self._now = time.monotonic()
            steps.tell(f"{error}; waiting for it")
            return True
        mine = [flow for flow in flows if flow.flow_id == self._flow.flow_id]
        self._now = time.monotonic()
        self.gone = not mine
        self.left = mine[0].partitions if mine else 0
        if not self.left:
            return False
        self._successors = any(not flow.draining for flow in flows)
        steps.tell(self._said(status), lambda: _seconds(status, self._flow.flow_id))
        return True

    def _said(self, status: RebalanceStatus) -> str:
        said = f"{self._flow.client_name} owns {counted(self.left, 'partition')}"
        if not self._successors:
            return (
                f"{said}; nobody can take over, because no other consumer is bound. It finishes "
                "its messages and leaves"
            )
        mine = [one.phase for one in status.handoffs if one.from_flow == self._flow.flow_id]
        phases = [
            f"{mine.count(phase)} {text}"
            for phase, text in (("warming", "warming up elsewhere"), ("revoking", "being finished"))
            if phase in mine
        ]
        if not phases and status.holddown_until is not None:
            return f"{said}; its successors are chosen after the holddown"
        return "; ".join([said, ", ".join(phases)]) if phases else said

    def result(self) -> str:
        """What has come out, in a sentence."""
        name, took = self._flow.client_name, duration(self._now - self._started)
        if not self.left:
            outcome = "has left" if self.gone else "owns no partition any more"
            return f"{name} {outcome}, after {took}"
        said = f"{name} still owns {counted(self.left, 'partition')} after {took}; "
        if self._successors:
            return (
                f"{said}the drain goes on. --timeout SECONDS cuts warm-ups of its successors "
                f"short; 'counterpoise consumers unbind {self._queue} {name}' ends it at once"
            )
        return (
            f"{said}nobody can take over. Bind another consumer, or end it with "
            f"'counterpoise consumers unbind {self._queue} {name}'"
        )

    def document(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "queue": self._queue,
            "flow_id": self._flow.flow_id,
            "client_name": self._flow.client_name,
            "partitions": self.left,
            "left": self.gone,
            "successors": self._successors,
            "seconds": round(self._now - self._started, 3),
        }


def _seconds(status: RebalanceStatus, flow_id: str) -> str:
    """How long what happens now may take yet."""
    deadlines = [one.deadline for one in status.handoffs if one.from_flow == flow_id]
    ends = deadlines or [status.holddown_until]
    left = max(seconds_until(end) or 0.0 for end in ends)
    return f", at most {duration(left)} more" if left > 0 else ""
