"""`counterpoise dead-letters`: what consumers could not handle (`counterpoise.consumer.poison`).

A queue of dead letters is a queue like any other, and a letter is a message whose headers say where
it comes from and why it is there. A letter *waits* until a consumer of that queue has passed it.

`redrive` is such a consumer: it publishes the letter to the queue that it comes from, as it was
there, and then commits its position. It is published under an id made of its place, as the letter
itself was, so a redrive that is interrupted and begun again sends none twice. It takes the letters
that wait when it begins, and ends in each partition behind the last of them: what fails again, or
comes meanwhile, waits for the next redrive. It does not begin beside other consumers of the
letters, which would take some of them.

The message comes back behind the newer messages of its key: it has waited, and they have not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoise.cli.output import (
    AsJson,
    QueueName,
    Url,
    console,
    counted,
    print_json,
    say,
    table,
)
from counterpoise.cli.reading import TIMEOUT_SECONDS, document, messages_of, opened, text_of
from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError
from counterpoise.logs import Log
from counterpoise.plain import plain_line

if TYPE_CHECKING:
    from counterpoise.consumer import Consumer
    from counterpoise.consumer.message import Message

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Dead letters: list, show, redrive.",
)

LONGEST_ERROR = 60


class NoLetter(CounterpoiseError):
    """A message is no dead letter, or there is none at this place."""

    code = "no_letter"


class LettersTaken(CounterpoiseError):
    """Another consumer takes the letters."""

    code = "letters_taken"


@app.command("list")
def list_letters(
    queue: QueueName,
    most: Annotated[
        int, typer.Option("--max-messages", "-n", min=1, help="The most letters to show.")
    ] = 20,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the letters that wait, and leave all as it is."""
    with _opened(queue, url) as (log, positions):
        found: list[dict[str, Any]] = []
        more = False
        for message in messages_of(log, positions):
            if len(found) == most:
                more = True
                break
            found.append(message)
    if as_json:
        print_json([{**document(one, 1000), "dead_letter": _origin(one)} for one in found])
        return
    shown = table("PARTITION", "POSITION", "FROM", "ATTEMPTS", "ERROR", right=("PARTITION",))
    for one in found:
        origin = _origin(one)
        error = plain_line(origin.get("error", "-"))
        if len(error) > LONGEST_ERROR:
            error = f"{error[: LONGEST_ERROR - 1]}…"
        place = ":".join(origin[name] for name in ("queue", "partition", "position") if origin)
        shown.add_row(
            str(one["partition"]), one["position"], place or "-", origin.get("attempts", "-"), error
        )
    console.print(shown)
    if more:
        say(f"there are more than {counted(most, 'letter')}; -n shows more")


@app.command("show")
def show_letter(
    queue: QueueName,
    partition: Annotated[int, typer.Option("--partition", "-p", min=0, help="Its partition.")],
    position: Annotated[str, typer.Option(help="Its position.")],
    max_bytes: Annotated[int, typer.Option(min=0, help="The most bytes of the value.")] = 100_000,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show one letter: its value, its headers, and why it could not be handled."""
    with _opened(queue, url) as (log, _):
        found = next(messages_of(log, {partition: position}), None)
    if found is None or found["position"] != position:
        raise NoLetter(f"{queue} has no message at position {position} of partition {partition}")
    if as_json:
        print_json({**document(found, max_bytes), "dead_letter": _origin(found)})
        return
    typer.echo(text_of(found, max_bytes))
    for name, text in _origin(found).items():
        typer.echo(plain_line(f"  {name}: {text}"))


@app.command("redrive")
def redrive(
    queue: QueueName,
    to: Annotated[
        str | None,
        typer.Option(help="Send them to this queue.", show_default="the one that they come from"),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option("--max-messages", "-n", min=1, help="The most letters to send."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Send nothing; say how many would go where.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Send the letters that wait back to where they come from, and pass them here.

    Mend the consumer first: a message that fails again becomes a letter again.
    An interrupted redrive sends none twice. A message comes back behind the
    newer messages of its key. It ends with exit code 1 if it has sent less than
    it was to, and 130 if that is because of an interrupt, SIGTERM or SIGHUP.
    """
    from counterpoise.consumer import Consumer, stop_on_signals
    from counterpoise.consumer.poison import HEADER, Origin, letter_id, publish_once

    counts: Counter[str] = Counter()
    last: dict[int, str] = {}
    with _opened(queue, url) as (log, positions):
        origin = Origin(queue, "redrive", log.bounds([]).incarnation)
        for message in messages_of(log, positions):
            counts[_target(queue, message, to)] += 1
            last[message["partition"]] = message["position"]
            if counts.total() == most:
                break
        # One message of each partition, from its last letter on.
        ends = log.limit(last, len(last))
    with Client(url, timeout_seconds=TIMEOUT_SECONDS) as client:
        for target in counts:
            client.log_access(target, "publish")
        flows = [] if dry_run else list(client.flows(queue, max_items=1))
    if dry_run or not counts:
        _report(queue, counts, "would be sent" if dry_run else "sent", as_json)
        return
    if flows:
        raise LettersTaken(
            f"{queue} is consumed by {flows[0].client_name!r}, which would take some of the "
            f"letters: stop its consumers first ('counterpoise consumers list {queue}')"
        )
    # By partition and position: after a handoff a letter may come again.
    sent: dict[tuple[int, str], str] = {}

    def send(message: Message) -> None:
        row = {"headers": message.headers, "partition": message.partition}
        target = _target(queue, {**row, "position": message.position}, to)
        headers = {
            name: text for name, text in message.headers.items() if not name.startswith(HEADER)
        }
        publish_once(
            target, letter_id(message, origin), message.value, message.key, headers, url=url
        )
        sent[message.partition, message.position] = target

    consumer = Consumer(queue, each=send, url=url, ends=ends, commit_messages=1, at_once=True)
    signals = _Signals(consumer)
    with stop_on_signals(signals):
        consumer.run(lambda: len(sent) == counts.total())
    _report(queue, Counter(sent.values()), "sent", as_json, counts.total())
    if len(sent) < counts.total():
        raise typer.Exit(130 if signals.came else 1)


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
def _opened(queue: str, url: str | None) -> Iterator[tuple[Log, dict[int, str | None]]]:
    """The log of a queue, and from where on its letters wait."""
    with Client(url, timeout_seconds=TIMEOUT_SECONDS) as client:
        view = client.log_access(queue, "read")
        positions = {one.partition: one.position for one in client.partitions(queue)}
    with opened(view) as log:
        yield log, positions


def _origin(message: dict[str, Any]) -> dict[str, str]:
    """What the headers of a letter say; empty: it is none."""
    from counterpoise.consumer.poison import HEADER

    headers = dict(message["headers"] or ())
    return {
        name.removeprefix(HEADER): text for name, text in headers.items() if name.startswith(HEADER)
    }


def _target(queue: str, message: dict[str, Any], to: str | None) -> str:
    target = to or _origin(message).get("queue")
    if target is None:
        raise NoLetter(
            f"the message at position {message['position']} of partition {message['partition']} of "
            f"{queue} is no dead letter: it does not say where it comes from. Give --to, or pass "
            "it with 'counterpoise consume' or 'counterpoise positions set'"
        )
    if target == queue:
        raise NoLetter(f"{queue} has the letters: name another queue with --to")
    return target
