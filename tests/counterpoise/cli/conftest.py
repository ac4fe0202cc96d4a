"""Commands against the real service: in this process, or as processes of their own."""

import os
from subprocess import PIPE

import pytest
from click.testing import CliRunner

from counterpoise.cli.app import app
from tests.forked import Forked


@pytest.fixture
def run(service):
    """`run("queues", "list")` runs a command against the service."""
    return lambda *arguments, **options: run_at(service.url, *arguments, **options)


def run_at(url, *arguments, code=0, stdin=None, environment=None):
    result = CliRunner().invoke(
        app, arguments, input=stdin, env={"COUNTERPOISE_URL": url, **(environment or {})}
    )
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def start(service):
    """`start("consume", …)` starts a command as a process; all are killed at the end."""
    started = []

    def start_process(*arguments, environment=None, **streams):
        process = Forked(
            "counterpoise.cli",
            arguments,
            environment={**os.environ, "COUNTERPOISE_URL": service.url, **(environment or {})},
            **{"stdin": PIPE, "stdout": PIPE, "stderr": PIPE, **streams},
        )
        started.append(process)
        return process

    yield start_process
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
