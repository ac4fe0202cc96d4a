"""A Redis that cuts large answers: reads shrink until it answers them."""

import pytest

from counterpoise.client import Client
from counterpoise.consumer import Consumer
from counterpoise.publisher import Publisher
from tests.redis_server import RedisServer

MESSAGES = 2000
SIZE = 1000


@pytest.mark.long
def test_a_consumer_handles_all_messages(service, tmp_path):
    handled: list[int] = []
    with RedisServer(tmp_path, client_output_buffer_limit="normal 200kb 0 0") as server:
        with Client(service.url) as client:
            client.create_queue("flights", 2, log=server.log("flights"), rebalance_delay=0)
        with Publisher("flights", url=service.url) as publisher:
            for number in range(MESSAGES):
                publisher.publish(b"%d " % number * SIZE, f"k{number % 7}")
        consumer = Consumer(
            "flights",
            each=lambda message: handled.append(int(message.value.split()[0])),
            url=service.url,
            limit=MESSAGES,
        )
        consumer.run()
    assert sorted(handled) == [*range(MESSAGES)]
