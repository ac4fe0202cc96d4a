"""Many readers wait at the end of one partition: a message wakes each of them once, and cheaply."""

import pytest

from counterpoise.logs.builtin.connection import LogConnection
from tests.counterpoise.logs.kits import RedisKit
from tests.counterpoise.logs.test_contract_watching import is_woken, waits
from tests.log_support import append, texts

# As many connections as the servers of the tests take.
SLEEPERS = {"builtin": 50, "redis": 1000}
# A reader that is woken asks for the ends, reads, and says where it waits again. In Redis what its
# scripts call counts, too, and it connects before it asks.
MOST_CALLS = {"builtin": 5, "redis": 18}


@pytest.fixture
def calls(kit, request, monkeypatch):
    """`calls()`: how many calls the log's server has had from its readers."""
    if isinstance(kit, RedisKit):
        with request.getfixturevalue("redis_server").client() as admin:
            yield lambda: sum(one["calls"] for one in admin.info("commandstats").values())
        return
    asked, query = [], LogConnection.query

    def counted(*arguments, **more):
        asked.append(arguments[1])
        return query(*arguments, **more)

    monkeypatch.setattr(LogConnection, "query", counted)
    yield lambda: len(asked)


@pytest.mark.long
@pytest.mark.matrix("kit")
@pytest.mark.parametrize("kit", ["builtin", "redis"], indirect=True)
def test_one_message_wakes_all_readers_once(kit, calls, request):
    kind = request.node.callspec.params["kit"]
    kit.make(1)
    readers = [kit.open() for _ in range(SLEEPERS[kind])]
    for reader in readers:
        assert waits(reader, {0: "0"})
    before = calls()
    append(kit.open(), "a", partition_count=1)
    for reader in readers:
        assert is_woken(reader, {0: "0"})
        ends = reader.bounds([0]).ends
        assert texts(reader, 0, "0", ends[0]) == ["a"]
        assert waits(reader, ends)
    assert calls() - before <= MOST_CALLS[kind] * len(readers)
    # None is woken twice.
    assert all(waits(reader, ends) for reader in readers)
