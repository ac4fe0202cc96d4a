"""A client that a generator makes of openapi.yaml compiles, and consumes a queue.

So somebody who writes in a language for which we have no client can begin with a generated one. The
generator is openapi-python-client, whose models are typed: a document that says too little would
give `Any`, and one that is no valid schema an error or a warning.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from counterpoise.keys import partition_of
from tests.service import Service

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
NAME = "generated_client"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    at = tmp_path_factory.mktemp("generated")
    programs = Path(sys.executable).parent
    command = [
        f"{programs}/openapi-python-client", "generate",
        "--path", f"{ROOT}/openapi.yaml", "--output-path", f"{at}/{NAME}",
        "--meta", "none", "--fail-on-warning",
    ]  # fmt: skip
    # It formats what it has made with ruff.
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(at)
        yield importlib.import_module(NAME)


def test_each_call_and_each_document_can_be_imported(generated: ModuleType) -> None:
    assert generated.__path__
    at = Path(generated.__path__[0])
    calls = [*at.glob("api/*/[a-z]*.py")]
    for each in calls:
        module = importlib.import_module(f"{NAME}.api.{each.parent.name}.{each.stem}")
        assert module.sync_detailed
    assert len(calls) > 40
    assert importlib.import_module(f"{NAME}.models").Queue


def test_it_consumes_a_queue(generated: ModuleType, service: Service) -> None:
    models = importlib.import_module(f"{NAME}.models")

    def call(group: str, name: str, *path: str, **rest: Any) -> Any:
        """The document that the service answers; fails if it refuses the call."""
        module = importlib.import_module(f"{NAME}.api.{group}.{name}")
        answer = module.sync_detailed(*path, **rest)
        assert answer.status_code < 300, answer.content
        return answer.parsed

    with generated.Client(base_url=service.url) as anyone:
        spec = models.QueueCreate(name="orders", partition_count=2, rebalance_delay=0.0)
        made = call("queues", "create_queue", body=spec, client=anyone)
        assert made.rebalance_status == "Ready"
        apples = models.PublishRequest(value="5 apples", key="anna")
        number = call("queues", "publish", "orders", body=apples, client=anyone).partition
        assert number == partition_of("anna", 2)
        wish = models.BindRequest(client_name="generated")
        bound = call("flows", "bind", "orders", body=wish, client=anyone)

        flow = ("orders", bound.flow_id)
        with generated.AuthenticatedClient(base_url=service.url, token=bound.flow_token) as us:
            seen = bound.update
            while len(seen.partitions) < 2:
                asked = {"after": seen.revision, "wait": 5.0, "client": us}
                seen = call("flows", "updates", *flow, **asked) or seen
            epochs = {each.partition: each.epoch for each in seen.partitions}
            done = models.CommitItem(partition=number, epoch=epochs[number], position="1")
            commit = models.CommitRequest(partitions=[done], seq=1)
            (result,) = call("flows", "commit", *flow, body=commit, client=us).results
            assert result.outcome == "ok"
            call("flows", "unbind", *flow, client=us)

        left = call("queues", "partitions", "orders", client=anyone).items
        assert {each.partition: each.lag for each in left} == {0: 0, 1: 0}
        show = importlib.import_module(f"{NAME}.api.queues.show_queue")
        problem = show.sync("none", client=anyone)
        assert isinstance(problem, models.Problem)
        assert problem.code == "queue_not_found"
