"""The waits of a query before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from counterpoise.client import Client
from counterpoise.spark.errors import CannotStart, Unfinished
from counterpoise.spark.options import read_options
from counterpoise.spark.source.bound_flow import BoundFlow
from counterpoise.spark.source.flows import bind
from counterpoise.spark.source.opening import open_consumption, until_settled
from tests.service import Service


class LateFlow:
    """A flow whose update comes long after the service is Ready."""

    status = "bound"

    def __init__(self, flow_id: str) -> None:
        self.flow_ids = (flow_id,)
        self.looks = 0

    @property
    def partitions(self) -> Mapping[int, Any]:
        self.looks += 1
        return dict.fromkeys(range(4), SimpleNamespace()) if self.looks > 2 else {}


def test_a_queue_whose_holddown_is_not_over_in_time_has_given_nothing_yet(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counterpoise.spark.source.opening._SETTLE_SECONDS", 0.1)
    with Client(service.url) as client:
        client.create_queue("flights", 4, rebalance_delay=3600.0)
        flow = LateFlow(client.bind("flights", "late").flow_id)
        options = {"queue": "flights", "url": service.url, "startTimeoutSeconds": "0.1"}
        with pytest.raises(Unfinished, match="Holddown"):
            until_settled(read_options(options), cast(BoundFlow, flow))


def test_a_queue_made_again_between_the_first_look_and_the_bind_is_not_taken_for_the_old_one(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id goes into the checkpoint and the sink's rows, but the epochs are the other queue's."""

    def lose_and_bind(*arguments: Any, **named: Any) -> BoundFlow:
        client.delete_queue("flights", force=True)
        client.create_queue("flights", 4)
        return bind(*arguments, **named)

    monkeypatch.setattr("counterpoise.spark.source.opening.bind", lose_and_bind)
    with Client(service.url) as client:
        client.create_queue("flights", 4)
        options = read_options({"queue": "flights", "url": service.url})
        with pytest.raises(CannotStart, match="start once more"):
            open_consumption(options, "app", 1, renew_while=lambda: True)
        assert not client.flows("flights")


@pytest.mark.long
@pytest.mark.parametrize(
    ("log_url", "says"),
    [
        ("postgresql://reader:wrong@{place}", "no log within"),  # refused
        ("postgresql://reader:wrong@127.0.0.1:9/postgres", "no log within"),  # not there
        ("redis://127.0.0.1:9", "not one to a log of this kind"),
    ],
)
def test_a_query_that_cannot_reach_its_log_never_binds(
    service: Service, log_url: str, says: str
) -> None:
    with Client(service.url) as client:
        client.create_queue("flights", 4)
        before = client.rebalance_status("flights")
        access = client.log_access("flights", "read").access
        assert access is not None
        options = read_options(
            {
                "queue": "flights",
                "url": service.url,
                "logUrl": log_url.format(place=access.url.rpartition("@")[2]),
                "startTimeoutSeconds": "1",
            }
        )
        with pytest.raises(CannotStart, match=says):
            open_consumption(options, "app", 1, renew_while=lambda: True)
        assert client.rebalance_status("flights") == before, "a bind would begin a holddown"


def test_available_now_uses_an_up_to_date_view(service: Service) -> None:
    with Client(service.url) as client:
        client.create_queue("flights", 4, rebalance_delay=0.0)
        flow = LateFlow(client.bind("flights", "late").flow_id)
        options = read_options({"queue": "flights", "url": service.url})
        until_settled(options, cast(BoundFlow, flow))
    assert flow.looks == 3
