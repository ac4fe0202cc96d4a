"""The steps after a restore: no grant made after the backup may stay valid or be made again.

A restored database shows an earlier state. Consumers that still run, and the sinks that they wrote
to, know later grants. The database does not, and would grant the same epochs a second time, to
other flows. So before any replica serves it:

1. *Every epoch is raised above any that was ever granted.* The database cannot know those epochs. A
   count of restores in it does not help: it is restored as well, and the same backup may be
   restored twice. But time never repeats. The new epoch is the Unix time in seconds times 2^20, or
   one more than the present epoch if that is higher. After that, epochs rise by one for each grant.
   So an epoch granted later, before another restore, is below that restore's epoch, as long as a
   partition is granted less than a million times a second, and the clock has not been set back
   below the earlier restore. (`above` is for that case: the highest epoch that a sink has.)
   Until the year 2242 such epochs are below 2^53, so they are exact in JSON everywhere.
2. *Every flow ends*, with the reason `restored`: its partitions may differ from those in the
   database. Its client binds again by itself. A flow bound after the backup is not known at all.
3. *Handoffs, holddowns and rebalances end.* Partitions that had an owner are unassigned, and their
   next grant is `orphaned`: messages after the position may have been seen before.
4. *Revisions are raised in the same way*, so that revisions stored elsewhere (the partition count
   of a log that was not restored, readers of event streams) are not ahead of the queue.
5. *A restored log gets another incarnation*: publishers append other messages at the positions of
   the lost ones. Sinks and checkpoints then do not apply records of the old incarnation to it.

Before anything is changed, the tables are compared with those that migrations make (`schema`): a
restore that lost a primary key is restored again, and not served.

A restored dump is detected (`moved`): its tables are not those from which they were copied. A copy
of Postgres' own files, a disk snapshot or a standby that took over is not detected; such a database
contains no sign that time went back.

All steps are one transaction for each database, the log's first. If the second one fails, repeat
the command; a repetition only raises and ends everything again.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

import sqlalchemy
from sqlalchemy import text

from broker.postgres import schema
from broker.postgres.connections import Connection, connect
from broker.postgres.migrations import MigrationFailed, unfit
from counterpoise.logs.address import parse_log
from counterpoise.logs.groups import place

EPOCHS_PER_SECOND = 2**20
REASON = "restored"
BUILTIN = "builtin:"
SERVED_SECONDS = 3


NOT_FENCED = (
    "The tables are a copy of others, restored from a dump or moved to another database: stop "
    "every replica and run 'counterpoise migrate --after-restore', so that no grant made after "
    "the copy is valid."
)

# The cluster, the database, the table: a dump contains none of these ids.
_HERE = """concat_ws('/', (SELECT system_identifier FROM pg_control_system()),
    (SELECT oid FROM pg_database WHERE datname = current_database()),
    'counterpoise.service'::regclass::oid)"""


def identity(control: sqlalchemy.Connection) -> str | None:
    """A name of these tables that says nothing about their place; None if there are none.

    Two services have the same one if they serve the same tables. Within a transaction; blocks.
    """
    if control.scalar(text("SELECT to_regclass('counterpoise.service')")) is None:
        return None
    here = control.scalar(text(f"SELECT {_HERE}"))
    return hashlib.sha256(str(here).encode()).hexdigest()[:16]


class StillServed(Exception):
    """A service stamps this database: its memory has queues from before the restore."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """The changes. `logs`: names of built-in logs with a new incarnation; `ahead`: queues with
    positions beyond the end of their built-in log, and how many (logs of an older backup).
    """

    epochs_above: int
    queues: int
    partitions: int
    flows: int
    logs: tuple[str, ...]
    ahead: tuple[tuple[str, int], ...]


def moved(control: sqlalchemy.Connection) -> bool:
    """Whether the tables are a copy without a fence. Stores their place, once.

    The tables must be there. Within a transaction; blocks.
    """
    row = control.execute(
        text(f"SELECT home, home IS NOT DISTINCT FROM {_HERE} FROM counterpoise.service")
    ).one_or_none()
    # Without its row the copy is not even complete.
    home, here = row or ("", False)
    if home is None:
        control.execute(text(f"UPDATE counterpoise.service SET home = {_HERE} WHERE home IS NULL"))
    return home is not None and not here


def fence(
    database_url: str,
    log_database_url: str | None = None,
    *,
    above: int = 0,
    log_restored: bool | None = None,
) -> Fenced:
    """Carry out the steps after a restore. Blocks.

    `above`: an epoch that is known to have been granted. `log_restored`: whether the built-in log
    was restored too; None: if it is in the same database. Raises StillServed, DatabaseUnreachable,
    MigrationFailed.
    """
    for tree in unfit(database_url, log_database_url):
        raise MigrationFailed(tree.why)
    schema.check(database_url, log_database_url)
    if log_restored is None:
        log_restored = log_database_url is None
    with connect(database_url) as control:
        _refuse_served(control)
        if log_database_url is None:
            return _fence(control, control, above=above, log_restored=log_restored)
        with connect(log_database_url) as log:
            return _fence(control, log, above=above, log_restored=log_restored)


_STAMP = """
SELECT stamped_at, abs(extract(epoch FROM clock_timestamp()) - stamped_at) < %(seconds)s
FROM counterpoise.service WHERE id = 1
"""


def _refuse_served(control: Connection) -> None:
    """A fresh stamp may come from the backup; a renewed stamp comes from a running service."""
    first: object = None
    until = time.monotonic() + SERVED_SECONDS
    while True:
        row = control.execute(_STAMP, {"seconds": SERVED_SECONDS}).fetchone()
        control.rollback()
        if row is None or not row[1] or time.monotonic() > until:
            return
        if first is not None and row[0] != first:
            raise StillServed(
                "a service runs on this database; stop every replica before you restore, and "
                "start them after this command"
            )
        first = row[0]
        time.sleep(0.1)


# Flows that had left stay unchanged: a flow does not leave twice.
_END_FLOWS = """
UPDATE counterpoise.flows
SET reason = %(reason)s, left_at = %(now)s, active = false,
    view_revision = greatest(view_revision, %(floor)s)
