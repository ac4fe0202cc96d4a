"""`Broker`: the facade that the API calls, put together from its parts.

`Calls` has all calls of one replica, by subject. `Broker` is a replica with its store, logs and
alarms, and its life: start, upkeep, stop.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from secrets import token_hex
from time import monotonic

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from broker.calls.access import QueueAccess
from broker.calls.bound_flows import BoundFlows
from broker.calls.callers import REFRESH_SECONDS, CallerCalls
from broker.calls.commit_ages import LOOK_SECONDS, CommitAges
from broker.calls.commits import CommitCalls
from broker.calls.conditions import ConditionCalls
from broker.calls.cuts import CutCalls
from broker.calls.ends import LogEnds
from broker.calls.flow_views import FlowViews
from broker.calls.flows import FlowCalls
from broker.calls.growth import ROUND_SECONDS as GROWTH_SECONDS
from broker.calls.growth import TopicGrowth
from broker.calls.key_administration import KeyAdministration
from broker.calls.letters import LetterCalls
from broker.calls.lineage import LineageCalls
from broker.calls.logs import LogCalls
from broker.calls.measurements import MeasurementCalls
from broker.calls.messages import MessageCalls
from broker.calls.mirrors import ROUND_SECONDS as MIRROR_SECONDS
from broker.calls.mirrors import Mirrors
from broker.calls.monitoring import MonitoringCalls
from broker.calls.pauses import PauseCalls
from broker.calls.pins import PinCalls
from broker.calls.positions import PositionCalls
from broker.calls.previews import PreviewCalls
from broker.calls.queues import QueueCalls
from broker.calls.readers import LogReaders, Trims
from broker.calls.updates import UpdateCalls
from broker.calls.upkeep import Upkeep
from broker.calls.views import ReadyCheck
from broker.core.commands import Quota
from broker.core.errors import BrokerError
from broker.logs.builtin import BuiltinLogs
from broker.logs.by_kind import LogsByKind
from broker.logs.database import CALL_SECONDS, log_engine, open_first, within
from broker.logs.external import ExternalLogs
from broker.logs.ports import LogDatabaseUnavailable, Logs
from broker.logs.positions import Reach
from broker.logs.roles import WATCH_SECONDS
from broker.postgres import checks, migrations, pools, restoring
from broker.postgres.checks import REPORTER
from broker.replica.alarms import Alarms, SchedulerAlarms
from broker.replica.events import EventCounters
from broker.replica.replica import Replica
from broker.settings import Settings
from broker.store.measurements import ROUND_SECONDS
from broker.store.ports import StoreUnavailable
from broker.store.postgres import PostgresStore

_log = structlog.get_logger()
UPKEEP_SECONDS = 60.0
ENDED_KEYS_SECONDS = 2.0
GONE_SECONDS = 24 * 3600.0
# A retry that comes later than this would be appended a second time.
PUBLISHER_SECONDS = 30 * 24 * 3600.0
# How long it may take to notice that the tables were migrated past what this version serves, or
# that the database cannot write.
FIT_SECONDS = 5.0


class Calls:
    """The calls of a replica, by what they are about; see `broker.calls.views` for their results.

    Every call raises the errors of `broker.core.errors`: QueueNotFound for a queue that does not
    exist, Unavailable while the database cannot be reached, and those named at the call.
    """

    def __init__(self, replica: Replica, logs: Logs, quota: Quota | None = None) -> None:
        """`quota` is what each key may do in a queue; None: whatever it likes."""
        self.replica = replica
        access, reach = QueueAccess(replica), Reach(logs)
        readers, trims = LogReaders(access), Trims(access.store, logs)
        cuts = CutCalls(access, logs, readers)
        replica.settle_cuts = cuts.settle
        self.callers = CallerCalls(access)
        self.key_administration = KeyAdministration(access)
        previews = PreviewCalls(access, logs)
        self.queues = QueueCalls(access, logs, readers, cuts, trims, previews)
        self.pauses = PauseCalls(access, previews)
        self.pins = PinCalls(access, previews)
        self.positions = PositionCalls(access, logs, cuts, trims)
        self.logs = LogCalls(access, logs, readers)
        self.log_upkeep = Upkeep(access, logs, readers, cuts, trims)
        self.monitoring = MonitoringCalls(access, logs)
        self.messages = MessageCalls(access, logs, self.logs)
        self.letters = LetterCalls(access, logs, self.logs, self.positions)
        self.measurements = MeasurementCalls(access, self.monitoring)
        self.mirrors = Mirrors(access, logs)
        self.growth = TopicGrowth(access, logs)
        self.lineage = LineageCalls(access, logs, readers, previews)
        ends = LogEnds(access.store, logs)
        self.bound_flows = bound = BoundFlows(access)
        self.flow_views = views = FlowViews(access, bound)
        self.conditions = ConditionCalls(access, bound)
        self.updates = UpdateCalls(access, bound, views)
        self.commit_ages = CommitAges(access, logs)
        self.commits = CommitCalls(access, bound, views, cuts, reach, self.commit_ages)
        self.flows = FlowCalls(access, logs, bound, views, cuts, ends, reach, quota, previews)


class Broker(Calls):
    """One replica of the service: its calls, and its life."""

    _log_engines: tuple[AsyncEngine, ...] = ()

    def __init__(
        self, settings: Settings, store: PostgresStore | None = None, alarms: Alarms | None = None
    ) -> None:
        """`settings.database_url` must be set. Alarms may be others than those of APScheduler."""
        assert settings.database_url is not None
        url = settings.database_url.get_secret_value()
        alarms = alarms or SchedulerAlarms()
        self._store = store or PostgresStore(url, pool_size=settings.database_pool_size)
        log_url = settings.log_database_url
        address = log_url.get_secret_value() if log_url else url
        self._log_engines = log_engine(address), log_engine(address, tested=False)
        log_urls = settings.log_urls.get_secret_value() if settings.log_urls else ""
        builtin = BuiltinLogs(
            self._log_engines[0],
            address,
            making=self._log_engines[1],
            tls=settings.tls_cert is not None,
            connections=settings.log_connections,
        )
        logs = LogsByKind(builtin, ExternalLogs(log_urls), settings.log_keep_messages)
        replica = Replica(self._store, alarms, partial(token_hex, 16))
        self._store.count_round_trips(replica.tally.round_trip.observe)
        self._assemble(settings, replica, alarms, logs)
        self._fit_until = 0.0
        self._identity: str | None = None

    def _assemble(
        self, settings: Settings, replica: Replica, alarms: Alarms, logs: LogsByKind
    ) -> None:
        """The calls, whatever the parts are (`broker.testing.service` has others)."""
        super().__init__(replica, logs, Quota(settings.key_flows, settings.key_moves))
        self._settings, self._alarms, self._logs_by_kind = settings, alarms, logs

    async def start(self) -> None:
        """Begins to serve. Raises StoreUnavailable."""
        await self.replica.start()
        await self.callers.refresh()
        await open_first(*self._log_engines)
        self._alarms.every("keys", REFRESH_SECONDS, self.callers.refresh)
        self._alarms.every("upkeep", UPKEEP_SECONDS, self.upkeep)
        self._alarms.every("measurements", ROUND_SECONDS, self.measure)
        self._alarms.every("commit ages", LOOK_SECONDS, self.commit_ages.look)
        self._alarms.every("mirrors", MIRROR_SECONDS, self.mirror)
        self._alarms.every("growth", GROWTH_SECONDS, self.growth.round)
        self._alarms.every("log sessions", WATCH_SECONDS, self._logs_by_kind.watch)
        self._alarms.every("log credentials", ENDED_KEYS_SECONDS, self.logs.end_credentials_of_keys)

    async def stop(self) -> None:
        """Finishes what is under way and stops."""
        await self.mirrors.stop()
        await self.growth.stop()
        await self.replica.stop()
        for engine in self._log_engines:
            await pools.close(engine)
        self._logs_by_kind.close()

    async def upkeep(self) -> None:
        """What has to be done now and then: the logs' counts and trimming, and forgetting what is
        old. A step that fails keeps no other from being done.
        """
        now = self.replica.clock.now()
        kept = self._settings.history_days * 86400
        store = self.replica.store
        for step in (
            self.log_upkeep.maintain,
            self.logs.end_credentials,
            partial(self._logs_by_kind.forget, PUBLISHER_SECONDS),
            # The history names flows that have left.
            partial(store.purge, now - max(GONE_SECONDS, kept), now - kept),
            partial(store.keys.purge, now - self._settings.audit_days * 86400),
        ):
            try:
                await step()
            except (BrokerError, StoreUnavailable) as error:
                _log.warning("the upkeep was cut short", error=str(error))
            except Exception:
                _log.exception("a step of the upkeep failed")

    async def measure(self) -> None:
        """Stores the ages that this replica has sampled; takes a round of measurements, if it is
        this replica's.
        """
        try:
            await self.commit_ages.store()
            await self.measurements.take()
        except StoreUnavailable as error:
            _log.warning("a round of measurements was cut short", error=str(error))

    async def mirror(self) -> None:
        """Takes a round of the mirrors, if they are this replica's."""
        # The sweep says that the database is away.
        with suppress(StoreUnavailable):
            await self.mirrors.round()

    def is_reachable(self) -> bool:
        """Whether the database has answered this replica's look, once a second, lately."""
        return self.replica.clock.fresh

    @property
    def tally(self) -> EventCounters:
        """What this replica has committed, for the metrics."""
        return self.replica.tally

    async def ready_check(self) -> ReadyCheck:
        """Whether the database is reachable and its tables are what this version needs.

        As the calls do, it uses the connections that are open: a server that has no slot for
        another one is no outage.
        """
        try:
            await self.replica.store.pulse()
            if self._fit_until < monotonic():
                problem = await self._problem()
                if problem is not None:
                    return ReadyCheck(True, False, problem)
                self._fit_until = monotonic() + FIT_SECONDS
        except (StoreUnavailable, LogDatabaseUnavailable) as error:
            if isinstance(error, LogDatabaseUnavailable):
                REPORTER.report(str(error), None)
            return ReadyCheck(False, False, "The database cannot be reached.")
        return ReadyCheck(True, True, identity=self._identity)

    async def _problem(self) -> str | None:
        """Why the databases cannot be served. Raises StoreUnavailable, LogDatabaseUnavailable.

        Anybody may ask, so it neither says where a database is nor what it said.
        """
        asked = self._store.asked
        levels = {migrations.CONTROL: await asked(partial(migrations.level_of, migrations.CONTROL))}
        async with within(CALL_SECONDS), self._log_engines[0].begin() as log:
            level_of_log = partial(migrations.level_of, migrations.LOG)
            levels[migrations.LOG] = await log.run_sync(level_of_log)
        if unfit := await asyncio.to_thread(migrations.unfit_at, levels):
            return " ".join(each.why for each in unfit)
        if (refusal := await asked(checks.why_not_writing)) is not None:
            REPORTER.report(*refusal)
            return "The database cannot write."
        if await asked(restoring.moved):
            return restoring.NOT_FENCED
        self._identity = await asked(restoring.identity)
        return None
