"""A queue and the Spark applications on it, for the tests of several applications."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from counterpoise.client import Client
from counterpoise.publisher import Publisher
from tests.counterpoise.spark.application import Application, Row
from tests.counterpoise.spark.jobs.drivers import Drivers
from tests.counterpoise.spark.small import LOCAL
from tests.service import ServeProcess, Service

KEYS = 23
App = TypeVar("App", bound=Application)
P = ParamSpec("P")


class Stage:
    """A queue, its publisher, and the applications on it."""

    # Those that the applications read.
    QUEUES: tuple[str, ...] = ("flights",)

    def __init__(
        self, service: Service | ServeProcess, client: Client, directory: Path, drivers: Drivers
    ) -> None:
        self.client = client
        self.drivers = drivers
        self.url = service.url
        self.directory = directory
        self.published = 0
        self.applications: list[Application] = []

    def queue(self, partitions: int, **settings: object) -> None:
        self.client.create_queue("flights", partitions, **settings)

    def publish(self, count: int) -> None:
        """In one batch: a query that is held amid the first messages has the others as well."""
        with Publisher("flights", url=self.url, linger_seconds=60) as publisher:
            for number in range(self.published, self.published + count):
                publisher.publish(str(number).encode(), key=f"k{number % KEYS}")
        self.published += count

    def application(
        self,
        name: str,
        *,
        master: str = LOCAL,
        drain_seconds: float | None = None,
        **options: Any,
    ) -> Application:
        """Prepared now, and started later by the test."""
        application = Application(
            name,
            self.directory,
            self.url,
            "flights",
            self.drivers,
            master=master,
            drain_seconds=drain_seconds,
            **options,
        )
        return self.add(application)

    def add(self, application: App) -> App:
        """Its own driver is prepared from now on; it ends with the stage."""
        application.prepare()
        self.applications.append(application)
        return application

    def end(self) -> None:
        for application in self.applications:
            application.end()
            # pytest shows this if the test has failed.
            print(f"--- {application.name}:\n{application.said()[-5000:]}")

    def rows(self) -> list[Row]:
        return [row for application in self.applications for row in application.rows()]

    def seen(self) -> set[int]:
        return {int(row.value) for row in self.rows()}

    def all_seen(self) -> bool:
        return len(self.seen()) == self.published

    def owners(self) -> dict[int, str | None]:
        """The client name of each partition's owner."""
        names = {flow.flow_id: flow.client_name for flow in self.client.flows("flights")}
        return {
            one.partition: names.get(one.owner or "") for one in self.client.partitions("flights")
        }

    def owned(self, name: str) -> int:
        return Counter(self.owners().values())[name]

    def unbind(self, *names: str) -> None:
        """Take the flows of killed or frozen applications away, as the end of their leases would.

        A lease that is short enough to be waited for ends on a slow machine while its owner lives.
        """
        for queue in self.QUEUES:
            for flow in self.client.flows(queue):
                if flow.client_name in names:
                    self.client.unbind(queue, flow.flow_id)

    def committed(self) -> int:
        return sum(int(one.position or 0) for one in self.client.partitions("flights"))

    def ready(self) -> bool:
        return self.client.rebalance_status("flights").status == "Ready"

    def moves(self) -> Counter[str]:
        """How the moves of all rebalances ended."""
        return Counter(
            move.outcome for one in self.client.rebalances("flights") for move in one.moves
        )


S = TypeVar("S", bound=Stage)


@contextlib.contextmanager
def staged(
    make: Callable[Concatenate[Service | ServeProcess, Client, P], S],
    service: Service | ServeProcess,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Iterator[S]:
    """A stage with a client of its own; its applications end with it."""
    with Client(service.url) as client, contextlib.ExitStack() as ending:
        stage = make(service, client, *args, **kwargs)
        ending.callback(stage.end)
        yield stage
