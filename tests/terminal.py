"""A terminal for tests that type what a page shows.

    with commands_on_path(tmp_path) as path, Terminal(tmp_path, {"PATH": path}) as terminal:
        terminal.type("counterpoise queues list")

It is a real shell. `commands_on_path` gives it a `counterpoise` that starts in a moment: it
sends its arguments and streams to this process, which forks the command (`tests/forked.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.eventual import eventually
from tests.forked import Forked

DONE = "what was typed has ended with "
# Two Spark applications start on a machine that does other things, too.
PATIENCE_SECONDS = 400


class Terminal:
    """A shell in a directory."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._shell = subprocess.Popen(
            ["bash", "--norc"],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def type(self, line: str) -> str:
        """The output of the command, which must end well."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f'{line}\necho "{DONE}$?"\n')
        self._shell.stdin.flush()
        said: list[str] = []
        for answer in self._shell.stdout:
            if answer.startswith(DONE):
                assert answer == f"{DONE}0\n", f"{line}\n{''.join(said)}"
                assert "Traceback" not in "".join(said)
                return "".join(said)
            said.append(answer)
        raise AssertionError(f"the shell has ended: {line}\n{''.join(said)}")

    def see(self, line: str, *words: str) -> str:
        """Type a command again until its output has these words. Fails with the last output, and
        with the end of each log."""
        said = ""

        def shown() -> bool:
            nonlocal said
            said = self.type(line)
            return all(word in said for word in words)

        try:
            eventually(shown, PATIENCE_SECONDS)
        except AssertionError as late:
            logs = self.type("tail --lines=40 *.log")
            raise AssertionError(f"{words} not in\n{said}\n{logs}") from late
        return said

    def close(self) -> None:
        """Close the window: everything that it runs ends."""
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_PROGRAM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as starter:
    starter.connect({address!r})
    request = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()])
    socket.send_fds(starter, [request.encode()], [0, 1, 2])
    sys.exit(int(starter.recv(16)))
"""


@contextlib.contextmanager
def commands_on_path(directory: Path, *programs: Path) -> Iterator[str]:
    """A PATH with `counterpoise`, the programs in these directories, and those of this machine."""
    commands = directory / "commands"
    commands.mkdir()
    address = str(commands / "starter")
    program = commands / "counterpoise"
    program.write_text(_PROGRAM.format(python=sys.executable, address=address))
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        threading.Thread(target=_start_each, args=(listener,), daemon=True).start()
        yield os.pathsep.join([str(commands), *map(str, programs), os.environ["PATH"]])
        listener.shutdown(socket.SHUT_RDWR)


def _start_each(listener: socket.socket) -> None:
    """Until the listener is shut down."""
    with contextlib.suppress(OSError):
        while True:
            starting, _ = listener.accept()
            threading.Thread(target=_start, args=(starting,), daemon=True).start()


def _start(starting: socket.socket) -> None:
    with starting:
        request, files, _, _ = socket.recv_fds(starting, 1 << 17, 3)
        arguments, environment, directory = json.loads(request)
        stdin, stdout, stderr = files
        process = Forked(
            "counterpoise.cli",
            arguments,
            environment=environment,
            directory=Path(directory),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
        for file in files:
            os.close(file)
        starting.send(str(process.wait()).encode())
