"""The way of one call through the modules: `python -m tests.trace [bind|release|commit|…]`.

    call            stays  modules  returns
    bind              376       79      297

A *stay* begins when Python enters a function of another module of `api`, `broker` or `counterpoise`
than the one before. *modules* counts the different ones, *returns* the stays in a module that was
entered before. So a reader who follows the call opens a file as often as it has stays. Entering a
coroutine again after a wait counts, since a reader comes back to it, too.

The service runs in this process on a Postgres of its own, and its callers use HTTP. Each call is
made several times; the fewest stays count, because background work may run beside a call.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import structlog

from benchmarks.service import served_here
from counterpoise import Publisher
from counterpoise.client import Client
from counterpoise.consumer.consumer import Consumer
from counterpoise.consumer.reading import Reader
from counterpoise.spark.options import read_options
from counterpoise.spark.source.with_limits import StreamReaderWithLimits

ROOT = Path(__file__).resolve().parents[1]
OURS = tuple(f"{ROOT / package}/" for package in ("api", "broker", "counterpoise"))
TIMES = 7


@dataclass
class Way:
    """The modules that one call entered, in order; successive equal ones count once."""

    stays: list[str] = field(default_factory=list)

    def enter(self, file: str) -> None:
        if file.startswith(OURS) and (not self.stays or self.stays[-1] != file):
            self.stays.append(file)

    @property
    def modules(self) -> int:
        return len(set(self.stays))

    @property
    def returns(self) -> int:
        return len(self.stays) - self.modules

    def show(self) -> str:
        """The stays, one a line, by paths relative to the repository."""
        return "\n".join(Path(file).relative_to(ROOT).as_posix() for file in self.stays)


class Tracer:
    """Notes which modules the traced threads enter between `begin` and `end`."""

    def __init__(self) -> None:
        self._way: Way | None = None

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        """For `sys.setprofile` and `threading.setprofile`."""
        if event == "call" and self._way is not None:
            self._way.enter(frame.f_code.co_filename)

    def begin(self) -> None:
        self._way = Way()

    def end(self) -> Way:
        assert self._way is not None
        way, self._way = self._way, None
        return way

    @contextmanager
    def this_thread(self) -> Iterator[None]:
        """Trace the calling thread within the block."""
        sys.setprofile(self.profile)
        try:
            yield
        finally:
            sys.setprofile(None)


def fewest(call: Callable[[], Way], times: int = TIMES) -> Way:
    """The shortest way of several equal calls."""
    return min((call() for _ in range(times)), key=lambda way: len(way.stays))


# ------------------------------------------------------------------ calls of the service


class ServiceCalls:
    """The calls that change a queue, made over HTTP while the service's thread is traced."""

    def __init__(self, url: str, tracer: Tracer) -> None:
        self._http = httpx.Client(base_url=f"{url}/v1", timeout=60)
        self._tracer = tracer
        self._names = 0

    def close(self) -> None:
        self._http.close()

    def _queue(self, partitions: int) -> str:
        self._names += 1
        name = f"traced-{self._names}"
        settings = {"rebalance_delay": 0, "max_handoff_time": 600}
        self._send("POST", "/queues", {"name": name, "partition_count": partitions, **settings})
        return f"/queues/{name}"

    def _send(
        self, method: str, path: str, body: object = None, token: str | None = None
    ) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        answer = self._http.request(method, path, json=body, headers=headers)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def _traced(
        self, method: str, path: str, body: object, token: str | None = None
    ) -> tuple[Way, dict[str, Any]]:
        self._tracer.begin()
        answer = self._send(method, path, body, token)
        return self._tracer.end(), answer

    def bind(self) -> Way:
        """The first flow of a queue with one partition, which gets it at once."""
        return self._traced("POST", f"{self._queue(1)}/flows", {"client_name": "traced"})[0]

    def commit(self) -> Way:
        """One position."""
        queue = self._queue(1)
        flow = self._send("POST", f"{queue}/flows", {"client_name": "traced"})
        items = {"seq": 1, "partitions": [{"partition": 0, "epoch": 1, "position": "0"}]}
        path = f"{queue}/flows/{flow['flow_id']}/commit"
        return self._traced("POST", path, items, flow["flow_token"])[0]

    def release(self) -> Way:
        """One of two partitions, which the second flow then gets."""
        queue = self._queue(2)
        flow = self._send("POST", f"{queue}/flows", {"client_name": "first"})
        self._send("POST", f"{queue}/flows", {"client_name": "second"})
        items = {"seq": 1, "partitions": [{"partition": 1, "epoch": 1, "position": "0"}]}
        path = f"{queue}/flows/{flow['flow_id']}/release"
        way, answer = self._traced("POST", path, items, flow["flow_token"])
        assert answer["results"] == [{"partition": 1, "outcome": "ok"}], answer
        return way


