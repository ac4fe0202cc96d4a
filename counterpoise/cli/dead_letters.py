"""`counterpoise dead-letters`: what consumers could not handle (`counterpoise.consumer.poison`).

A queue of dead letters is a queue like any other, and a letter is a message whose headers say where
it comes from and why it is there. A letter *waits* until a consumer of that queue has passed it.

`redrive` is such a consumer: it publishes the letter to the queue that it comes from, as it was
there, and then commits its position. The letter names that queue, and the queue's log has to
confirm it (`counterpoise.cli.letters`). It is published under an id made of its place, as the
letter itself was, so a redrive that is interrupted and begun again sends none twice. It takes the
letters that wait when it begins, and ends in each partition behind the last of them: what fails
again, or comes meanwhile, waits for the next redrive. It does not begin beside other consumers of
the letters, which would take some of them, nor while a partition with letters is paused, and ends
if either comes meanwhile. Nor does it begin with letters that would wait for others, which it does
not send: after an ordered resize these come first. Two queues may read one log of letters: what one
of them has sent back, the other one passes and does not send again.

The message comes back behind the newer messages of its key: it has waited, and they have not.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from counterpoise.cli.options import InOrder, json_option, queue_argument, service_options
from counterpoise.cli.output import counted, print_json, say
from counterpoise.cli.pauses import pause_text
from counterpoise.cli.reading import TIMEOUT_SECONDS, document, messages_of, opened, text_of
from counterpoise.cli.tables import console, table
from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError, ServiceUnavailable, reached_before
from counterpoise.flow.done_above import DoneAbove
from counterpoise.logs import Log
from counterpoise.logs.address import kind_of, parse_log
from counterpoise.plain import plain_line

if TYPE_CHECKING:
    from counterpoise.consumer import Consumer
    from counterpoise.consumer.message import Message


@click.group("dead-letters", cls=InOrder)
def app() -> None:
    """Dead letters: list, show, redrive."""


LONGEST_TEXT = 60
LOOK_SECONDS = 1.0


@app.command("list")
@queue_argument
@click.option(
    "--max-messages",
    "-n",
    "most",
    type=click.IntRange(min=1),
    default=20,
    help="The most letters to show.",
)
@service_options
@json_option
def list_letters(queue: str, most: int, url: str | None, as_json: bool) -> None:
    """List the letters that wait, and leave all as it is.

    Where they come from is what they say; a redrive asks the log of that queue.
    """
    from counterpoise.consumer.letters import claim_of

    with _opened(queue, url) as (_, letters):
        found: list[dict[str, Any]] = []
        more = False
        for message in letters:
            if len(found) == most:
                more = True
                break
            found.append(message)
    if found and not any(map(_said, found)):
        raise CounterpoiseError(
            f"{queue} is no queue of dead letters: its messages do not say why they could not be "
            f"handled. 'counterpoise peek {queue}' shows them",
        )
    if as_json:
        print_json([_document(one, 1000) for one in found])
        return
    shown = table("PARTITION", "POSITION", "FROM", "ATTEMPTS", "ERROR", right=("PARTITION",))
    claims = [claim_of(dict(one["headers"] or ())) for one in found]
    for one, claim in zip(found, claims, strict=True):
        said = _said(one)
        place = "-" if claim is None else f"{claim.queue}:{claim.partition}:{claim.position}"
        texts = (place, said.get("attempts", "-"), said.get("error", "-"))
        shown.add_row(str(one["partition"]), one["position"], *map(_short, texts))
    console.print(shown)
    if more:
        say(f"there are more than {counted(most, 'letter')}; -n shows more")


@app.command("show")
@queue_argument
@click.option("--partition", "-p", type=click.IntRange(min=0), required=True, help="Its partition.")
@click.option("--position", required=True, help="Its position.")
@click.option(
    "--max-bytes", type=click.IntRange(min=0), default=100_000, help="The most bytes of the value."
)
@service_options
@json_option
def show_letter(
    queue: str, partition: int, position: str, max_bytes: int, url: str | None, as_json: bool
) -> None:
    """Show one letter: its value, its headers, and why it could not be handled."""

    with _opened(queue, url) as (log, _):
        found = next(messages_of(log, {partition: position}), None)
    if found is None or found["position"] != position:
        raise CounterpoiseError(
            f"{queue} has no message at position {position} of partition {partition}"
        )
    if as_json:
        print_json(_document(found, max_bytes))
        return
    click.echo(text_of(_without_ours(found), max_bytes))
    for name, text in _said(found).items():
        click.echo(plain_line(f"  {name}: {text}"))


@app.command("redrive")
@queue_argument
@click.option("--to", show_default="the one that they come from", help="Send them to this queue.")
@click.option(
    "--max-messages", "-n", "most", type=click.IntRange(min=1), help="The most letters to send."
)
@click.option(
    "--trust",
    multiple=True,
    metavar="QUEUE",
    help="Send letters that name this queue back there, also if its log cannot confirm "
    "that they come from it; repeat it for more.",
)
@click.option("--dry-run", is_flag=True, help="Send nothing; say how many would go where.")
@service_options
@json_option
def redrive(
    queue: str,
    to: str | None,
    most: int | None,
    trust: tuple[str, ...],
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Send the letters that wait back to where they come from, and pass them here.

    Mend the consumer first: a message that fails again becomes a letter again.
    It sends nothing beside another consumer of the letters, or while one of
    their partitions is paused. An interrupted redrive sends none twice. A
    message comes back behind the newer messages of its key. It ends with exit
    code 1 if it has sent less than it was to, and 130 if that is because of an
    interrupt, SIGTERM or SIGHUP.

    Whoever may publish to the queue of letters can put any message there. So the
    log of the queue that a letter names must still have the same message at the
    place that the letter names. If one is not confirmed, nothing is sent.
    """
    from counterpoise.cli.letters import Origins
    from counterpoise.consumer import Consumer, stop_on_signals
    from counterpoise.consumer.letters import letter_id, redrive_origin, without_ours
    from counterpoise.consumer.poison import QueueAt, publish_once, refuse_same

    # By partition and position.
    targets: dict[tuple[int, str], str] = {}
    last: dict[int, str] = {}
    with (
        Client(url, timeout_seconds=TIMEOUT_SECONDS) as client,
        _opened(queue, url) as (log, letters),
        Origins(queue, client, to, trust) as origins,
    ):
        origin = redrive_origin(log.bounds([]).incarnation)
        for message in letters:
            number, position = message["partition"], message["position"]
            targets[number, position] = origins.target(message)
            last[number] = position
            if len(targets) == most:
                break
        # One message of each partition, from its last letter on.
        ends = log.limit(last, len(last))
        counts = Counter(targets.values())
        for target in counts:
            again = f"{queue} would get its letters again: name another queue with --to"
            refuse_same(again, QueueAt(target, url, None), QueueAt(queue, url, None))
            client.log_access(target, "publish")
            if others := _others(client, target):
                say(f"{target} shares its log with {', '.join(others)}: they get the letters, too")
        flows = [] if dry_run else list(client.flows(queue, max_items=1))
        paused = None if dry_run else _paused(client, queue, last.keys())
        held_up = None if dry_run else _held_up(client, queue, ends)
    if dry_run or not counts:
        _report(queue, counts, "would be sent" if dry_run else "sent", as_json)
        return
    if flows:
        raise CounterpoiseError(
            f"{queue} is consumed by {flows[0].client_name!r}, which would take some of the "
            f"letters: stop its consumers first ('counterpoise consumers list {queue}')",
        )
    if paused is not None:
        raise CounterpoiseError(
            f"{paused}, so its letters could not be sent: resume it first "
            "('counterpoise queues resume')"
        )
    if held_up is not None:
        raise CounterpoiseError(f"{held_up}: send more of them, or all")
    # After a handoff a letter may come again.
    sent: dict[tuple[int, str], str] = {}

    def send(message: Message) -> None:
        target = targets[message.partition, message.position]
        publish_once(
            target,
            letter_id(origin, message.partition, message.position),
            message.value,
            message.key,
            without_ours(message.headers),
            url=url,
        )
        sent[message.partition, message.position] = target

    consumer = Consumer(queue, each=send, url=url, ends=ends, commit_messages=1, at_once=True)
    signals = _Signals(consumer)

    def left() -> set[int]:
        return {number for number, _ in targets.keys() - sent.keys()}

    with Client(url, timeout_seconds=TIMEOUT_SECONDS) as client, stop_on_signals(signals):
        hindrance = _Hindrance(client, queue, consumer.flow.instance_id, left)
        consumer.run(lambda: len(sent) == len(targets) or hindrance.came())
    if hindrance.said is not None:
        say(hindrance.said)
    _report(queue, Counter(sent.values()), "sent", as_json, len(targets))
    if len(sent) < len(targets):
        raise click.exceptions.Exit(130 if signals.came else 1)


