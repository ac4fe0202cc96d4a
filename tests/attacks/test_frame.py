"""The frame itself: a bystander who is harmed says so, and the wire shows what was answered."""

from collections.abc import Callable

import pytest

from tests.attacks.bystander import Bystander
from tests.attacks.wire import Wire
from tests.service import Service, eventually

pytestmark = pytest.mark.long


def test_a_bystander_who_lost_his_flow_says_so(
    target: Service, name_of_a_queue: Callable[[], str]
) -> None:
    somebody = Bystander(target.url, name_of_a_queue())
    with target.http as http:
        assert http.delete(f"/queues/{somebody.queue}?force=true").status_code == 204
    eventually(lambda: somebody.faults)
    somebody.leave()


def test_a_bystander_who_is_left_alone_has_nothing_to_say(
    target: Service, bystander: Bystander
) -> None:
    with Wire(target.url) as wire:
        wire.request("GET", f"/v1/queues/{bystander.queue}")
        answer = wire.answer()
        assert answer is not None
        assert answer.status == 200
        wire.send(b"nonsense\r\n\r\n")
        refusal = wire.answer()
        assert refusal is not None
        assert refusal.status == 400
        assert wire.closed_within(10)
