"""The clock of leases: it goes on while the machine sleeps.

The service hands the partitions of a machine that sleeps to others. `time.monotonic` stands still
in that time, and so do all timers of `threading` and `asyncio`. By that clock, a machine that wakes
up after an hour would go on as if nothing had happened. So this clock is for all that others count
as well: leases, deadlines of handoffs, watchdogs, the age of what the service has said. No timer
goes by it, so code looks at this clock before it acts, and does not rely on a timer to tell.

`time.monotonic` is for limits on what this process itself tries, because a machine that sleeps
tries nothing: how long it asks a log or a service that does not answer.
`tests/architecture/test_clocks.py` names the modules that may use it.

No program can set this clock, so a wall clock that jumps changes nothing. It does not see that a
host has paused a virtual machine: all clocks of the guest stand still then. The epochs fence that.
"""

from __future__ import annotations

import sys
import time

if sys.platform == "linux":

    def lease_time() -> float:
        """Seconds since a point in the past, with the time in which the machine slept."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

elif sys.platform == "darwin":

    def lease_time() -> float:
        """Seconds since a point in the past, with the time in which the machine slept."""
        # mach_continuous_time. CLOCK_MONOTONIC goes on, too, but follows the wall clock.
        return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)

else:

    def lease_time() -> float:
        """Seconds since a point in the past, with the time in which the machine slept."""
        # The tick count and the performance counter of Windows count sleep and hibernation.
        return time.monotonic()
