"""The service over a database, a log and a time in memory."""

from __future__ import annotations

import itertools

from broker.calls import views
from broker.logs.by_kind import LogsByKind
from broker.logs.external import ExternalLogs
from broker.replica.replica import Replica
from broker.service import Broker
from broker.settings import Settings
from broker.testing.database import MemoryDatabase
from broker.testing.logs import MemoryLogKind
from broker.testing.process import Process, VirtualAlarms
from broker.testing.store import MemoryStore
from counterpoise.logs.memory import MemoryLogs


class MemoryBroker(Broker):
    """One replica, in virtual time: alone, it does the same at every run.

    It serves logs of other kinds (Redis, Kafka) as well, as far as they can be reached.
    """

    def __init__(
        self, settings: Settings, database: MemoryDatabase, process: Process, logs: MemoryLogs
    ) -> None:
        alarms, numbers = VirtualAlarms(process), itertools.count(1)
        store = MemoryStore(database)
        replica = Replica(store, alarms, lambda: f"commit-{next(numbers)}", process.now)
        by_kind = LogsByKind(MemoryLogKind(logs), ExternalLogs(), settings.log_keep_messages)
        self._assemble(settings, replica, alarms, by_kind)

    async def stop(self) -> None:
        """Finishes what is under way and stops."""
        await self.replica.stop()
        self._logs_by_kind.close()

    async def ready_check(self) -> views.ReadyCheck:
        """Always ready."""
        return views.ReadyCheck(True, True)
