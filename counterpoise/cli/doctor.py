"""`counterpoise doctor`: checks what a consumer or publisher on this machine needs.

Each check is a `Finding`: fine, a warning (it works, and may surprise), wrong (it does not work) or
skipped (it could not be checked, or does not apply). A finding that is not fine says what to do.
The order is that of the causes: this program, the service, its database, the logs, Spark. A check
that needs an earlier one is left out when that one failed, so each cause is named once.
"""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Literal

import click
from rich.console import Group
from rich.text import Text

from counterpoise import __version__
from counterpoise.cli.lag import PartitionLag, lag_of
from counterpoise.cli.options import json_option, service_options
from counterpoise.cli.output import (
    counted,
    duration,
    held_back_text,
    how_to_reach,
    print_json,
)
from counterpoise.cli.pauses import pause_text
from counterpoise.cli.reading import messages_of, opened
from counterpoise.cli.tables import console, table
from counterpoise.client import Client, token_of_environment
from counterpoise.errors import CounterpoiseError, QueueUnreadable, Refused, ServiceUnavailable
from counterpoise.logs import LogError
from counterpoise.logs.address import environment_access, kind_of
from counterpoise.plain import plain_line
from counterpoise.wire import LogView, Queue

State = Literal["fine", "warning", "wrong", "skipped"]
STYLES = {"fine": "green", "warning": "yellow", "wrong": "bold red", "skipped": "dim"}

