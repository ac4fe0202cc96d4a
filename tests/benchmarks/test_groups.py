"""Every way to share partitions, on a real coordinator, at the smallest size: only counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.groups import VARIANTS, Deploy, Growth, Joins, Sizes, Stage, Variant, deploy
from benchmarks.groups import growth as grown
from benchmarks.groups import joins as joined
from counterpoise.client import Client
from tests.kafka_server import ApacheKafka, apache_kafka
from tests.service import Service

__all__ = ["apache_kafka"]

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("kafka")]

SIZES = Sizes(
    joins=(1,),
    join_partitions=4,
    growth_members=2,
    growth=(4, 8),
    deploy_members=2,
    deploy_replaced=2,
    deploy_partitions=4,
)
# The classic ones take the same way as KIP-848.
NAMES = ("counterpoise", "kip-848", "share group")
SHORT = [pytest.param(one, id=one.name) for one in VARIANTS if one.short and one.name in NAMES]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service looks for new partitions of a topic every half second, and a slow machine loses
    nobody.
    """
    monkeypatch.setattr("broker.service.GROWTH_SECONDS", 0.5)
    monkeypatch.setattr("benchmarks.groups.SESSION_MILLISECONDS", 45_000)


@pytest.fixture
def stage(soon: None, service: Service, apache_kafka: ApacheKafka) -> Iterator[Stage]:
    with Client(service.url) as client:
        yield Stage(apache_kafka, service.url, client)


@pytest.mark.matrix("variant")
@pytest.mark.parametrize("variant", SHORT)
def test_consumers_come_and_go_and_the_topic_grows(stage: Stage, variant: Variant) -> None:
    """Nothing is lost, all is owned evenly at the end (otherwise it does not end), and a plan that
    is made from what consumers have moves as little as can be.
    """
    came: Joins = joined(stage, variant, 1, "join", SIZES)
    assert came.lost == 0
    for step in (came.join, came.leave):
        assert step.changed >= step.least
        assert not variant.has_owners or step.changed == step.least == 2
        assert not variant.has_owners or step.moves.given_back == 0
    assert not variant.has_owners or came.out_of_order == 0

    more: Growth = grown(stage, variant, "growth", SIZES)
    assert more.lost == 0
    assert not variant.has_owners or more.moved == 0

    replaced: Deploy = deploy(stage, variant, "deploy", SIZES)
    assert replaced.lost == 0
    assert not variant.has_owners or replaced.out_of_order == 0
    assert not variant.has_owners or replaced.moves.moved >= replaced.least == 4
