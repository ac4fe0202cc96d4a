"""A service that only answers `log-access`, for publishers. Import the fixtures where needed."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import cast

import pytest

from counterpoise.client import Client
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.wire import LogView
from tests.log_support import log, log_url
from tests.service import free_port

__all__ = ["log", "log_url"]


def client_of(log: str, partition_count: int) -> Client:
    """A client of a service with this log, which needs no credentials."""
    view = LogView(log, partition_count, None, None)
    return cast(Client, SimpleNamespace(log_access=lambda *_, **__: view))


class Service:
    """Answers log-access with `partition_count` and `log_url`; can be stopped and started again."""

    def __init__(self, log_url: str) -> None:
        self.partition_count = 4
        self.log_url = log_url
        self.status = 200
        self.asked = 0
        # No other test gets it while this service is stopped.
        self.port = free_port()
        self.start()

    def start(self) -> None:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                service.asked += 1
                problem = {"code": "queue_not_found", "title": "no", "status": service.status}
                access = {"url": service.log_url, "expires_at": "2100-01-01T00:00:00Z"}
                view = {
                    "log": "builtin:flights",
                    "partition_count": service.partition_count,
                    "access": access,
                    "log_name": "flights",
                }
                body = json.dumps(view if service.status == 200 else problem).encode()
                self.send_response(service.status)
                ok = service.status == 200
                self.send_header(
                    "Content-Type", "application/json" if ok else "application/problem+json"
                )
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def service(log: PostgresLog, log_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.delenv("COUNTERPOISE_LOG_URL", raising=False)
    service = Service(log_url)
    yield service
    service.stop()
