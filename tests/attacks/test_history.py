"""A history of very many moves: no answer is larger than a page, and nothing of it is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from counterpoise.client import Client
from tests.service import Service

pytestmark = pytest.mark.long

MIB = 1024 * 1024
REBALANCES, ENTRIES, SIZE = 3, 40, 256
FLOWS = [f"{n:08x}-0000-7000-8000-{n:012x}" for n in range(300)]


@pytest.fixture
def queue(target: Service, name_of_a_queue: Callable[[], str]) -> Iterator[str]:
    """A queue whose partitions were all moved, some after the others, several times."""
    name, url = name_of_a_queue(), target.settings.database_url
    assert url is not None
    with target.http as http, closing(psycopg.connect(url.get_secret_value())) as database:
        made = http.post("/queues", json={"name": name, "partition_count": 1}).raise_for_status()
        rows = []
        for place in range(REBALANCES * ENTRIES):
            id, nth = divmod(place, ENTRIES)
            began = {"kind": "GrantedOutside", "rebalance_id": id + 1, "trigger": "bind", "at": 1.0}
            grants = [
                [number, FLOWS[number % 300], FLOWS[id], id, "graceful", 1.5, True]
                for number in range(nth * SIZE, (nth + 1) * SIZE)
            ]
            records = [
                *([] if nth else [began]),
                {"kind": "Granted", "grants": grants, "at": 1.0},
            ]
            # The service may commit revision 2 meanwhile.
            rows.append((made.json()["id"], place + 1000, json.dumps(records), id + 1))
        with database.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO counterpoise.records (queue_id, revision, at, records, rebalance_id,"
                " commit_id) VALUES (%s, %s, 1.0, %s, %s, 'attack')",
                rows,
            )
        database.commit()
        yield name
        http.delete(f"/queues/{name}?force=true").raise_for_status()


def test_no_page_of_the_history_is_larger_than_it_says(target: Service, queue: str) -> None:
    moves: dict[int, list[int]] = {}
    cursor: dict[str, str] = {}
    with target.http as http:
        plain = http.get(f"/queues/{queue}/rebalances?limit=1000")
        while True:
            asked = {"limit": "1000", "moves": "true", **cursor}
            answer = http.get(f"/queues/{queue}/rebalances", params=asked)
            assert len(answer.content) <= MIB
            page = answer.json()
            for item in page["items"]:
                moves.setdefault(item["id"], []).extend(one["partition"] for one in item["moves"])
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
    everything = [*range(ENTRIES * SIZE)]
    assert moves == dict.fromkeys(range(REBALANCES, 0, -1), everything)
    assert list(moves) == [*range(REBALANCES, 0, -1)]
    assert len(plain.content) < 10_000
    assert [one["handoffs"] for one in plain.json()["items"]] == [len(everything)] * REBALANCES


@pytest.mark.matrix("most")
@pytest.mark.parametrize("most", [1, 2, None])
def test_clients_put_the_moves_of_an_entry_together(
    target: Service, queue: str, most: int | None
) -> None:
    with Client(target.url, timeout_seconds=60.0) as client:
        found = client.rebalances(queue, most)
        assert [one.id for one in found] == [*range(REBALANCES, 0, -1)][:most]
        for one in found:
            assert [move.partition for move in one.moves] == [*range(ENTRIES * SIZE)]
            assert one.clients == one.raw["clients"]
            assert len(one.raw["moves"]) == len(one.moves)
            assert one.more_moves == 0
        assert not any(one.moves for one in client.rebalances(queue, moves=False))
