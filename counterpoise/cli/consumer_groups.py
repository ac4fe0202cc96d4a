"""Moving between a queue and a consumer group of Kafka: `queues create … --from-group` and
`positions export … --to-group`.

**Nothing is lost and nothing comes twice** if only one side works at a time. So a group with active
members is refused, and so is an export of a queue with bound consumers. Members are asked for
first: once there are none, the offsets stay as they are read. A new queue is created together with
its positions, in one transaction of the service, so no consumer begins elsewhere.

An offset and a position both are the next message to read, so they are passed on as they are, with
three exceptions, which are told:

* A partition without an offset begins as `--start` says. A partition without a position is given
  what the queue's consumers would read next, which is the first message.
* Before the first message of the topic: the first message. The messages in between are gone, and a
  consumer that finds them missing would stop, or jump to the end (`auto.offset.reset`).
* Beyond the end: refused. The topic was made anew, or the group has read messages of a transaction
  that is still open.

The log is reached from this machine, with the credentials that its consumers would use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, cast

import click

from counterpoise.cli.options import json_option, queue_argument, service_options
from counterpoise.cli.output import count_text, counted, position_text, print_json
from counterpoise.cli.tables import console, table
from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError
from counterpoise.logs import LogError, LogRefused, open_log
from counterpoise.logs.address import ENVIRONMENT, kind_of

if TYPE_CHECKING:
    from counterpoise.logs.kafka import KafkaLog

TIMEOUT_SECONDS = 20.0
MOST_NAMED = 5
_STOP = "stop them first ('counterpoise flows list' shows them)"
_REMEDIES = {
    "offset": "set another offset of the group (kafka-consumer-groups --reset-offsets)",
    "position": "set another position ('counterpoise positions set')",
}


@dataclass(frozen=True)
class Begin:
    """Where a partition begins on the other side, and the messages from there to the end.

    `given` is its offset or position on this side, None without one. `lost`: at most so many
    messages after it are not in the log any more. `begin` None: as the queue's `start` says.
    """

    partition: int
    given: str | None
    begin: str | None
    lag: int
    lost: int = 0


@dataclass(frozen=True)
class Transfer:
    """What is passed on. `refused`: why a dry run would be refused without `--dry-run`."""

    group: str
    begins: Sequence[Begin]
    refused: list[str] = field(default_factory=list)

    @property
    def positions(self) -> dict[str, str]:
        """Where partitions begin, by number, as a new queue takes it."""
        return {str(one.partition): one.begin for one in self.begins if one.begin is not None}

    @property
    def lag(self) -> int:
        return sum(one.lag for one in self.begins)

    def document(self) -> dict[str, Any]:
        """The transfer as JSON."""
        return {
            "group": self.group,
            "partitions": [asdict(one) for one in self.begins],
            "refused": self.refused,
        }

    def show(self, what: str, without: str) -> None:
        """Print it for people. `what` is given: "offset" or "position"; `without`: what happens to
        partitions without one."""
        none = position_text(None) if what == "position" else "-"
        columns = ("PARTITION", what.upper(), "BEGINS AT", "LAG")
        shown = table(*columns, right=columns)
        for one in self.begins:
            shown.add_row(
                str(one.partition),
                one.given or none,
                one.begin or f"({without})",
                count_text(one.lag),
            )
        console.print(shown)
        if some := [one for one in self.begins if one.given is None]:
            console.print(f"{_partitions(some)} without {what}: {without}")
        if some := [one for one in self.begins if one.lost]:
            lost = counted(sum(one.lost for one in some), "message")
            console.print(
                f"{_partitions(some)} whose {what} is before the first message: at most {lost} "
                "cannot be read any more; the first message is taken"
            )
        for why in self.refused:
            console.print(f"without --dry-run this is refused now: {why}")


def offsets_of_group(log: str, group: str, start: str, *, dry_run: bool) -> Transfer:
    """What a new queue on the log takes over if it continues where the group has stopped.

    `start`: of partitions without an offset. Raises CounterpoiseError, and LogError if
    this machine cannot ask the log.
    """
    refused: list[str] = []
    with _opened(log) as opened:
        found = opened.consumer_group(group)
        _refuse_members(group, found.members(), refused if dry_run else None)
        offsets = found.offsets()
        if not offsets:
            raise CounterpoiseError(
                f"the consumer group {group!r} has no offset in topic {opened.name!r}; check the "
                "name. Kafka forgets the offsets of a group without members after "
                "offsets.retention.minutes (7 days)",
            )
        bounds = opened.bounds(range(opened.bounds([]).partition_count))
    given = {number: offsets.get(number) for number in bounds.ends}
    missing = {} if start == "earliest" else bounds.ends
    begins = _begins("offset", given, bounds.starts, bounds.ends, missing)
    # As for every new queue, the service decides for them, when the queue is created.
    begins = [
        one if one.given is not None else Begin(one.partition, None, None, one.lag)
        for one in begins
    ]
    return Transfer(group, begins, refused)


@click.command("export")
@queue_argument
@click.option("--to-group", required=True, metavar="GROUP", help="The consumer group.")
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would be stored.")
@service_options
@json_option
def export_positions(
    queue: str, to_group: str, dry_run: bool, url: str | None, as_json: bool
) -> None:
    """Store the positions of a queue as the offsets of a consumer group of Kafka.

    Stop the queue's consumers first, and the group's. Then the group continues
    exactly where the queue has stopped. Offsets that the group has in the topic
    are replaced.
    """
    refused: list[str] = []
    with Client(url) as client:
        before = client.queue(queue)
        if kind_of(before.log) != "kafka":
            raise click.BadParameter(
                f"the log of {queue} is {before.log}; only logs in Kafka have consumer groups",
                param_hint="--to-group",
            )
        if before.flow_count:
            bound = f"{queue} has {counted(before.flow_count, 'bound consumer')}; {_STOP}"
            _refuse(bound, refused if dry_run else None)
        positions = {one.partition: one.position for one in client.partitions(queue)}
        with _opened(before.log) as opened:
            group = opened.consumer_group(to_group)
            _refuse_members(to_group, group.members(), refused if dry_run else None)
            # The queue may not know yet that the topic has grown.
            count = max(len(positions), opened.bounds([]).partition_count)
            bounds = opened.bounds(range(count))
            given = {
                number: None if (at := positions.get(number)) is None else opened.number(at)
                for number in range(count)
            }
            begins = _begins("position", given, bounds.starts, bounds.ends)
            transfer = Transfer(to_group, begins, refused)
            if not dry_run:
                group.store({int(number): int(at) for number, at in transfer.positions.items()})
        # A bind is a revision.
        if not dry_run and client.queue(queue).revision != before.revision:
            raise CounterpoiseError(
                f"{queue} changed while its positions were stored, so a consumer may have worked; "
                f"{_STOP}, and repeat the command",
            )
    if as_json:
        print_json({"queue": queue, "dry_run": dry_run, **transfer.document()})
        return
    transfer.show("position", "what the queue would read next")
    verb = "would be stored" if dry_run else "stored"
    console.print(
        f"{queue}: {counted(len(begins), 'offset')} {verb} in the consumer group {to_group}, "
        f"{counted(transfer.lag, 'message')} behind"
    )
    if not dry_run:
        console.print(
            f"delete the queue, or leave its consumers stopped: from now on {to_group} reads "
            "these messages"
        )


def _begins(
    what: str,
    given: Mapping[int, int | None],
    starts: Mapping[int, str],
    ends: Mapping[int, str],
    missing: Mapping[int, str] | None = None,
) -> list[Begin]:
    """Where the partitions begin. `missing`: of those without one, else the first message.

    Raises CounterpoiseError.
    """
    begins = []
    for partition, at in sorted(given.items()):
        first, end = int(starts[partition]), int(ends[partition])
        if at is None:
            begin = int((missing or {}).get(partition, first))
            begins.append(Begin(partition, None, str(begin), end - begin))
        elif at > end:
            raise CounterpoiseError(
                f"partition {partition} of the topic ends at {end}, and the {what} {at} is beyond "
                "that: the topic was made anew, or a transaction is still open. Wait for the end "
                f"of the transaction, or {_REMEDIES[what]}",
            )
        else:
            begin = max(at, first)
            begins.append(Begin(partition, str(at), str(begin), end - begin, begin - at))
    return begins


def _partitions(some: Sequence[Begin]) -> str:
    named = ", ".join(str(one.partition) for one in some[:MOST_NAMED])
    more = ", …" if len(some) > MOST_NAMED else ""
    return f"{counted(len(some), 'partition')} ({named}{more})"


def _refuse_members(group: str, members: Sequence[str], refused: list[str] | None) -> None:
    if members:
        named = "; ".join(members[:MOST_NAMED]) + ("; …" if len(members) > MOST_NAMED else "")
        _refuse(
            f"the consumer group {group!r} has {counted(len(members), 'active member')} ({named}); "
            "stop these consumers first. Kafka notices a killed one after its session.timeout.ms",
            refused,
        )


def _refuse(why: str, refused: list[str] | None) -> None:
    """Raises CounterpoiseError; a dry run only notes it in `refused`."""
    if refused is None:
        raise CounterpoiseError(why)
    refused.append(why)


@contextmanager
def _opened(log: str) -> Iterator[KafkaLog]:
    """The log in Kafka. Its errors say what to check."""
    opened = cast("KafkaLog", open_log(log, timeout_seconds=TIMEOUT_SECONDS))
    try:
        yield opened
    except LogRefused:
        raise  # by a cluster that was reached
    except LogError as error:
        access = "check" if os.environ.get(ENVIRONMENT) else "if it needs credentials, set"
        error.add_note(f"check that this machine reaches {log}; {access} {ENVIRONMENT}")
        raise
    finally:
        opened.close()
