"""Tests both packages with the lowest versions that they allow, in an environment of its own.

    .venv/bin/python deploy/lowest.py [DIRECTORY] [ARGUMENTS OF PYTEST]

Every direct dependency of the packages and their extras is installed at its lower bound, what these
need in turn at the newest version that fits, and the tools of the tests as they are locked. The
server's extra `otel` is left out: it asks for the FastAPI that makes spans, far above the bound.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = (ROOT / "pyproject.toml", ROOT / "deploy/server/pyproject.toml")
TRACES = "tests/tracing/test_traces.py"
# A choice that reaches every dependency: the core, both stores, the API, clients and consumers, the
# logs on Postgres, Redis and Kafka, the fenced sink with all its targets, and traces.
TESTS = (
    "tests/broker/core",
    "tests/broker/store",
    "tests/broker/test_cli.py",
    "tests/api/test_flows.py",
    "tests/api/test_queues.py",
    "tests/api/test_streams.py",
    "tests/api/test_metrics.py",
    "tests/counterpoise/flow",
    "tests/counterpoise/consumer",
    "tests/counterpoise/logs",
    "tests/counterpoise/testing",
    "tests/counterpoise/cli/test_cli.py",
    "tests/counterpoise/spark/sink/test_lakes.py",
    "tests/counterpoise/spark/sink/test_targets.py",
    "tests/counterpoise/spark/source/test_available_now.py",
    "tests/counterpoise/spark/source/test_batch_limit.py",
    "tests/counterpoise/spark/source/test_cycles.py",
    "tests/counterpoise/spark/source/test_opening.py",
    "tests/counterpoise/spark/source/test_probe.py",
    "tests/counterpoise/spark/source/test_query.py",
    "tests/counterpoise/spark/source/test_settler.py",
    "tests/counterpoise/spark/source/test_warmup_tracker.py",
    f"{TRACES}::test_a_consumer_shows_what_it_reads_and_its_commits",
    f"{TRACES}::test_a_handoff_begun_by_one_replica_and_ended_by_another_is_in_one_trace",
)

# Applications of Spark's, which are among the long tests.
APPLICATIONS = (
    (
        "tests/counterpoise/spark/test_applications.py::"
        "test_a_second_application_joins_and_the_first_leaves_without_a_trace"
    ),
    "tests/counterpoise/spark/driver/test_python.py",
)


def tools() -> Iterator[str]:
    """What builds and tests, each at least as locked; so the lowest is what is locked."""
    lock = (ROOT / "deploy/constraints.txt").read_text("utf-8")
    locked = dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", lock, re.M))
    groups = tomllib.loads(PROJECTS[0].read_text("utf-8"))["dependency-groups"]
    for text in (*groups["build"], *groups["test"]):
        name = re.match(r"[\w.-]+", text)
        assert name is not None, text
        marker = text.partition(";")[2]
        if name[0] == "opentelemetry-sdk":  # it fixes the version of the API
            yield text
        else:
            yield f"{name[0]}>={locked[name[0].lower()]}" + (f"; {marker}" if marker else "")


def run(*command: str | Path) -> int:
    print("+", *command, flush=True)  # noqa: T201
    return subprocess.run([*map(str, command)], cwd=ROOT, check=False).returncode


def install(directory: Path) -> None:
    """Make the environment; exits if the bounds contradict each other."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    python = directory / "bin/python"
    with tempfile.TemporaryDirectory() as temporary:
        wanted, chosen = Path(temporary, "tools.in"), Path(temporary, "lowest.txt")
        wanted.write_text("\n".join(tools()) + "\n")
        project = tomllib.loads(PROJECTS[0].read_text("utf-8"))["project"]
        extras = [f"--extra={name}" for name in project["optional-dependencies"] if name != "otel"]
        resolve = ("--resolution", "lowest-direct", *extras, "--no-header", "--no-annotate")
        ours = [
            part
            for name in ("", "-server")
            for part in ("--no-emit-package", f"counterpoise{name}")
        ]
        editable = ["--no-deps", "--no-build-isolation"]
        for project in (ROOT, ROOT / "deploy/server"):
            editable += ["--editable", str(project)]
        for command in (
            (uv, "venv", "--quiet", "--clear", "--python", sys.executable, directory),
            (uv, "pip", "compile", *resolve, *ours, "-o", chosen, *PROJECTS, wanted),
            (uv, "pip", "install", "--quiet", "--python", python, "-r", chosen),
            (uv, "pip", "install", "--quiet", "--python", python, *editable),
        ):
            if code := run(*command):
                sys.exit(code)


def main(arguments: Sequence[str]) -> int:
    directory = Path(arguments[0] if arguments else ".lowest").absolute()
    install(directory)
    choice = arguments[1:] or ("-m", "not long", *TESTS)
    python = directory / "bin/python"
    failed = run(python, "-m", "pytest", "-q", *choice)
    return failed or (not arguments[1:] and run(python, "-m", "pytest", "-q", *APPLICATIONS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
