"""A service that names a server of its own as the log's: what a client sends there.

docs/security-background.md: nothing of the client's machine but what the service gave it.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from counterpoise.logs import LogError, open_log
from counterpoise.wire import LogAccess

pytestmark = pytest.mark.long

SECRET = "the secret of this machine"
TIMEOUT_SECONDS = 30.0
ASKS_FOR = {"password": struct.pack("!I", 3), "md5": struct.pack("!I4s", 5, b"salt")}


class Server:
    """Speaks as much of Postgres' protocol as is needed to ask for a password."""

    def __init__(self, asks_for: str) -> None:
        self.received = b""
        self._request = ASKS_FOR[asks_for]
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                with client, suppress(ConnectionError):
                    self._talk(client)

    def _talk(self, client: socket.socket) -> None:
        while data := client.recv(65536):
            self.received += data
            if data.startswith(b"p"):
                return
            if len(data) == 8:
                # Encryption, of either kind.
                client.sendall(b"N")
            else:
                size = struct.pack("!I", len(self._request) + 4)
                client.sendall(b"R" + size + self._request)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture(params=sorted(ASKS_FOR))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(request.param)
    yield server
    server.close()


@pytest.mark.parametrize(
    "access",
    [
        "postgresql://127.0.0.1:{port}/d",
        "postgresql://u@127.0.0.1:{port}/d",
        "postgresql://u:@127.0.0.1:{port}/d",
        "postgresql://u@127.0.0.1:{port}/d?passfile={files}/pass",
        "postgresql://u@127.0.0.1:{port}/d?pass%66ile={files}/pass",
        "postgresql://u@127.0.0.1:{port}/d?service=mine&servicefile={files}/services",
        "postgresql://u@127.0.0.1:{port}/d?require_auth=password",
        "postgresql://u:given@127.0.0.1:{port}/d?require_auth=password",
    ],
)
def test_no_password_is_sent_to_the_server_that_a_service_names(
    server: Server, access: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passwords, services = tmp_path / "pass", tmp_path / "services"
    passwords.write_text(f"*:*:*:*:{SECRET}\n")
    passwords.chmod(0o600)
    services.write_text(f"[mine]\npassword={SECRET}\n")
    for name, value in {
        "PGPASSWORD": SECRET,
        "PGPASSFILE": str(passwords),
        "PGSERVICEFILE": str(services),
        "PGSERVICE": "mine",
    }.items():
        monkeypatch.setenv(name, value)
    url = access.format(port=server.port, files=tmp_path)
    log = open_log("builtin:orders", LogAccess(url), timeout_seconds=TIMEOUT_SECONDS)
    with pytest.raises(LogError):
        log.bounds([0])
    log.close()
    assert b"user\0" in server.received
    # Nothing came after it: a message with a password, or its hash.
    assert server.received.endswith(b"\0\0")
    assert SECRET.encode() not in server.received


def test_a_users_own_access_is_completed_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    server = Server("password")
    url = f"postgresql://u@127.0.0.1:{server.port}/d"
    log = open_log("builtin:orders", url, timeout_seconds=TIMEOUT_SECONDS)
    with pytest.raises(LogError):
        log.bounds([0])
    log.close()
    server.close()
    assert SECRET.encode() in server.received
