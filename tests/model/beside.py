"""Cases that are checked one by one beside something else, with what it leaves of a processor."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.model.checker import Case, Commands, Outcome, check

# It may be left with nothing for long.
_SECONDS = 3600.0


class Beside:
    """What `check` says of each of these cases."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._commands = Commands(_SECONDS, niceness=19)
        self._thread = ThreadPoolExecutor(1, "model")
        self._outcomes = {
            case: self._thread.submit(check, case, commands=self._commands) for case in cases
        }

    def outcome(self, case: Case) -> Outcome:
        """Waits for it. Raises as `check` does."""
        return self._outcomes[case].result()

    def stop(self) -> None:
        """Ends what still runs."""
        self._commands.stop()
        self._thread.shutdown(cancel_futures=True)