class _Hindrance:
    """What has come meanwhile, so that the letters left would be waited for without an end."""

    def __init__(
        self, client: Client, queue: str, instance_id: str, left: Callable[[], Set[int]]
    ) -> None:
        """`instance_id`: the redrive's own. `left`: the partitions with letters left."""
        self._client = client
        self._queue = queue
        self._instance_id = instance_id
        self._left = left
        self._look_at = time.monotonic() + LOOK_SECONDS
        self.said: str | None = None

    def came(self) -> bool:
        """Whether another consumer is bound, or a partition with letters left is paused."""
        if time.monotonic() >= self._look_at:
            # Without an answer the redrive goes on, as its consumer does.
            with suppress(ServiceUnavailable), reached_before():
                self.said = self._found()
            self._look_at = time.monotonic() + LOOK_SECONDS
        return self.said is not None

    def _found(self) -> str | None:
        for flow in self._client.flows(self._queue):
            if flow.instance_id != self._instance_id:
                return f"{self._queue} is consumed by {flow.client_name!r} as well"
        return _paused(self._client, self._queue, self._left())


def _paused(client: Client, queue: str, numbers: Set[int]) -> str | None:
    """The first of these partitions that is paused, in words."""
    for one in client.partitions(queue):
        if one.partition in numbers and one.paused is not None:
            return f"partition {one.partition} of {queue} is paused{pause_text(one.paused)}"
    return None


