"""Iteration: which messages count as handled, and how a loop ends."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from counterpoise.consumer import Consumer, DeadLetter, Message
from tests.counterpoise.consumer.conftest import positions
from tests.service import eventually


def consume(service, count, **options):
    return [int(m.value) for m in Consumer("flights", url=service.url, limit=count, **options)]


def test_a_loop_gets_whole_messages_in_the_order_of_their_keys(service, client, publish):
    publish(range(50))
    seen = list(Consumer("flights", url=service.url, limit=50))
    assert sorted(int(message.value) for message in seen) == list(range(50))
    for key in {message.key for message in seen}:
        numbers = [int(message.value) for message in seen if message.key == key]
        assert numbers == sorted(numbers)
    message = seen[0]
    assert isinstance(message, Message)
    assert message.headers == {"number": message.value.decode()}
    assert (message.epoch, message.position) == (1, "0")
    assert message.published_at.utcoffset() is not None
    assert message.owned.lost  # The consumer has ended.
    assert sum(int(position or 0) for position in positions(client).values()) == 50
    assert client.flows("flights") == []


def test_a_failed_message_comes_again_and_earlier_ones_do_not(service, client, publish):
    publish(range(30))
    seen: list[int] = []

    def loop():
        for message in Consumer("flights", url=service.url):
            if len(seen) == 7:
                raise ValueError("seven")
            seen.append(int(message.value))

    with pytest.raises(ValueError, match="seven"):
        loop()
    assert client.flows("flights") == []
    assert sorted(seen + consume(service, 23)) == list(range(30))


def test_break_leaves_the_message_in_hand_and_stop_keeps_it(service, client, publish):
    publish(range(30))
    seen: list[int] = []
    with Consumer("flights", url=service.url) as consumer:
        for message in consumer:
            if len(seen) == 7:
                break
            seen.append(int(message.value))
    assert client.flows("flights") == []
    stopped = Consumer("flights", url=service.url)
    for message in stopped:
        seen.append(int(message.value))
        if len(seen) == 17:
            stopped.stop(now=True)
    assert len(seen) == 17
    assert client.flows("flights") == []
    assert sorted(seen + consume(service, 13)) == list(range(30))


def test_a_with_block_ends_a_loop_that_something_keeps_alive(service, client, publish):
    publish(range(5))
    with Consumer("flights", url=service.url) as consumer:
        kept = iter(consumer)
        next(kept)
        next(kept)
        assert len(client.flows("flights")) == 1
    assert client.flows("flights") == []
    assert len(consume(service, 4)) == 4


def test_a_with_block_ends_a_loop_in_which_another_thread_waits(service, client):
    with ThreadPoolExecutor(1) as pool:
        with Consumer("flights", url=service.url) as consumer:
            seen = pool.submit(list, consumer)
            eventually(lambda: client.flows("flights"))
        assert seen.result(60) == []
    assert client.flows("flights") == []


def test_options_that_iteration_does_not_support_are_refused(service):
    for options in ({"concurrency": 2}, {"on_poison": DeadLetter("dead")}, {"attempts": 2}):
        with pytest.raises(ValueError, match="give each=function"):
            iter(Consumer("flights", url=service.url, **options))
    with pytest.raises(TypeError, match=r"call run\(\)"):
        iter(Consumer("flights", each=print, url=service.url))
    with pytest.raises(TypeError, match="iterate over it"):
        Consumer("flights", url=service.url).run()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on_poison": "ignore"}, "halt"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"handle": print, "each": print}, "not both"),
    ],
)
def test_wrong_settings_are_refused_at_once(options, says):
    with pytest.raises(ValueError, match=says):
        Consumer("flights", **options)
