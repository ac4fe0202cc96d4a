"""A stateful application whose executors are processes of their own, with a shipped package.

`local-cluster` is a standalone cluster within one machine: a master, workers, and executors with a
JVM each, to which tasks and files go over the network as on any cluster. The other way to ship the
package is in `tests/counterpoise/on_redis/test_spark.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.counterpoise.spark.cluster.application import WithEnvironment, check_executors
from tests.counterpoise.spark.cluster.environments import environment, packed
from tests.counterpoise.spark.jobs.drivers import Drivers
from tests.counterpoise.spark.stage import staged
from tests.counterpoise.spark.test_warmup_applications import (
    WarmStage,
    check_there_and_back,
    there_and_back,
)
from tests.service import Service

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("drivers 1")]


@pytest.fixture
def stage(service: Service, drivers: Drivers, tmp_path: Path) -> Iterator[WarmStage]:
    with staged(WarmStage, service, tmp_path, drivers) as stage:
        yield stage


@pytest.mark.matrix(of="clusters")
def test_shipped_as_an_archive_of_an_environment_there_and_back_again_the_state_is_right(
    stage: WarmStage, tmp_path: Path
) -> None:
    """The state is in the processes of executors, and what keeps it comes with the archive."""
    unpacked = environment(tmp_path / "packed", with_package=True)
    archive = packed(unpacked, tmp_path / "environment.tar.gz")
    first = stage.stateful(
        "first", "replay", kind_of=WithEnvironment, archive=archive, unpacked=unpacked
    )
    there_and_back(stage, first, stage.stateful("second", "replay"))
    assert first.stop() == 0
    check_there_and_back(stage)
    assert stage.moves()["graceful"] >= 2
    check_executors(first, "environment/lib")
