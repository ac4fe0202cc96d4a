"""The processes that the demo starts, and the only ones that it ends.

Each is the leader of its own session. So Ctrl-C in the terminal reaches only the scenario, and the
children of a process (Spark's JVM and its Python workers) can be identified by the session.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

LOG_TAIL_LINES = 15


class DemoProcess:
    """A process with a log file. Its standard input ends when the scenario ends in any way."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = log
        self._lines: list[str] = []
        self._gone = False
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=dict(environment),
                cwd=log.parent,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return self._process.poll()

    def last_after(self, prefix: str) -> str | None:
        """What follows this prefix in the last line of its standard output that has it."""
        for line in reversed(self._lines):
            if line.startswith(prefix):
                return line.removeprefix(prefix)
        return None

    def output(self, seconds: float) -> str:
        """Its whole standard output, once it has ended; waits for it for so long."""
        self._reader.join(seconds)
        return "\n".join(self._lines)

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def terminate(self) -> None:
        """Ask it to stop in order."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL for the process and all its children at one moment. Once: later its id may be a
        stranger's.
        """
        if self._gone:
            return
        while running := list(session(self.pid)):
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.02)
        self._process.wait()
        self._gone = True
        self._close()

    def stop(self, grace_seconds: float) -> int:
        """Ask it to stop and wait; after `grace_seconds` kill it. Returns the exit code."""
        self.terminate()
        return self.end(grace_seconds)

    def end(self, grace_seconds: float) -> int:
        """Wait until it has ended; after `grace_seconds` kill it. Returns the exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_seconds)
        self.kill()
        return self._process.returncode

    def tail(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self.log.open("ab") as log, contextlib.suppress(ValueError):
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                self._lines.append(line.decode(errors="replace").rstrip())

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):
                    stream.close()


def session(leader: int) -> Iterator[int]:
    """All processes in the session of this process, which may have ended already."""
    for pid in _all_processes():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader and not _is_zombie(pid):
                yield pid


def _all_processes() -> list[int]:
    if Path("/proc/self").exists():
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    listing = subprocess.run(["ps", "-A", "-o", "pid="], capture_output=True, text=True, check=True)
    return [int(pid) for pid in listing.stdout.split()]


def _is_zombie(pid: int) -> bool:
    """Whether the process is a zombie."""
    with contextlib.suppress(OSError):
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    return False


def stop_all(children: Sequence[DemoProcess], grace_seconds: float) -> None:
    """Stop them together; each gets the same grace."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + grace_seconds
    for child in children:
        # No second signal: it would end a Python that is shutting down at once.
        child.end(max(0.0, deadline - time.monotonic()))
