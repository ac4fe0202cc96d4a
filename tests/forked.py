"""Programs of this repository as processes that start in a moment.

    with Forked("counterpoise.cli", ["status", "orders"], stdout=PIPE) as process:
        ...

Half a second to two seconds of each start of a program are imports. So one process per pytest
worker (the nursery) imports them once, and a program is a fork of it, which then runs the named
module as `python -m` would: with its own arguments, environment, directory and streams. It is a
process of its own in every other respect; a test may freeze and kill it.

The nursery has a single thread, so forking it is safe; Arrow, which starts threads, is imported by
the programs themselves. It ends with the worker that started it, and kills what it has forked.
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
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()
    request = _serve(control)
    if request is None:
        return
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


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork until this process's parent has ended. Returns a request in the process that is to carry
    it out.
    """
    running: dict[int, tuple[int, int]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not control:
                    assert isinstance(key.fileobj, int)
                    selector.unregister(key.fileobj)
                    pid, end = running.pop(key.fileobj)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    os.close(key.fileobj)
                    _tell(end, code)
                    os.close(end)
                    continue
                text, files, _, _ = socket.recv_fds(control, _MOST_BYTES, 4)
                if not text:
                    for pid, _ in running.values():
                        os.kill(pid, signal.SIGKILL)
                    return None
                *streams, end = files
                pid = os.fork()
                if pid == 0:
                    for number, file in enumerate(streams):
                        os.dup2(file, number)
                    for file in (*files, *running, *(end for _, end in running.values())):
                        os.close(file)
                    control.close()
                    request: dict[str, Any] = json.loads(text)
                    return request
                for file in streams:
                    os.close(file)
                _tell(end, pid)
                ended = os.pidfd_open(pid)
                running[ended] = pid, end
                selector.register(ended, selectors.EVENT_READ)


def _tell(end: int, number: int) -> None:
    # Nobody may be listening any more.
    with contextlib.suppress(BrokenPipeError):
        os.write(end, f"{number}\n".encode())


if __name__ == "__main__":
    main()