TOKEN = "COUNTERPOISE_TOKEN"
TIMEOUT_SECONDS = 5.0
# A `Date` has whole seconds, and the answer was on its way.
CLOCKS_APART_SECONDS = 3.0
MOST_QUEUES = 50
# Of a retry queue with more, what is set aside is not counted.
MOST_RECORDS = 100_000
# By kind of condition; {} is the queue.
ADVICE = {
    "quarantined": "look at the message, mend the consumer or pass the message by with "
    "'counterpoise positions set {}', and restart the consumer",
    "invalid_position": "set a position of the log: counterpoise positions set {} earliest "
    "--dry-run",
    "end_refused": "see what the queue knows: counterpoise lineage {}; if it contradicts the log, "
    "make a new queue that reads this log",
    "rows_dropped": "count in the sink (FencedAggregate), or make the queue exclusive: what "
    "was dropped is missing in the result",
    "state_lost": "what a query kept of these messages is not in its result: count in the sink "
    "(FencedAggregate), or start it again with a new checkpoint and the positions at earliest",
    "resize_paused": "when the pause is no longer needed: counterpoise queues resume {}",
    "over_capacity": "start another consumer, or raise max_partitions of those that run: "
    "counterpoise flows list {}",
    "pin_unmet": "start the consumer, or counterpoise queues unpin {} --partition N",
    "log_away": "see whether the log runs, and whether the consumer's machine reaches it",
}
_REFUSED = re.compile(r'^counterpoise_http_refused_total\{limit="([^"]*)"\} (\S+)', re.MULTILINE)
_VERSION = re.compile(r'^counterpoise_build_info\{version="([^"]*)"\}', re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """One check: what was found, and what to do about it."""

    check: str
    state: State
    found: str
    advice: str = ""


@click.command("doctor")
@click.option(
    "--queue",
    multiple=True,
    show_default="all",
    help="Check only the log of this queue (may be repeated).",
)
@service_options
@json_option
def doctor(queue: tuple[str, ...], url: str | None, as_json: bool) -> None:
    """Check this machine, the service, its database, the logs and Java; say what is wrong.

    Exit code 1 if something is wrong.
    """
    findings = list(_examine(url, queue))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        shown = table("CHECK", "", "FOUND")
        for finding in findings:
            lines = [Text(plain_line(finding.found))]
            if finding.advice:
                lines.append(Text(plain_line(f"→ {finding.advice}"), style="bold"))
            shown.add_row(
                finding.check, Text(finding.state, style=STYLES[finding.state]), Group(*lines)
            )
        console.print(shown)
    if any(finding.state == "wrong" for finding in findings):
        raise click.exceptions.Exit(1)


def _examine(url: str | None, names: Sequence[str]) -> Iterator[Finding]:
    yield _program()
    with Client(url, timeout_seconds=TIMEOUT_SECONDS) as client:
        service, *more = _service(client)
        yield service
        yield from more
        if service.state != "wrong":
            yield from _queues(client, names)
    yield from _spark()


# ------------------------------------------------------------------ this program


def _program() -> Finding:
    python = f"Python {platform.python_version()}"
    found = f"counterpoise {__version__}, {python} on {platform.system()}"
    server = _installed("counterpoise-server")
    if server is not None and server != __version__:
        return Finding(
            "program",
            "warning",
            f"{found}; counterpoise-server {server}",
            "install both in one version: pip install --upgrade counterpoise counterpoise-server",
        )
    return Finding("program", "fine", found)


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# ------------------------------------------------------------------ the service


def _service(client: Client) -> Iterator[Finding]:
    root = client.url.removesuffix("/v1")
    try:
        asked_at = time.time()
        ready = client.probe("/readyz")
        answered_at = time.time()
    except ServiceUnavailable as error:
        yield Finding("service", "wrong", str(error), how_to_reach(error))
        return
    body = _json_of(ready.text)
    if ready.status not in (200, 503) or not ({"status", "code"} & body.keys()):
        yield Finding(
            "service",
            "wrong",
            f"HTTP {ready.status} from {root}, and it does not look like Counterpoise",
            "check the address, and whether a proxy in between passes /readyz and /v1 on",
        )
        return
    yield Finding("service", "fine", f"answers at {root} in {answered_at - asked_at:.2f} s")
    if ready.status == 200:
        yield Finding("database", "fine", "reachable, and its tables are for this service")
    else:
        yield Finding(
            "database",
            "wrong",
            str(body.get("detail") or "the service is not ready"),
            "look at the log of the service; consumers keep working on their partitions meanwhile",
        )
    yield _clocks(ready.date, asked_at, answered_at)
    try:
        metrics = client.probe("/metrics")
    except ServiceUnavailable as error:
        yield Finding("versions", "skipped", str(error))
        return
    if metrics.status != 200:
        yield Finding("versions", "skipped", f"/metrics answers HTTP {metrics.status}")
        return
    yield _versions(metrics.text)
    yield from _refusals(metrics.text)


def _json_of(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _clocks(date: str | None, asked_at: float, answered_at: float) -> Finding:
    """Whether the service's host and this one tell about the same time.

    Nothing depends on it (docs/operations.md, *Clocks*), but times are shown by it, and the
    credentials of logs and certificates are valid by it.
    """
    try:
        told = parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return Finding("clocks", "skipped", "the service does not tell its time")
    apart = (asked_at + answered_at) / 2 - (told + 0.5)
    if abs(apart) <= CLOCKS_APART_SECONDS:
        return Finding("clocks", "fine", "this machine and the service tell the same time")
    return Finding(
        "clocks",
        "warning",
        f"the clock of this machine is {abs(apart):.0f} s {'ahead' if apart > 0 else 'behind'}",
        "let both follow a time server; leases and deadlines are right nevertheless, but the "
        "times that commands show are off",
    )


def _versions(metrics: str) -> Finding:
    ours, found = __version__, _VERSION.search(metrics)
    if found is None:
        return Finding("versions", "skipped", "the service does not tell its version")
    if found[1] == ours:
        return Finding("versions", "fine", f"the service is {found[1]}, as this program is")
    return Finding(
        "versions",
        "warning",
        f"the service is {found[1]}, this program is {ours}",
        "they work together while an upgrade is under way; upgrade the older one",
    )


def _refusals(metrics: str) -> Iterator[Finding]:
    """Which limits the replica that answers has refused requests for, since its start."""
    counts = {limit: round(float(count)) for limit, count in _REFUSED.findall(metrics)}
    told = ", ".join(f"{limit} {count:,}" for limit, count in sorted(counts.items()) if count)
    if told:
        yield Finding(
            "limits",
            "warning",
            f"requests refused since the service started, by limit: {told}",
            "docs/operations.md, Overload, says what each limit is for and which setting raises it",
        )


# ------------------------------------------------------------------ queues and their logs


def _queues(client: Client, names: Sequence[str]) -> Iterator[Finding]:
    queues: list[Queue] = []
    try:
        for name in names:
            try:
                queues.append(client.queue(name))
            except QueueUnreadable as error:
                yield _unreadable(name, error)
        if not names:
            queues = client.queues(max_items=MOST_QUEUES + 1)
    except Refused as error:
        advice = "'counterpoise queues list' shows the queues"
        if error.status in (401, 403):
            given = token_of_environment() is not None
            advice = (
                f"check the key in {TOKEN}, or in the file that {TOKEN}_FILE names"
                if given
                else f"set {TOKEN} to a key for these queues"
            )
        yield Finding("queues", "wrong", str(error), advice)
        return
    except CounterpoiseError as error:
        yield Finding("queues", "skipped", str(error))
        return
    if not queues and not names:
        yield Finding("queues", "fine", "none yet", "counterpoise queues create NAME -p PARTITIONS")
    for queue in queues[:MOST_QUEUES]:
        log, *more = _log(client, queue)
        yield log
        yield from more
        if log.state in ("fine", "warning"):
            yield from _replicas(queue)
        yield from _conditions(client, queue)
        yield from _held_back(client, queue)
        yield from _paused(queue)
    if len(queues) > MOST_QUEUES:
        yield Finding("queues", "skipped", "there are more queues", "name them with --queue")


def _unreadable(name: str, error: QueueUnreadable) -> Finding:
    return Finding(
        f"queue {name}", "wrong", str(error), f"counterpoise queues delete {name} --force"
    )


def _log(client: Client, queue: Queue) -> Iterator[Finding]:
    """Whether this machine reads the log of a queue, and the positions are positions of it. Of a
    retry queue also what waits in it.
    """
    check = f"log of {queue.name}"
    try:
        view, rows = lag_of(client, queue.name)
    except LogError as error:
        yield Finding(check, "wrong", str(error), "consumers on this machine cannot read it")
        return
    except QueueUnreadable as error:
        yield _unreadable(queue.name, error)
        return
    except CounterpoiseError as error:
        yield Finding(check, "skipped", str(error))
        return
    beyond = [row.partition for row in rows if row.lag is None]
    if beyond:
        yield Finding(
            check,
            "wrong",
            f"{counted(len(beyond), 'position')} beyond the end of {view.log}: it was made anew, "
            "or has lost messages",
            f"counterpoise positions set {queue.name} earliest --dry-run",
        )
        return
    # Other logs keep what a queue has not processed.
    passed = [row for row in rows if row.is_passed and kind_of(view.log) == "kafka"]
    if passed:
        yield Finding(
            check,
            "wrong",
            f"{counted(len(passed), 'position')} before the first message of {view.log}: its "
            "retention has removed messages that were not processed. Partition "
            f"{passed[0].partition} begins at {passed[0].first}, its position is "
            f"{passed[0].position}, and consumers stop there",
            f"counterpoise positions set {queue.name} earliest --partition {passed[0].partition} "
            "--dry-run",
        )
        return
    yield from _waking(queue, view, rows)
    lag = sum(row.lag or 0 for row in rows)
    found = f"{view.log} can be read; {counted(lag, 'message')} behind"
    waiting = [*_set_aside(queue, view, rows)] if lag else []
    if waiting or queue.flow_count:
        yield Finding(check, "fine", f"{found}, {counted(queue.flow_count, 'consumer')}")
        yield from waiting
    elif lag:
        yield Finding(check, "warning", f"{found}, and no consumer is bound", "start one")
    else:
        yield Finding(check, "fine", f"{found}, no consumer is bound and none is needed")


def _waking(queue: Queue, view: LogView, rows: list[PartitionLag]) -> Iterator[Finding]:
    """Whether the log wakes consumers on this machine; of Kafka every client is woken."""
    if not rows or kind_of(view.log) == "kafka":
        return
    try:
        with opened(view) as log:
            wakes = log.glance({row.partition: row.end for row in rows}) is not None
    except LogError as error:
        yield Finding(f"wake-ups of {queue.name}", "skipped", str(error))
        return
    if not wakes:
        yield Finding(
            f"wake-ups of {queue.name}",
            "warning",
            f"{view.log} wakes no consumer on this machine: consumers here ask every 0.2 s whether "
            "there are messages",
            "give consumers the right to call XREAD (+@read)"
            if kind_of(view.log) == "redis"
            else "give consumers the address of the primary Postgres itself: no notification comes "
            "from a standby or through a connection pooler",
        )


def _set_aside(queue: Queue, view: LogView, lags: list[PartitionLag]) -> Iterator[Finding]:
    """Of a retry queue, how many messages of which queue are set aside in it.

    The service does not know which queue is one. Its records say it, and what is done.
    """
    from counterpoise.consumer.poison import WrongQueue
    from counterpoise.consumer.retry_queue import Records, is_record, rows

    positions = {one.partition: one.position for one in lags if one.lag}
    check, records = f"retries in {queue.name}", Records(queue.name, lambda _: False)
    try:
        with opened(view) as log:
            first = next(messages_of(log, positions), None)
            if first is None or not is_record(first):
                return  # also if a stranger has written a part of the headers of one
            if sum(one.lag or 0 for one in lags) > MOST_RECORDS:
                yield Finding(check, "skipped", f"there are more than {MOST_RECORDS:,} records")
                return
            for some in rows(log, positions, log.bounds([*positions])):
                for row in some:
                    records.add(row)
            oldest = {one: at for one in positions if (at := records.oldest(one)) is not None}
            ages = log.ages(oldest)
    except WrongQueue as error:
        yield Finding(check, "wrong", str(error))
        return
    except LogError:
        # Its owner has just passed what was to be read, and the log has deleted it.
        return
    counts = sorted(records.counts().items())
    if not counts:
        return
    told = ", ".join(f"{counted(count, 'message')} of {origin}" for origin, count in counts)
    since = f", the oldest for {duration(max(ages.values()))}" if ages else ""
    advice = f"'counterpoise peek {queue.name}' shows them and why they failed"
    if not queue.flow_count:
        advice = f"no consumer does it: start one of {counts[0][0]} with Retry({queue.name!r}, …)"
    yield Finding(check, "warning", f"{told} wait to be tried again{since}", advice)


def _replicas(queue: Queue) -> Iterator[Finding]:
    """Whether replicas of a topic of Kafka are out of sync."""
    if kind_of(queue.log) != "kafka":
        return
    # An optional package, which the check of the log has found.
    from counterpoise.logs.kafka import KafkaLog

    try:
        access = environment_access(queue.log)
        log = KafkaLog(queue.log, access, timeout_seconds=TIMEOUT_SECONDS)
        try:
            found = log.replication()
        finally:
            log.close()
    except LogError:
        # Answers have just come from it: this is a question too many, or for other rights.
        return
    closed, behind = found.closed(), found.behind()
    if closed:
        yield Finding(
            f"replicas of {queue.name}",
            "wrong",
            f"{counted(len(closed), 'partition')} of {queue.log} take no messages: partition "
            f"{closed[0]} has {counted(found.in_sync[closed[0]], 'replica')} in sync and needs "
            f"{found.needed or 1} (min.insync.replicas)",
            "start the brokers that are away; publishers wait meanwhile, and lose nothing",
        )
    elif behind:
        yield Finding(
            f"replicas of {queue.name}",
            "warning",
            f"{counted(len(behind), 'partition')} of {queue.log} have replicas out of sync: of "
            f"partition {behind[0]} {found.in_sync[behind[0]]} of {found.replicas[behind[0]]} are "
            "in sync",
            "see which brokers are away",
        )


def _conditions(client: Client, queue: Queue) -> Iterator[Finding]:
    """What consumers of a queue report to be wrong, if they do."""
    try:
        found = tuple(client.conditions(queue.name))
    except CounterpoiseError:
        return
    for kind in dict.fromkeys(one.kind for one in found):
        these = [one for one in found if one.kind == kind]
        first = these[0]
        where = "" if first.partition is None else f"partition {first.partition}, "
        more = f" (and {len(these) - 1} more)" if len(these) > 1 else ""
        yield Finding(
            f"{queue.name}: {kind.replace('_', ' ')}",
            "wrong",
            f"{where}{first.client_name}: {first.text}{more}",
            ADVICE.get(kind, f"'counterpoise status {queue.name}' shows all").format(queue.name),
        )


def _held_back(client: Client, queue: Queue) -> Iterator[Finding]:
    """Whether flows of a queue wait, because their keys have moved much of it."""
    try:
        held = client.rebalance_status(queue.name).held_back
    except CounterpoiseError:
        return
    if held is not None:
        yield Finding(
            f"consumers of {queue.name}",
            "warning",
            held_back_text(held),
            "find out why consumers of the key come and go; COUNTERPOISE_KEY_MOVES is the limit",
        )


def _paused(queue: Queue) -> Iterator[Finding]:
    """What an administrator holds still: it is read by nobody, as was asked for."""
    if queue.paused is not None:
        found = "the queue is paused" + pause_text(queue.paused)
    elif queue.paused_partition_count:
        found = counted(queue.paused_partition_count, "paused partition")
    else:
        return
    advice = f"'counterpoise status {queue.name}' says why; 'counterpoise queues resume' ends it"
    yield Finding(f"{queue.name}: paused", "warning", found, advice)


# ------------------------------------------------------------------ Spark


def _spark() -> Iterator[Finding]:
    installed = _installed("pyspark")
    if installed is None:
        yield Finding(
            "spark",
            "skipped",
            "PySpark is not installed here",
            "for Spark applications: pip install 'counterpoise[spark]'",
        )
        return
    from counterpoise.spark.version import HOW, RANGE, supports

    if not supports(installed):
        why = f"PySpark {installed} does not do: {RANGE} does"
        yield Finding("spark", "wrong", why, HOW)
    elif missing := [name for name in ("pandas", "google.protobuf") if _lacks(name)]:
        yield Finding(
            "spark",
            "wrong",
            f"PySpark {installed} without {' and '.join(missing)}",
            "pip install 'counterpoise[spark]'",
        )
    else:
        yield Finding("spark", "fine", f"PySpark {installed}")
    from counterpoise.spark.driver.environment import OLDEST_MAJOR, ensure_java

    home = ensure_java()
    if home is None:
        yield Finding(
            "java",
            "wrong",
            f"no Java {OLDEST_MAJOR} or newer: not in JAVA_HOME, on the PATH or as a package",
            "pip install 'counterpoise[spark]', which has one, or set JAVA_HOME",
        )
    else:
        yield Finding("java", "fine", f"runs, in {home}")


def _lacks(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:
        return True
