"""A small HTTP server that misbehaves on request, in ways that no healthy service does.

It has one flow on the queue `flights`, which owns partition 0 at epoch 1. `server.script` can
answer a request differently first. Everything else is tested against the real service.
"""

import asyncio
import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from counterpoise.client import AsyncClient, Client


@dataclass
class Answer:
    status: int
    body: Any = None
    headers: dict[str, str] | None = None
    text: str | None = None


@dataclass
class Cut:
    """Send the first bytes of an answer, then close the connection."""

    after: bytes = b""


@dataclass
class Stall:
    """Answer nothing for so long, then close; meanwhile `drip` is sent repeatedly.

    Without `seconds` for as long as the service runs.
    """

    seconds: float = math.inf
    first: bytes = b""
    drip: bytes = b""


@dataclass
class Seen:
    method: str
    path: str
    body: Any
    at: float


Behaviour = Answer | Cut | Stall


def problem(status: int, code: str, **more: Any) -> Answer:
    body = {"type": "about:blank", "title": code, "status": status, "code": code} | more
    return Answer(status, body, {"Content-Type": "application/problem+json"})


class FaultyService:
    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.heard: Callable[[Mapping[str, str]], None] = lambda _: None
        """Told the headers of each request."""
        self.script: Callable[[Seen], Behaviour | None] = lambda _: None
        self.view: dict[str, Any] = {"revision": 1, "partitions": [self.owned(0, 1)]}
        self.binds = 0
        self.lease_seconds = 3.0
        # The id of the present queue; None: a service that does not send it.
        self.queue_id = "q1"
        self.changed = threading.Condition()
        self.stopped = False
        self.unbound: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    @staticmethod
    def owned(number: int, epoch: int, state: str = "owned", **more: Any) -> dict[str, Any]:
        one = {"partition": number, "epoch": epoch, "state": state, "position": "0"}
        return one | {"handed_over": "initial"} | more

    def show(self, *partitions: dict[str, Any]) -> None:
        with self.changed:
            revision = self.view["revision"] + 1
            self.view = {"revision": revision, "partitions": list(partitions)}
            self.changed.notify_all()

    def update(self) -> dict[str, Any]:
        return self.view | {
            "queue": "flights",
            "flow_id": f"f{self.binds}",
            "active": bool(self.view["partitions"]),
            "draining": False,
            "now": "2026-11-20T10:00:00.000Z",
        }

    def requests(self, verb: str) -> list[Seen]:
        """The requests whose path, without its query, ends like this."""
        return [one for one in self.seen if one.path.partition("?")[0].endswith(verb)]

    def behave(self, seen: Seen) -> Behaviour:
        scripted = self.script(seen)
        if scripted is not None:
            return scripted
        path, _, query = seen.path.partition("?")
        if path.endswith("/flows"):
            self.binds += 1
            body: dict[str, Any] = {
                "flow_id": f"f{self.binds}",
                "flow_token": "t",
                "queue_id": self.queue_id,
                "log_access": None,
            }
            body |= {"lease_seconds": self.lease_seconds, "log": "builtin:flights"}
            return Answer(201, body | {"update": self.update()})
        if path.endswith("/updates"):
            asked = dict(part.split("=") for part in query.split("&"))
            with self.changed:
                self.changed.wait_for(
                    lambda: (
                        self.stopped
                        or path.split("/")[-2] in self.unbound
                        or self.view["revision"] > int(asked["after"])
                    ),
                    float(asked["wait"]),
                )
                if path.split("/")[-2] in self.unbound:
                    return problem(410, "flow_gone", reason="unbound")
            news = self.view["revision"] > int(asked["after"])
            return Answer(200, self.update()) if news else Answer(204)
        if path.endswith(("/commit", "/release")):
            named = [
                {"partition": one["partition"], "outcome": "ok"} for one in seen.body["partitions"]
            ]
            return Answer(200, {"results": named, "update": self.update()})
        if seen.method == "DELETE":
            with self.changed:
                self.unbound.add(path.split("/")[-1])
                self.changed.notify_all()
            return Answer(204)
        return problem(404, "queue_not_found")

    def close(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(240)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                seen = Seen(self.command, self.path, body, time.monotonic())
                service.seen.append(seen)
                service.heard(dict(self.headers.items()))
                with contextlib.suppress(OSError):
                    self.act(service.behave(seen))

            def act(self, behaviour: Behaviour) -> None:
                match behaviour:
                    case Cut(after):
                        self.wfile.write(after)
                        self.close_connection = True
                    case Stall(seconds, first, drip):
                        self.wfile.write(first)
                        ends = time.monotonic() + seconds
                        while time.monotonic() < ends and not service.stopped:
                            self.wfile.write(drip)
                            time.sleep(0.05)
                        self.close_connection = True
                    case Answer(status, body, headers, text):
                        content = b""
                        if status != 204:
                            content = (text or json.dumps(body)).encode()
                        self.send_response(status)
                        for name, value in (headers or {}).items():
                            self.send_header(name, value)
                        self.send_header("Content-Length", str(len(content)))
                        self.end_headers()
                        self.wfile.write(content)

            do_GET = do_POST = do_DELETE = do_PATCH = serve  # noqa: N815

        return Handler


@contextlib.contextmanager
def faulty_service() -> Iterator[FaultyService]:
    service = FaultyService()
    try:
        yield service
    finally:
        service.close()


def asking(client: str, call: str, *arguments: Any) -> Callable[..., Any]:
    """`ask(url, **options)` makes this call with the `blocking` client or the `asyncio` one."""

    def blocking(url: str, **options: Any) -> Any:
        with Client(url, **options) as one:
            return getattr(one, call)(*arguments)

    def with_asyncio(url: str, **options: Any) -> Any:
        async def run() -> Any:
            async with AsyncClient(url, **options) as one:
                return await getattr(one, call)(*arguments)

        return asyncio.run(run())

    return blocking if client == "blocking" else with_asyncio
