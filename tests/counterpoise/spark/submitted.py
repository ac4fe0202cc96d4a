"""An application that `spark-submit` runs, in client mode: its process is the JVM."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from counterpoise.spark.driver.environment import ensure_java
from tests.counterpoise.spark.small import LOCAL, SMALL, spark_home
from tests.processes import find, kill_family

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """\
import json
import os
import sys
from pathlib import Path

from counterpoise.spark import drain_on_sigterm, register, session
from tests.counterpoise.spark.application import Sink
from tests.counterpoise.spark.starting import started

home, url = Path(sys.argv[1]), sys.argv[2]
spark = session("submitted")
drain_on_sigterm(spark, timeout_seconds=150, end_seconds=150)
another = spark.newSession()  # its queries are drained with those of the first one
register(another)
messages = another.readStream.format("counterpoise").option("queue", "flights").option("url", url)
writer = messages.load().writeStream.foreachBatch(Sink(home))
query = started(writer.option("checkpointLocation", str(home / "checkpoint")))
(home / "pid").write_text(str(os.getpid()))
query.awaitTermination()
# The program goes on while Spark still works.
(home / "ended").write_text(str(spark.range(3).count()))
"""


def submit_environment(home: Path, java: Path | None = None) -> dict[str, str]:
    """For Spark's commands: a home of Spark in `home`, made if needed, and no setting of ours."""
    java = java or ensure_java()
    assert java is not None
    environment = {k: v for k, v in os.environ.items() if "COUNTERPOISE" not in k}
    return environment | {
        "JAVA_HOME": str(java),
        "SPARK_HOME": str(spark_home(home)),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(home),
    }


class Submitted:
    """`spark-submit program.py`, of which `home` has everything."""

    def __init__(
        self,
        home: Path,
        url: str,
        *,
        master: str = LOCAL,
        config: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        source: str = PROGRAM,
    ) -> None:
        """`config`: settings of Spark, with `__` for dots. `arguments`: of spark-submit. `source`:
        of the program.
        """
        home.mkdir(exist_ok=True)
        self.home = home
        program = home / "program.py"
        program.write_text(source)
        environment = environment or submit_environment(home)
        local = {"spark__local__dir": str(home / "local"), "spark__master": master}
        settings = {**SMALL, **local, **(config or {})}
        conf = [
            part
            for name, value in settings.items()
            for part in ("--conf", f"{name.replace('__', '.')}={value}")
        ]
        submit = Path(environment["SPARK_HOME"], "bin", "spark-submit")
        self.log = home / "log"
        with self.log.open("wb") as log:
            self.jvm = subprocess.Popen(
                [submit, *arguments, *conf, program, home, url],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
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

    def python_runs(self) -> bool:
        """Whether that process runs."""
        return find(self.python()) is not None

    def batches(self) -> int:
        journal = self.home / "journal"
        return len(journal.read_text().splitlines()) if journal.exists() else 0

    def values(self) -> list[str]:
        """What its sink got."""
        journal = self.home / "journal"
        lines = journal.read_text().splitlines() if journal.exists() else []
        return [row[-1] for line in lines for row in json.loads(line)]

    @contextlib.contextmanager
    def watched(self) -> Iterator[Submitted]:
        """Ends all its processes at the end, and shows what it has said."""
        try:
            yield self
        finally:
            kill_family(self.jvm.pid)
            self.jvm.wait(150)
            print(self.said())