# ------------------------------------------------------------------ the clients


def latest_offset(url: str, tracer: Tracer) -> Way:
    """One `latestOffset` of the Spark source with a message to read, as Spark calls it."""
    with Client(url) as client:
        client.create_queue("spark", 1, rebalance_delay=0)
    reader = StreamReaderWithLimits(read_options({"queue": "spark", "url": url}), 1)
    limit = reader.getDefaultReadLimit()
    offset = reader.initialOffset()
    ways: list[Way] = []
    try:
        with Publisher("spark", url=url) as publisher:
            while len(ways) < TIMES:
                publisher.publish(b"one", "key")
                publisher.flush()
                with tracer.this_thread():
                    tracer.begin()
                    end = reader.latestOffset(offset, limit)
                    way = tracer.end()
                if end != offset:
                    reader.partitions(offset, end)
                    ways.append(way)
                offset = end
    finally:
        reader.stop()
    return min(ways, key=lambda way: len(way.stays))


def reader_turns(url: str, tracer: Tracer) -> Iterator[tuple[str, Way]]:
    """A turn of the plain consumer's reader with one message, and one without any."""
    with Client(url) as client:
        client.create_queue("plain", 2, rebalance_delay=0)
    found: dict[bool, list[Way]] = {True: [], False: []}
    enough = threading.Event()
    turn = Reader.turn

    def traced(reader: Reader) -> bool:
        with tracer.this_thread():
            tracer.begin()
            read = turn(reader)
            found[read].append(tracer.end())
        if min(map(len, found.values())) >= TIMES:
            enough.set()
        return read

    Reader.turn = traced  # type: ignore[assignment, method-assign]
    try:
        consumer = Consumer("plain", each=lambda message: None, url=url)
        thread = threading.Thread(target=consumer.run)
        thread.start()
        with Publisher("plain", url=url) as publisher:
            while not enough.wait(0.3):
                publisher.publish(b"one", "key")
                publisher.flush()
        consumer.stop()
        thread.join()
    finally:
        Reader.turn = turn  # type: ignore[method-assign]
    # The reader's first turns have no partition.
    idle = [way for way in found[False][2:] if len(way.stays) > 3]
    yield "reader turn", min(found[True], key=lambda way: len(way.stays))
    yield "idle turn", min(idle or found[False], key=lambda way: len(way.stays))


def ways(wanted: set[str]) -> Iterator[tuple[str, Way]]:
    """The wanted calls (all if none is named) with their ways."""
    tracer = Tracer()
    threading.setprofile(tracer.profile)
    with served_here() as url:
        threading.setprofile(None)
        calls = ServiceCalls(url, tracer)
        for name, call in (
            ("bind", calls.bind),
            ("release", calls.release),
            ("commit", calls.commit),
        ):
            if not wanted or name in wanted:
                yield name, fewest(call)
        calls.close()
    with served_here() as url:
        if not wanted or "latestOffset" in wanted:
            yield "latestOffset", latest_offset(url, tracer)
        if not wanted or wanted & {"reader turn", "idle turn"}:
            yield from reader_turns(url, tracer)


NAMES = ("bind", "release", "commit", "latestOffset", "reader turn", "idle turn")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.trace", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("calls", nargs="*", metavar="CALL", help=", ".join(NAMES))
    parser.add_argument("--way", action="store_true", help="print each stay, too")
    arguments = parser.parse_args()
    if unknown := set(arguments.calls) - set(NAMES):
        parser.error(f"no such call: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    logging.getLogger("counterpoise").setLevel(logging.WARNING)
    print(f"{'call':16}{'stays':>7}{'modules':>9}{'returns':>9}")
    for name, way in ways(set(arguments.calls)):
        print(f"{name:16}{len(way.stays):>7}{way.modules:>9}{way.returns:>9}")
        if arguments.way:
            print(way.show())


if __name__ == "__main__":
    main()
