"""The log in memory: the promises of `counterpoise.logs.port`, in one process, for tests.

`MemoryLogs` holds the logs, and is what the service administers; `MemoryLog` is how consumers and
publishers of the same process reach one of them. `counterpoise.testing` puts both together.
"""

from counterpoise.logs.memory.log import MemoryLog
from counterpoise.logs.memory.logs import MemoryLogs, opened

__all__ = ["MemoryLog", "MemoryLogs", "opened"]
