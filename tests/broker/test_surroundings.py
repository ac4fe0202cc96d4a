"""What surrounds the service does not stop it: signals, streams, variables, a user without a name.

Or it ends in order, and says what to do.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE

import httpx
import pytest

from broker.exits import Exit
from tests.forked import Forked
from tests.service import COUNTERPOISE, NO_SERVICE, ServeProcess, eventually, listen

# A user with a number and no name, as containers may have one.
NAMELESS = ("unshare", "--user", "--map-user=54321", "--map-group=54321")
may_be_nameless = pytest.mark.skipif(
    subprocess.run([*NAMELESS, "true"], stderr=DEVNULL).returncode != 0,
    reason="needs the right to make a user namespace",
)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A database that takes connections and never answers."""
    with listen() as listener:
        yield listener


def at(silent: socket.socket) -> list[str]:
    return ["--database-url", f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/d"]


# ------------------------------------------------------------------ signals


def test_signals_that_are_for_other_services_do_nothing(served: ServeProcess) -> None:
    assert served.process is not None
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        served.process.send_signal(number)
    eventually(lambda: "SIGHUP: this service has no certificate" in served.log_file.read_text())
    assert httpx.get(f"{served.url}/readyz").status_code == 200
    assert served.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT, signal.SIGALRM])
def test_a_service_that_starts_ends_in_order(silent: socket.socket, number: int) -> None:
    """A lower number is delivered first."""
    command = ["serve", "--port", "0", *at(silent)]
    with Forked("counterpoise.cli", command, stderr=PIPE) as service:
        with silent.accept()[0]:
            service.send_signal(signal.SIGHUP)
            service.send_signal(number)
            _, said = service.communicate()
        assert service.wait() == 0
    assert "Traceback" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_migration_that_is_ended_says_that_it_is_not_done(
    silent: socket.socket, number: int
) -> None:
    with Forked("counterpoise.cli", ["migrate", *at(silent)], stdout=PIPE, stderr=PIPE) as process:
        with silent.accept()[0]:
            process.send_signal(number)
            said = process.communicate()
        assert process.wait() == 128 + number
    assert said == ("", "")


# ------------------------------------------------------------------ streams and variables


def unread_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.long
@pytest.mark.parametrize("stdout", [unread_pipe, full_disk])
def test_nobody_need_read_what_it_prints(migrated_url: str, stdout: Callable[[], int]) -> None:
    command = ["serve", "--port", "0", "--database-url", migrated_url]
    stream = stdout()
    try:
        service = Forked("counterpoise.cli", command, stdout=stream, stderr=PIPE)
    finally:
        os.close(stream)
    with service:
        assert service.stderr is not None
        assert '"serving"' in service.stderr.readline()
        service.terminate()
        _, said = service.communicate()
        assert service.wait() == 0
    assert "Traceback" not in said


STRANGE = {
    "COLUMNS": "0",
    "HOME": "/nonexistent",
    "HOST": "nonsense",
    "HTTP_PROXY": "http://127.0.0.1:1",
    "ALL_PROXY": "socks5://127.0.0.1:1",
    "LANG": "nonsense",
    "LC_ALL": "POSIX",
    "LISTEN_FDS": "3",
    "NOTIFY_SOCKET": "/nonexistent",
    "NO_COLOR": "1",
    "PORT": "nonsense",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONUTF8": "0",
    "SSL_CERT_FILE": "/nonexistent",
    "TERM": "dumb",
    "TMPDIR": "/nonexistent",
    "TZ": "Nowhere/Nothing",
}
# In a directory that is gone, with few files and no standard input.
BARE = ["sh", "-ec", 'cd "$1" && rmdir "$1" && shift && ulimit -n 64 && exec "$@" <&-', "sh"]


@pytest.mark.long
def test_variables_of_other_programs_change_nothing(migrated_url: str, tmp_path: Path) -> None:
    environment = {**STRANGE, "COUNTERPOISE_DATABASE_URL": f" {migrated_url}\n"}
    (tmp_path / "gone").mkdir()
    program = [*BARE, str(tmp_path / "gone"), *COUNTERPOISE]
    log = tmp_path / "serve.log"
    with ServeProcess(log, environment=environment, program=program) as service:
        done = subprocess.run(
            [*COUNTERPOISE, "queues", "create", "q", "-p", "2"],
            env={**service.environment, "COUNTERPOISE_URL": f"{service.url}\n"},
            capture_output=True,
            text=True,
        )
        assert done.stdout + done.stderr == "q created: 2 partitions, log builtin:q\n"
        assert service.end() == 0


def test_a_python_that_drops_docstrings_has_titles_for_problems() -> None:
    asks = "from broker.core.errors import QueueNotFound; print(QueueNotFound.title())"
    done = subprocess.run([sys.executable, "-OO", "-c", asks], capture_output=True, text=True)
    assert done.stdout == "queue_not_found\n"


# ------------------------------------------------------------------ a user without a name


@pytest.mark.long
@pytest.mark.matrix("arguments")
@may_be_nameless
@pytest.mark.parametrize(
    "arguments",
    [["serve", "--port", "0"], ["keys", "list", "--url", NO_SERVICE], ["migrate", "--data-dir"]],
    ids=" ".join,
)
def test_a_user_without_a_name_is_told_to_give_a_database(
    arguments: list[str], tmp_path: Path
) -> None:
    if arguments[-1] == "--data-dir":
        arguments = [*arguments, str(tmp_path)]
    gone = {"HOME", "XDG_DATA_HOME"}
    done = subprocess.run(
        [*NAMELESS, *COUNTERPOISE, *arguments],
        env={name: value for name, value in os.environ.items() if name not in gone},
        capture_output=True,
        text=True,
    )
    assert done.returncode == Exit.DATABASE
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("counterpoise: the user 54321 is not in")
    assert "give --database-url" in done.stderr
