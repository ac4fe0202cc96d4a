"""Programs of this repository as processes that start in a moment.

    with Forked("counterpoise.cli", ["status", "orders"], stdout=PIPE) as process:
        ...

Half a second to two seconds of each start of a program are imports. So one process per pytest
worker (the nursery) imports them once, and a program is a fork of it, which then runs the named
module as `python -m` would: with its own arguments, environment, directory and streams. It is a
process of its own in every other respect; a test may freeze and kill it.

The nursery has a single thread, so forking it is safe; Arrow, which starts threads, is imported by
the programs themselves. It ends with the worker that started it, and kills what it has forked. The
Sparks of the tests have nurseries of their own (`tests/counterpoise/spark/jobs/pythons.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
# What programs import. None of it may start a thread, or look at this process's environment and
# streams as the commands do (`rich.Console`).
WARM = ("api.server", "broker.launch", "counterpoise.flow.blocking", "rich.live", "click")
_MOST_BYTES = 1 << 17

Stream = int | IO[Any] | None


class Forked:
    """A program in a process of its own; the methods are those of `subprocess.Popen`."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
    ) -> None:
        """A stream is a file, or `subprocess.PIPE`, or None: that of this process."""
        self.args = [module, *arguments]
        self.returncode: int | None = None
        self._ending = threading.Lock()
        request = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(os.environ if environment is None else environment),
            "directory": str(directory or Path.cwd()),
        }
        with contextlib.ExitStack() as theirs:
            self.stdin, in_ = _stream(stdin, 0, theirs)
            self.stdout, out = _stream(stdout, 1, theirs)
            self.stderr, err = _stream(stderr, 2, theirs)
            ended, end = os.pipe()
            theirs.callback(os.close, end)
            self._ended = os.fdopen(ended)
            _nursery().fork(request, [in_, out, err, end])
        self.pid = int(self._ended.readline())

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._end(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        code = self._end(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def _end(self, seconds: float | None) -> int | None:
        with self._ending:
            if self.returncode is None:
                with selectors.DefaultSelector() as selector:
                    selector.register(self._ended, selectors.EVENT_READ)
                    if not selector.select(seconds):
                        return None
                self.returncode = int(self._ended.readline() or -signal.SIGKILL)
                self._ended.close()
            return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it writes until it ends; a pipe of its input is closed first.

        Raises subprocess.TimeoutExpired.
        """
        if self.stdin is not None:
            self.stdin.close()
        said = {1: "", 2: ""}

        def read(number: int, stream: IO[str]) -> None:
            said[number] = stream.read()

        streams = {1: self.stdout, 2: self.stderr}
        threads = [
            threading.Thread(target=read, args=(number, stream))
            for number, stream in streams.items()
            if stream is not None and not stream.closed
        ]
        for thread in threads:
            thread.start()
        self.wait(timeout)
        for thread in threads:
            thread.join()
        self._close()
        return said[1], said[2]

    def _close(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self.wait()


def _stream(given: Stream, number: int, theirs: contextlib.ExitStack) -> tuple[IO[str] | None, int]:
    """This process's end, if it is a pipe, and the program's."""
    if given is None:
        return None, number
    if given == subprocess.PIPE:
        reading, writing = os.pipe()
        mine, other = (writing, reading) if number == 0 else (reading, writing)
        theirs.callback(os.close, other)
        return os.fdopen(mine, "w" if number == 0 else "r"), other
    if given == subprocess.STDOUT:
        raise ValueError("give both streams the same file")
    return None, given if isinstance(given, int) else given.fileno()


class _Nursery:
    """The process that forks, seen from this one."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self._close)

    def _close(self) -> None:
        self._control.close()
        self._process.wait()

    def fork(self, request: object, files: Sequence[int]) -> None:
        socket.send_fds(self._control, [json.dumps(request).encode()], files)


@functools.cache
def _nursery() -> _Nursery:
    return _Nursery()


def main() -> None:
    """The nursery; in each process that it forks, the program."""
    control = socket.socket(fileno=int(sys.argv[1]))
    # As a terminal starts programs, also if the tests run under nohup.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for module in WARM:
        importlib.import_module(module)
    request = serve(control)
    if request is not None:
        run(request)


def run(request: Mapping[str, Any]) -> None:
    """Carry out a request as `python -m` would."""
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[0] = request["directory"]
    # As Python does it at its start. The earlier ones knew other files.
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", 1 if os.isatty(1) else -1, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    sys.argv = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


@dataclass(frozen=True)
class _Fork:
    """`ended`: readable when it has. `end`: a pipe for its exit code. `owner`: readable when the
    process has ended that it must not outlive.
    """

    pid: int
    ended: int
    end: int
    owner: int | None

    def watched(self) -> list[int]:
        return [self.ended] if self.owner is None else [self.ended, self.owner]

    def tell_end(self) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        _tell(self.end, code)
        self.close()

    def close(self) -> None:
        for file in (*self.watched(), self.end):
            os.close(file)


def serve(control: socket.socket, parent: int | None = None) -> dict[str, Any] | None:
    """Fork until the parent has ended: `control` ends with it, or `parent` is readable. Returns a
    request in the process that is to carry it out.

    With a request come the program's three streams, and a pipe that is told the number of the
    process and then its exit code; perhaps also the descriptor of a process that it must not
    outlive.
    """
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()
    forks = set[_Fork]()
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        if parent is not None:
            selector.register(parent, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                fork: _Fork | None = key.data
                if fork is not None:
                    if fork not in forks:
                        continue  # its end was seen just before; the number may be another file's
                    if key.fd == fork.owner:
                        os.kill(fork.pid, signal.SIGKILL)
                        selector.unregister(fork.owner)
                        continue
                    forks.remove(fork)
                    for file in fork.watched():
                        if file in selector.get_map():
                            selector.unregister(file)
                    fork.tell_end()
                    continue
                text, files = b"", list[int]()
                if key.fileobj is control:
                    text, files, _, _ = socket.recv_fds(control, _MOST_BYTES, 5)
                if not text:
                    for fork in forks:
                        os.kill(fork.pid, signal.SIGKILL)
                    return None
                streams, (end, *owner) = files[:3], files[3:]
                pid = os.fork()
                if pid == 0:
                    for number, file in enumerate(streams):
                        os.dup2(file, number)
                    for file in files:
                        os.close(file)
                    for fork in forks:
                        fork.close()
                    control.close()
                    request: dict[str, Any] = json.loads(text)
                    return request
                for file in streams:
                    os.close(file)
                _tell(end, pid)
                fork = _Fork(pid, os.pidfd_open(pid), end, owner[0] if owner else None)
                forks.add(fork)
                for file in fork.watched():
                    selector.register(file, selectors.EVENT_READ, fork)


def _tell(end: int, number: int) -> None:
    # Nobody may be listening any more.
    with contextlib.suppress(BrokenPipeError):
        os.write(end, f"{number}\n".encode())


if __name__ == "__main__":
    main()
