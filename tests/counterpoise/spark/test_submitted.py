"""An application under spark-submit: the JVM is its parent, and gets the signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from counterpoise.client import Client
from counterpoise.flow import Flow
from counterpoise.spark.environment import ensure_java
from tests.counterpoise.spark.queries import committed, publish
from tests.counterpoise.spark.small import LOCAL, SMALL, spark_home
from tests.counterpoise.spark.waiting import until
from tests.processes import find, kill_family
from tests.service import Service

pytestmark = [pytest.mark.long, pytest.mark.timeout(420), pytest.mark.xdist_group("spark 1")]

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """\
import json
import os
import sys
from pathlib import Path

from counterpoise.spark import drain_on_sigterm, session
from tests.counterpoise.spark.application import Sink
from tests.counterpoise.spark.starting import started

home, url = Path(sys.argv[1]), sys.argv[2]
spark = session("submitted")
drain_on_sigterm(spark, timeout_seconds=60)
messages = spark.readStream.format("counterpoise").option("queue", "flights").option("url", url)
writer = messages.load().writeStream.foreachBatch(Sink(home))
query = started(writer.option("checkpointLocation", str(home / "checkpoint")))
(home / "pid").write_text(str(os.getpid()))
query.awaitTermination()
# The program goes on while Spark still works.
(home / "ended").write_text(str(spark.range(3).count()))
"""


class Submitted:
    """`spark-submit program.py`; its process is the JVM."""

    def __init__(self, home: Path, url: str) -> None:
        self.home = home
        program = home / "program.py"
        program.write_text(PROGRAM)
        java = ensure_java()
        assert java is not None
        own_spark = spark_home(home / "spark-home")
        settings = {**SMALL, "spark__local__dir": str(home / "local"), "spark__master": LOCAL}
        conf = [
            part
            for name, value in settings.items()
            for part in ("--conf", f"{name.replace('__', '.')}={value}")
        ]
        environment = {k: v for k, v in os.environ.items() if "COUNTERPOISE" not in k}
        environment |= {
            "JAVA_HOME": str(java),
            "SPARK_HOME": str(own_spark),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(home),
        }
        self.log = home / "log"
        with self.log.open("wb") as log:
            self.jvm = subprocess.Popen(
                [own_spark / "bin" / "spark-submit", *conf, program, home, url],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=home,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def over(self) -> bool:
        return self.jvm.poll() is not None

    def python(self) -> int:
        """The program's own process."""
        return int((self.home / "pid").read_text())

    def batches(self) -> int:
        journal = self.home / "journal"
        return len(journal.read_text().splitlines()) if journal.exists() else 0

    def values(self) -> list[str]:
        """What its sink got."""
        lines = (self.home / "journal").read_text().splitlines()
        return [row[-1] for line in lines for row in json.loads(line)]


@pytest.fixture
def submitted(service: Service, tmp_path: Path) -> Iterator[Submitted]:
    with Client(service.url) as client:
        client.create_queue("flights", 2, rebalance_delay=0, max_handoff_time=60)
    publish(service, "flights", 20)
    one = Submitted(tmp_path, service.url)
    yield one
    kill_family(one.jvm.pid)
    one.jvm.wait(30)
    print(one.said())


@pytest.mark.parametrize("both", [False, True])
def test_a_jvm_that_is_told_to_end_drains_first(
    service: Service, submitted: Submitted, both: bool
) -> None:
    """As a pod that is told to stop; `both`: the signal also reaches Python, as under systemd."""
    until(lambda: submitted.batches() or submitted.over(), "the first micro-batch", 200)
    assert not submitted.over(), submitted.said()
    (submitted.home / "hold").write_text("before")
    publish(service, "flights", 20, first=20)
    until(lambda: (submitted.home / "held").exists(), "a micro-batch in flight")
    python = submitted.python()
    submitted.jvm.send_signal(signal.SIGTERM)
    if both:
        os.kill(python, signal.SIGTERM)
    with Client(service.url) as client:
        until(lambda: any(flow.draining for flow in client.flows("flights")), "it drains")
        # The micro-batch goes on, and is finished.
        (submitted.home / "hold").unlink()
        assert submitted.jvm.wait(120) == 128 + signal.SIGTERM
        until(lambda: find(python) is None, "the program has ended")
        assert (submitted.home / "ended").read_text() == "3", submitted.said()
        assert not client.flows("flights")
        done = sum(int(at or 0) for at in committed(client, "flights").values())
        values = submitted.values()
        assert len(values) == len(set(values)) == done
        with Flow("flights", url=service.url) as successor:
            until(lambda: len(successor.partitions) == 2, "the next owner")
            assert {one.handed_over for one in successor.partitions.values()} == {"graceful"}
    assert "Traceback" not in submitted.said()


def test_a_killed_program_is_told_apart_from_one_that_left(
    service: Service, submitted: Submitted
) -> None:
    """Its source process survives it for a moment and unbinds for it: it says why."""
    until(lambda: submitted.batches() or submitted.over(), "the first micro-batch", 200)
    assert not submitted.over(), submitted.said()
    os.kill(submitted.python(), signal.SIGKILL)
    with Client(service.url) as client:
        until(lambda: not client.flows("flights"), "the source process unbinds", 60)
        newest = client.rebalances("flights")[0]
        assert newest.trigger == "driver_lost", submitted.said()
