"""A new user's hour: the README's tour, typed as it stands into two terminals.

The programs are those of the wheels, in a new environment and an empty directory. Where a person
looks again until Spark has started, the test does. Nothing else is added to the README's commands,
and each line of output that the README shows without a frame must come.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.conftest import environment_like_ours
from tests.architecture.test_repository import ROOT
from tests.counterpoise.spark.small import with_small_java
from tests.service import free_port
from tests.terminal import Terminal

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("wheels")]

README = (ROOT / "README.md").read_text("utf-8")


def terminals() -> tuple[list[str], list[tuple[str, list[str]]]]:
    """What is typed into the first terminal, and into the second with the lines shown below it."""
    tour = README.partition("\n## The tour\n")[2].partition("\n## ")[0]
    first, *others = re.findall(r"^```\n(.*?)^```$", tour, re.M | re.S)
    typed: list[tuple[str, list[str]]] = []
    for line in "".join(others).splitlines():
        if line.startswith("$ "):
            typed.append((line.removeprefix("$ "), []))
        elif line[0] not in "╭│╰":
            typed[-1][1].append(line)
    return re.findall(r"^\$ (.*)$", first, re.M), typed


def code(begin: str) -> str:
    """The README's Python that begins so."""
    (found,) = re.findall(rf"^```python\n({re.escape(begin)}.*?)^```$", README, re.M | re.S)
    return str(found)


@pytest.fixture(scope="module")
def directory(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty directory with a .venv of the wheels, and the README's programs."""
    directory = tmp_path_factory.mktemp("newcomer")
    names = ["counterpoise[spark]", "counterpoise-server"]
    environment_like_ours(wheels, names, directory / ".venv")
    (directory / "tour.py").write_text(code("import sys"), "utf-8")
    return directory


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A user without settings and without data; other services may be on the usual port.

    Spark's Java compiles less, which no user would notice.
    """
    port = str(free_port())
    return {
        "PYSPARK_SUBMIT_ARGS": with_small_java()["PYSPARK_SUBMIT_ARGS"],
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": str(tmp_path),
        "COUNTERPOISE_PORT": port,
        "COUNTERPOISE_URL": f"http://127.0.0.1:{port}",
    }


@pytest.fixture
def second(directory: Path, environment: dict[str, str]) -> Iterator[Terminal]:
    """The second terminal, while the first runs the service."""
    begin, serve = terminals()[0]
    script = f"{begin} && exec {serve}"
    log = (directory / "service.log").open("w")
    with (
        log,
        subprocess.Popen(
            ["bash", "--norc", "-c", script],
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as service,
    ):
        assert service.stdout is not None
        listens = service.stdout.readline()
        assert listens == f"Counterpoise listens on {environment['COUNTERPOISE_URL']}\n"
        terminal = Terminal(directory, environment)
        yield terminal
        terminal.close()
        service.send_signal(signal.SIGINT)
        assert service.wait(150) == 130 or service.returncode == 0
    said = (directory / "service.log").read_text("utf-8")
    assert "Traceback" not in said
    assert not re.findall(r"error|warning", said)


def orders_read(said: str) -> int:
    """The sum of what `grep -c` found."""
    return sum(int(count) for count in re.findall(r"^\w+\.log:(\d+)$", said, re.M))


@pytest.mark.matrix(of="newcomers")
def test_the_tour_works_as_typed_and_leaves_nothing_to_guess(
    second: Terminal, directory: Path
) -> None:
    """Whatever of a Spark's own is in the logs: Counterpoise has warned of nothing."""
    published = 0
    consumers = 0
    for line, shown in terminals()[1]:
        if "grep -c" in line:
            read = orders_read(second.type(line))
            assert read == published, "each order was read by one of them"
            continue
        if "counterpoise status" in line:
            # Both are bound, and each has its share.
            second.see(line, "Ready", "consumers: 2 active", "     4  ")
            second.see("counterpoise lag orders", "orders: 0 messages behind")
            continue
        said = second.type(line)
        published += 1000 if "publish" in line else 0
        if line.startswith("python"):
            consumers += 1
        elif line == "kill %1":
            second.see("counterpoise status orders", "Ready", "consumers: 1 active", "     8  ")
        elif "publish" in line and consumers:
            second.see("counterpoise lag orders", "orders: 0 messages behind")
        elif "history" in line:
            assert "one began to drain" in said
            assert re.search(r"one +two +graceful", said)
        elif line == "kill %2":
            second.see("counterpoise status", "orders", "Ready", " 0 ")
            logs = [(directory / f"{name}.log").read_text("utf-8") for name in ("one", "two")]
            assert not re.findall(r"Traceback|(?:WARNING|ERROR) counterpoise.*", "".join(logs))
        assert not set(shown) - set(said.splitlines())
    assert consumers == 2
    assert published == 2000
    assert {one.name for one in directory.iterdir()} == {".venv", "service.log"}


@pytest.mark.matrix(of="newcomers")
def test_programs_without_spark_and_questions_of_an_operator(
    second: Terminal, directory: Path
) -> None:
    """The README's other code, and what a new user asks next."""
    second.type(terminals()[0][0])
    assert "counterpoise queues create" in second.type("counterpoise queues create --help")
    second.type("counterpoise queues create orders --partitions 4")
    (directory / "publish.py").write_text(code("from counterpoise import Publisher"), "utf-8")
    second.type("python publish.py")
    assert "one more" in second.type("counterpoise consume orders --max-messages 1 2>&1")
    assert "fine" in second.type("counterpoise doctor")
    listed = second.type("counterpoise queues list").splitlines()
    assert listed[0].split() == ["QUEUE", "STATUS", "PARTITIONS", "CONSUMERS", "LAG", "LOG"]
    assert len(listed) == 2
    assert "would" in second.type("counterpoise positions set orders earliest --dry-run")

    consume = code("from counterpoise import Consumer").replace(
        'orders"', 'orders", client_name="me"'
    )
    (directory / "consume.py").write_text(consume, "utf-8")
    second.type("python consume.py > consumed.log 2>&1 &")
    second.see("counterpoise status orders", "consumers: 1 active")
    said = second.type("counterpoise consumers drain orders me")
    assert "nobody can take over" in said
    # It leaves as soon as it owns nothing; the command may look in between.
    assert "me has left" in said or "me owns no partition any more" in said
    second.type("wait")
    second.type("python consume.py > deleted.log 2>&1 &")
    second.see("counterpoise status orders", "consumers: 1 active")
    assert "1 consumer of it will end" in second.type("counterpoise queues delete orders --force")
    second.type("wait")
    ended = (directory / "deleted.log").read_text("utf-8")
    assert "Traceback" not in ended
    for name in ("publish.py", "consume.py", "consumed.log", "deleted.log"):
        (directory / name).unlink()
    shutil.rmtree(directory / "spark-warehouse", ignore_errors=True)
