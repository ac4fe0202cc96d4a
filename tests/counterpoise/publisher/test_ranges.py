"""The publisher and a log whose partitions split and merge while it publishes."""

from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from counterpoise.keys import partition_of
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.logs.ranges import equal_ranges, parse_range
from counterpoise.publisher import Publisher
from tests.counterpoise.log_access import service
from tests.log_support import log_url, texts, until, with_logs

__all__ = ["log_url", "service"]

LOG = "builtin:flights"
# To append so many takes about as long as to split a partition.
EACH = 500


def make(url, count):
    keys = {one.partition: one.key for one in equal_ranges(count)}
    with_logs(url, lambda logs: logs.drop(LOG))
    with_logs(url, lambda logs: logs.ensure(LOG, count, keys=keys))


@pytest.fixture
def log(log_url):
    make(log_url, 2)
    log = PostgresLog("flights", log_url, timeout_seconds=10)
    yield log
    log.close()


@pytest.fixture
def publisher(service):
    with Publisher("flights", url=service.url, timeout_seconds=60, batch_messages=20) as publisher:
        yield publisher


def split(url, partition):
    return with_logs(url, lambda logs: logs.ranges.split(LOG, partition, None))


def merge(url, partition, other):
    return with_logs(url, lambda logs: logs.ranges.merge(LOG, partition, other))


def in_order(log):
    """All values, a partition after all its parents."""
    bounds = log.bounds(range(log.bounds([]).partition_count))
    waiting, done, read = [0, 1], set(), []
    while waiting:
        partition = waiting.pop()
        read += texts(log, partition)
        done.add(bounds.keys[partition])
        waiting += [
            after.partition
            for after in bounds.sealed.get(partition, ())
            if done.issuperset(after.parents)
        ]
    return read


def test_a_publisher_learns_the_ranges_from_the_log(publisher, log):
    for number in range(100):
        publisher.publish(str(number).encode(), key=f"k{number}")
    publisher.flush()
    assert {*texts(log, 0)} | {*texts(log, 1)} == {str(number) for number in range(100)}
    assert min(len(texts(log, 0)), len(texts(log, 1))) > 20


def test_messages_without_a_key_go_to_all_partitions_that_are_not_sealed(publisher, log, log_url):
    split(log_url, 0)
    for number in range(90):
        publisher.publish(str(number).encode())
    publisher.flush()
    sealed, *others = [len(texts(log, partition)) for partition in range(4)]
    assert (sealed, sum(others)) == (0, 90)
    assert max(others) - min(others) <= 2


@pytest.mark.long
def test_splits_and_merges_amid_batches_lose_repeat_and_reorder_nothing(publisher, log, log_url):
    """One of them at a time, each while another EACH messages are published."""
    published = defaultdict(list)
    current = {one.partition: one for one in equal_ranges(2)}
    random = Random(7)

    def reshape():
        one = random.choice(sorted(current.values()))
        side = next((r for r in current.values() if r.first == one.last + 1), None)
        if side is not None and random.random() < 0.4:
            found = merge(log_url, one.partition, side.partition)
        else:
            found = split(log_url, one.partition)
        for sealed in found.ends:
            del current[sealed]
        for after in found.successors:
            parsed = parse_range(after.key)
            assert parsed is not None
            current[after.partition] = parsed

    with ThreadPoolExecutor(1) as pool:
        for turn in range(20):
            reshaping = pool.submit(reshape)
            for number in range(turn * EACH, (turn + 1) * EACH):
                key = f"k{number % 17}"
                published[key].append(f"{key}:{number}")
                publisher.publish(published[key][-1].encode(), key=key)
            reshaping.result(240)
    publisher.flush()
    found = in_order(log)
    for key, values in published.items():
        assert [text for text in found if text.startswith(f"{key}:")] == values
    assert len(found) == 20 * EACH


def test_a_publisher_that_is_killed_and_goes_on_publishes_each_message_once(service, log, log_url):
    """Another process repeats from the log's next sequence, across a split."""
    first = Publisher("flights", url=service.url, publisher_id="p", batch_messages=10)
    for number in range(105):
        first.publish(str(number).encode(), key=f"k{number % 5}")
    until(lambda: first.unconfirmed <= 60)
    split(log_url, 0)
    # It is never closed properly: what it had not sent is published by the next one.
    with Publisher("flights", url=service.url, publisher_id="p") as other:
        first.flush()
        start = other.next_sequence
        assert start == 105
        for number in range(start, 120):
            other.publish(str(number).encode(), key=f"k{number % 5}")
    first.close()
    assert Counter(in_order(log)) == Counter(str(number) for number in range(120))


def test_a_queue_made_again_without_ranges_is_followed(publisher, log, log_url):
    publisher.publish(b"a", key="k")
    publisher.flush()
    with_logs(log_url, lambda logs: logs.drop(LOG))
    with_logs(log_url, lambda logs: logs.ensure(LOG, 4))
    publisher.publish(b"b", key="k")
    publisher.flush()
    assert texts(log, partition_of("k", 4)) == ["b"]
    make(log_url, 3)
    publisher.publish(b"c", key="k")
    publisher.flush()
    assert [text for partition in range(3) for text in texts(log, partition)] == ["c"]