WHERE reason IS NULL
"""
# Removed partitions too: they may have been used again after the backup. A waiting or finished
# partition of a dynamic queue has no owner: the order of its keys is in that state.
_END_TENURES = """
UPDATE counterpoise.partitions
SET epoch = greatest(epoch + 1, %(floor)s),
    state = CASE WHEN state IN ('removed', 'waiting', 'finished') THEN state
        ELSE 'unassigned' END,
    unowned_since = CASE WHEN state NOT IN ('removed', 'waiting', 'finished') THEN %(now)s END,
    owner = NULL, successor = NULL, deadline = NULL, handoff_since = NULL, warm = NULL,
    next_handed_over = 'orphaned', released_by = NULL, warmed_by = NULL, warmed_epoch = NULL,
    seq = NULL, done_above = NULL
"""
_SETTLE_QUEUES = """
UPDATE counterpoise.queues
SET revision = greatest(revision + 1, %(floor)s), status = 'Ready', trigger = NULL,
    since = %(now)s, holddown_until = NULL, flows_before = 0, absent = '{}', growing = false,
    last_rebalance = CASE WHEN rebalance IS NULL THEN last_rebalance
        ELSE rebalance || jsonb_build_object('finished_at', %(now)s::double precision) END,
    rebalance = NULL,
    -- Pauses go on, and end in time (`broker.store.rows`).
    next_deadline = (SELECT min((value ->> 1)::double precision) FROM jsonb_each(pauses))
"""
# The log was returned to before a resize that the queue knows: the next ones would have numbers of
# before. So the queue takes up the log's last resize, as if ordered resizes had been switched on.
_TAKE_CUTS_ANEW = """
UPDATE counterpoise.queues
SET resize_seen = 0, barriers = NULL, cuts_due = %(now)s, cuts_attempt = 0, next_deadline = %(now)s
WHERE ordered_resize AND resize_seen > coalesce((%(resizes)s::jsonb ->> log)::bigint, 0)
"""
_RESIZES = """
SELECT coalesce(jsonb_object_agg('builtin:' || name, resize), '{}')::text FROM counterpoise_log.logs
"""
_RENEW_LOGS = """
UPDATE counterpoise_log.logs SET incarnation = gen_random_uuid() RETURNING name
"""
_POSITIONS = """
SELECT q.name AS queue, q.log, p.number, p.position::numeric AS position
FROM counterpoise.queues AS q JOIN counterpoise.partitions AS p ON p.queue_id = q.id
WHERE q.log LIKE 'builtin:%' AND p.position ~ '^[0-9]+$'
"""
_ENDS = """
SELECT l.name, p.partition, p.next_position
FROM counterpoise_log.logs AS l JOIN counterpoise_log.partitions AS p USING (log_id)
"""


def _fence(
    control: Connection,
    log: Connection,
    *,
    above: int,
    log_restored: bool,
) -> Fenced:
    logs: list[str] = []
    if log_restored:
        logs = sorted(str(name) for (name,) in log.execute(_RENEW_LOGS))
    found = log.execute(_ENDS).fetchall()
    ends = {(name, number): end for name, number, end in found}
    (resizes,) = log.execute(_RESIZES).fetchone() or ("{}",)
    if log is not control:
        log.commit()
    row = control.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    assert row is not None
    now: float = row[0]
    floor = max(int(now) * EPOCHS_PER_SECOND, above + 1)
    values = {"now": now, "floor": floor, "reason": REASON}
    flows = control.execute(_END_FLOWS, values).rowcount
    partitions = control.execute(_END_TENURES, values).rowcount
    queues = control.execute(_SETTLE_QUEUES, values).rowcount
    control.execute(_TAKE_CUTS_ANEW, {"now": now, "resizes": resizes})
    ahead: dict[str, int] = {}
    names: dict[str, list[str]] = {}
    for queue, address, number, position in control.execute(_POSITIONS).fetchall():
        if address not in names:
            names[address] = [part.removeprefix(BUILTIN) for part in parse_log(address).parts]
        which, partition = place(number, len(names[address]))
        if position > ends.get((names[address][which], partition), 0):
            ahead[str(queue)] = ahead.get(str(queue), 0) + 1
    control.execute(f"UPDATE counterpoise.service SET home = {_HERE}")
    control.commit()
    return Fenced(floor - 1, queues, partitions, flows, tuple(logs), tuple(sorted(ahead.items())))
