"""Applications on a real standalone cluster: a master and two workers, Spark's own processes.

The cluster runs on the Java that `counterpoise java-home` prints, and with it the first application
with its executors. The others run on the Java of all tests, which starts in half the time.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
import pytest

from counterpoise.client import Client
from counterpoise.logs import open_log
from counterpoise.publisher import Publisher
from counterpoise.spark.driver.environment import ensure_java
from tests.counterpoise.spark.cluster import speculating
from tests.counterpoise.spark.cluster.standalone import Standalone, standalone
from tests.counterpoise.spark.queries import committed, publish
from tests.counterpoise.spark.small import SMALL_EXECUTORS
from tests.counterpoise.spark.submitted import PROGRAM, Submitted
from tests.counterpoise.spark.waiting import until
from tests.service import Service

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("drivers 1")]

WORKERS = 2
STARVED = "has not accepted any resources"
# Executors come and go with the work.
DYNAMIC = {
    "spark__dynamicAllocation__enabled": "true",
    "spark__dynamicAllocation__shuffleTracking__enabled": "true",
    # Else an executor is kept until Java's garbage collection frees its shuffles.
    "spark__dynamicAllocation__shuffleTracking__timeout": "1s",
    "spark__dynamicAllocation__minExecutors": "0",
    "spark__dynamicAllocation__executorIdleTimeout": "1s",
}

SPECULATION = {
    # Idle executors are decommissioned then, instead of killed.
    "spark__decommission__enabled": "true",
    "spark__speculation": "true",
    "spark__speculation__interval": "100ms",
    "spark__speculation__quantile": "0.1",
    "spark__speculation__multiplier": "1",
    "spark__speculation__minTaskRuntime": "100ms",
    "spark__speculation__efficiency__enabled": "false",
    "spark__speculation__task__duration__threshold": "1s",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """One for all tests: each leaves no application on it."""
    with standalone(tmp_path_factory.mktemp("standalone") / "cluster", WORKERS) as cluster:
        yield cluster


def on_usual_java() -> tuple[dict[str, str], dict[str, str]]:
    """Settings for the executors, and the environment of the driver."""
    java = str(ensure_java())
    return {"spark__executorEnv__JAVA_HOME": java}, {"JAVA_HOME": java}


def submitted(
    cluster: Standalone,
    home: Path,
    url: str,
    config: Mapping[str, str] | None = None,
    source: str = PROGRAM,
    **environment: str,
) -> Submitted:
    return Submitted(
        home,
        url,
        master=cluster.url,
        config={**SMALL_EXECUTORS, "spark__log__level": "WARN", **(config or {})},
        environment={**cluster.environment, "TMPDIR": str(home), **environment},
        source=source,
    )


@pytest.mark.matrix(of="clusters")
@pytest.mark.parametrize("slow", [("slow write", "slow read"), ("slow read", "slow write")])
def test_a_second_attempt_of_a_slow_task_writes_nothing_again_as_executors_come_and_go(
    service: Service,
    client: Client,
    cluster: Standalone,
    tmp_path: Path,
    database_url: str,
    slow: tuple[str, str],
) -> None:
    """Speculation, and dynamic allocation that decommissions executors, with both sinks in each
    micro-batch, of one queue and of several in one stream: which task of each is slow.
    """
    one_queue, several = ("flights",), ("orders-eu", "orders-us")
    client.create_queue("flights", 4, rebalance_delay=0, max_handoff_time=600)
    for name in several:
        client.create_queue(name, 2, rebalance_delay=0, max_handoff_time=600)
    client.create_queue("out", 2)
    home = tmp_path / "speculating"
    home.mkdir()
    (home / "database").write_text(database_url)
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE TABLE events (value text)")
    for_executors, java = on_usual_java()
    config = {**DYNAMIC, **SPECULATION, **for_executors}
    one = submitted(cluster, home, service.url, config, speculating.PROGRAM, **java)
    published: Counter[str] = Counter()

    def done() -> bool:
        positions = [
            at for queue in (*one_queue, *several) for at in committed(client, queue).values()
        ]
        return one.over() or sum(int(at or 0) for at in positions) == published.total()

    def attempts(value: str) -> set[str]:
        """The attempts of its tasks that were not the first."""
        return {file.name for file in home.glob(f"{value.replace(' ', '-')} *-[1-9]")}

    with one.watched():
        for queues, value in zip((one_queue, several), slow, strict=True):
            before = attempts(value)
            for queue in queues:
                with Publisher(queue, url=service.url) as publisher:
                    for number in range(40 // len(queues)):
                        is_slow = number == 7 and queue == queues[-1]
                        message = value if is_slow else f"v{published.total()}"
                        publisher.publish(message.encode(), key=f"k{number}")
                        published[message] += 1
            until(done, f"all is committed, with a task of a {value} in {queues}")
            assert not one.over()
            assert not list(home.glob("twice *")), "both attempts write"
            if value == "slow read":
                until(lambda: cluster.cores_of_applications() == [0], "it returns its executors")
            # Where it reads slowly, a task of each sink.
            assert len(attempts(value) - before) >= (2 if value == "slow read" else 1)
        one.jvm.send_signal(signal.SIGTERM)
        assert one.jvm.wait(400) == 128 + signal.SIGTERM
    with psycopg.connect(database_url) as connection:
        written = Counter(value for (value,) in connection.execute("SELECT value FROM events"))
        marks = connection.execute("SELECT next_position FROM counterpoise_high_water").fetchall()
    assert written == published
    assert sum(int(at) for (at,) in marks) == published.total()
    assert values_in(client, "out") == published


@pytest.mark.matrix(of="clusters")
def test_applications_share_a_queue_as_executors_come_and_go(
    service: Service, client: Client, cluster: Standalone, tmp_path: Path
) -> None:
    """Without executors an application takes no partition; a drain on SIGTERM loses nothing."""
    client.create_queue("flights", 4, rebalance_delay=0, max_handoff_time=600)
    publish(service, "flights", 40)
    for_executors, java = on_usual_java()

    def owners() -> list[int]:
        return sorted(flow.partitions for flow in client.flows("flights"))

    def done() -> int:
        return sum(int(at or 0) for at in committed(client, "flights").values())

    # Without spark.cores.max it takes all cores of the cluster.
    with submitted(cluster, tmp_path / "greedy", service.url).watched() as greedy:
        until(lambda: done() == 40 or greedy.over(), "the first application works")
        assert cluster.cores_of_applications() == [WORKERS], greedy.said()
        second = submitted(
            cluster, tmp_path / "dynamic", service.url, {**DYNAMIC, **for_executors}, **java
        )
        with second.watched() as dynamic:
            until(lambda: STARVED in dynamic.said() or dynamic.over(), "the second starves")
            publish(service, "flights", 40, first=40)
            until(lambda: done() == 80, "the first application works on")
            assert owners() == [4], "the second one would hold two partitions and not read them"
            greedy.jvm.send_signal(signal.SIGTERM)
            assert greedy.jvm.wait(400) == 128 + signal.SIGTERM
            until(lambda: owners() == [4] and not greedy.python_runs(), "the second takes over")
            publish(service, "flights", 40, first=80)
            until(lambda: done() == 120, "the second application works")
            until(lambda: cluster.cores_of_applications() == [0], "it returns its executors")
            few = {"spark__cores__max": "1", **for_executors}
            third = submitted(cluster, tmp_path / "modest", service.url, few, **java)
            with third.watched() as modest:
                until(lambda: owners() == [2, 2] or modest.over(), "they share")
                publish(service, "flights", 40, first=120)
                until(lambda: done() == 160, "both work")
                assert sum(cluster.cores_of_applications()) <= WORKERS
                values = [*greedy.values(), *dynamic.values(), *modest.values()]
                assert modest.values()
                assert sorted(values) == sorted(f"v{number}" for number in range(160))
                assert not any(one.forced for one in client.rebalances("flights"))


def values_in(client: Client, queue: str) -> Counter[str]:
    """How often each value is in the log of a queue."""
    view = client.log_access(queue, "read")
    with contextlib.closing(open_log(view.log, view.access, timeout_seconds=150)) as log:
        return Counter(
            value.decode()
            for partition, end in log.bounds(range(9)).ends.items()
            for batch in log.read(partition, "0", end, max_messages=10**6)
            for value in batch["value"].to_pylist()
        )


@pytest.mark.matrix(of="clusters")
def test_standalone_clusters_run_python_in_client_mode_only(
    service: Service, tmp_path: Path
) -> None:
    """docs/cluster.md says so; with the next Spark it may be otherwise. It needs no cluster."""
    one = Submitted(
        tmp_path / "application",
        service.url,
        master="spark://127.0.0.1:9",
        arguments=("--deploy-mode", "cluster", "--supervise"),
    )
    with one.watched():
        try:
            assert one.jvm.wait(300) == 1
        except subprocess.TimeoutExpired:
            pytest.fail("it was not refused")
    assert "not supported for python applications on standalone clusters" in one.said()