def _held_up(client: Client, queue: str, ends: Mapping[int, str]) -> str | None:
    """The first partition with letters up to here that would wait without an end for letters of
    another one, which are not to be sent (the contract, *Ordered resize*), in words.
    """
    there = {one.partition: one for one in client.partitions(queue)}
    for number, end in ends.items():
        one = there[number]
        for other in one.waits_for or ():
            short = int(ends.get(other, "0")) < int(there[other].cut or "0")
            if short and int(end) > int(one.cut or "0"):
                return (
                    f"{queue} was resized, and letters of partition {number} wait for others of "
                    f"partition {other}, which would not be sent"
                )
    return None


class _Signals:
    """Passes signals on to a consumer, and remembers that they came."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.came = False

    def stop(self, *, now: bool = False) -> None:
        self.came = True
        self._consumer.stop(now=now)


def _report(
    queue: str, counts: Counter[str], verb: str, as_json: bool, planned: int | None = None
) -> None:
    if as_json:
        print_json({"queue": queue, verb.replace(" ", "_"): counts})
        return
    if planned is not None and counts.total() < planned:
        say(
            f"{counts.total()} of {counted(planned, 'letter')} of {queue} sent; "
            f"'counterpoise dead-letters list {queue}' shows what waits"
        )
    elif not counts:
        say(f"no letter waits in {queue}")
    for target, count in sorted(counts.items()):
        say(f"{counted(count, 'letter')} of {queue} {verb} to {target}")


@contextmanager
def _opened(queue: str, url: str | None) -> Iterator[tuple[Log, Iterator[dict[str, Any]]]]:
    """The log of a queue, and its letters that wait."""
    with Client(url, timeout_seconds=TIMEOUT_SECONDS) as client:
        view = client.log_access(queue, "read")
        partitions = client.partitions(queue)
    positions = {one.partition: one.position for one in partitions}
    done = {one.partition: DoneAbove.of_text(one.done_above) for one in partitions}
    with opened(view) as log:
        yield (
            log,
            (
                message
                for message in messages_of(log, positions)
                if not done[message["partition"]].covers(int(message["position"]))
            ),
        )


def _others(client: Client, queue: str) -> list[str]:
    """The other queues that read the log of a queue, or one of its logs."""
    logs = {*parse_log(client.queue(queue).log).parts}
    return [
        one.name
        for one in client.queues()
        if one.name != queue
        and kind_of(one.log) is not None
        and not logs.isdisjoint(parse_log(one.log).parts)
    ]


def _said(row: dict[str, Any]) -> dict[str, str]:
    """What a letter says of itself."""
    from counterpoise.consumer.letters import said_of

    return said_of(dict(row["headers"] or ()))


def _without_ours(row: dict[str, Any]) -> dict[str, Any]:
    from counterpoise.consumer.letters import without_ours

    return {**row, "headers": [*without_ours(dict(row["headers"] or ())).items()]}


def _document(row: dict[str, Any], max_bytes: int) -> dict[str, Any]:
    """A letter for JSON; `headers` are those of its message."""
    return {**document(_without_ours(row), max_bytes), "dead_letter": _said(row)}


def _short(text: str) -> str:
    text = plain_line(text)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
