"""`counterpoise partitions`: split, the hottest too, and merge."""

import json
import threading
from types import SimpleNamespace as Object
from typing import Any

import pytest
from click.testing import CliRunner

from counterpoise.cli import partitions
from counterpoise.cli.app import app
from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError
from counterpoise.keys import hash_of
from counterpoise.logs.ranges import parse_range
from counterpoise.publisher import Publisher
from tests.service import eventually


@pytest.fixture
def client(service):
    with Client(service.url) as client:
        client.create_queue("flights", 2, partitioning="dynamic")
        yield client


def run(client, *words):
    return CliRunner().invoke(app, ["partitions", *words, "--url", client.url.removesuffix("/v1")])


def test_partitions_are_split_and_merged(client):
    done = run(client, "split", "flights", "0", "--at", "10000000")
    assert done.exit_code == 0, done.output
    assert "sealed 0 (at 0)" in done.output
    assert "began 2: 00000000-0fffffff.2" in done.output
    merged = run(client, "merge", "flights", "2", "3", "--json")
    assert json.loads(merged.output)["children"][0]["key"] == "00000000-7fffffff.4"


@pytest.mark.parametrize(
    "words", [["flights"], ["flights", "0", "--hottest"], ["flights", "0", "--at", "half"]]
)
def test_what_makes_no_sense_is_refused(client, words):
    assert run(client, "split", *words).exit_code == 2


def looking(*looks) -> Any:
    """A client whose looks at the partitions find these (number, end, state)."""
    following = iter(looks)
    return Object(
        partitions=lambda queue: [
            Object(partition=number, key=f"k{number}", end=end, state=state)
            for number, end, state in next(following)
        ]
    )


LARGE, SMALL, NEW = (0, "1000000", "owned"), (1, "10", "owned"), (2, "3", "owned")
UNKNOWN = (0, None, "owned")


@pytest.mark.parametrize("looks", [([UNKNOWN, SMALL], [LARGE]), ([LARGE], [UNKNOWN, SMALL])])
def test_no_partition_is_the_hottest_while_an_end_is_unknown(looks):
    with pytest.raises(CounterpoiseError, match=r"log of flights does not answer.*try again"):
        partitions._hottest(looking(*looks), "flights", 0)


def test_what_a_new_partition_has_is_its_growth():
    done = (4, None, "finished")
    looks = looking([LARGE, SMALL, done], [LARGE, (1, "12", "owned"), NEW, (4, "99", "finished")])
    assert partitions._hottest(looks, "flights", 0) == 2


@pytest.mark.long
def test_the_hottest_partition_is_split_where_its_load_lies(service, client):
    stop = threading.Event()

    # Both are in the lower half of the hashes.
    hot = ("k2", "k3")

    def publish():
        with Publisher("flights", url=service.url) as publisher:
            while not stop.wait(0.005):
                for key in hot:
                    publisher.publish(b"1", key)

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        eventually(lambda: int(client.partitions("flights")[0].end) > 20)
        done = run(client, "split", "flights", "--hottest", "--seconds", "1", "--json")
    finally:
        stop.set()
        publishing.join(240)
    assert done.exit_code == 0, done.output
    answer = json.loads(done.output)
    assert answer["sealed"][0]["partition"] == 0
    halves = [parse_range(child["key"]) for child in answer["children"]]
    assert [[hash_of(key) in half for half in halves if half] for key in hot] == [
        [True, False],
        [False, True],
    ]
