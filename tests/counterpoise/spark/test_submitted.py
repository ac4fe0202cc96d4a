"""An application under spark-submit: the JVM is its parent, and gets the signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from counterpoise.client import Client
from counterpoise.flow import Flow
from tests.counterpoise.spark.queries import committed, publish
from tests.counterpoise.spark.submitted import Submitted
from tests.counterpoise.spark.waiting import until
from tests.processes import find
from tests.service import Service

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("programs 2"),
    pytest.mark.matrix(of="programs that end"),
]


@pytest.fixture
def submitted(service: Service, tmp_path: Path) -> Iterator[Submitted]:
    with Client(service.url) as client:
        client.create_queue("flights", 2, rebalance_delay=0, max_handoff_time=600)
    publish(service, "flights", 20)
    with Submitted(tmp_path, service.url).watched() as one:
        yield one


@pytest.mark.parametrize("both", [False, True])
def test_a_jvm_that_is_told_to_end_drains_first(
    service: Service, submitted: Submitted, both: bool
) -> None:
    """As a pod that is told to stop; `both`: the signal also reaches Python, as under systemd."""
    until(lambda: submitted.batches() or submitted.over(), "the first micro-batch")
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
        assert submitted.jvm.wait(400) == 128 + signal.SIGTERM
        until(lambda: find(python) is None, "the program has ended")
        assert (submitted.home / "ended").read_text() == "3", submitted.said()
        assert not client.flows("flights")
        done = sum(int(at or 0) for at in committed(client, "flights").values())
        values = submitted.values()
        assert len(values) == len(set(values)) == done
        with Flow("flights", url=service.url) as successor:
            until(lambda: len(successor.partitions) == 2, "the next owner")
            assert {one.handed_over for one in successor.partitions.values()} == {"graceful"}
    assert "StreamingQueryListenerBus" not in submitted.said()
    assert "Traceback" not in submitted.said()


def test_a_killed_program_is_told_apart_from_one_that_left(
    service: Service, submitted: Submitted
) -> None:
    """Its source process survives it for a moment and unbinds for it: it says why."""
    until(lambda: submitted.batches() or submitted.over(), "the first micro-batch")
    assert not submitted.over(), submitted.said()
    os.kill(submitted.python(), signal.SIGKILL)
    with Client(service.url) as client:
        until(lambda: not client.flows("flights"), "the source process unbinds")
        newest = client.rebalances("flights")[0]
        assert newest.trigger == "driver_lost", submitted.said()
