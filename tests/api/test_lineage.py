"""The graph of a dynamic queue over HTTP: as JSON, as DOT, and how much one report may name."""

import json
from typing import Any

import httpx
import pytest

from api.bodies import SMALL_BYTES
from tests.api.consumer import Consumer, bind, create_queue
from tests.api.test_problems import problem

DOT = "text/vnd.graphviz"


def test_the_graph_is_drawn_for_those_who_accept_dot(api: httpx.Client) -> None:
    create_queue(api, "flights", 1, partitioning="dynamic")
    split = api.post("/queues/flights/partitions/0/split", json={"at": "40000000"})
    assert split.status_code == 200, split.text
    for accept in (DOT, f"application/json;q=0.5, {DOT}"):
        drawn = api.get("/queues/flights/lineage", headers={"Accept": accept})
        assert drawn.headers["content-type"] == f"{DOT}; charset=utf-8"
        assert '  "00000000-ffffffff.0" -> "40000000-ffffffff.2";\n' in drawn.text
        assert drawn.text.startswith('digraph "flights" {\n')
    for accept in ("application/json", "*/*"):
        shown = api.get("/queues/flights/lineage", headers={"Accept": accept})
        assert shown.headers["content-type"] == "application/json"
        assert [one["waits_for"] for one in shown.json()["items"]] == [[], [0], [0]]
    again = api.post("/queues/flights/partitions/0/split", json={"at": "40000000"})
    assert again.json() == split.json()
    elsewhere = api.post("/queues/flights/partitions/0/split", json={"at": "50000000"})
    problem(elsewhere, 409, "partition_ended")
    create_queue(api, "fixed", 1)
    refused = api.get("/queues/fixed/lineage", headers={"Accept": DOT})
    problem(refused, 422, "invalid")


def tokens(api: httpx.Client, *keys: str) -> Consumer:
    """A flow that owns these partitions of a queue whose log the service does not know."""
    created = api.post(
        "/queues",
        json={
            "name": "tokens",
            "partitioning": "dynamic",
            "partitions": [{"key": key} for key in keys],
            "rebalance_delay": 0,
            "log": "changes://source/tokens",
        },
    )
    assert created.status_code == 201, created.text
    flow = bind(api, "tokens")
    flow.until("owned", *range(len(keys)))
    return flow


def long_key(number: int) -> str:
    """As long as a key may be, and with what misleads a reader of JSON."""
    return f'{number:04}{{"\\]}}'.ljust(200, "x")


def test_a_queue_on_the_same_log_knows_at_once_what_a_split_begins(api: httpx.Client) -> None:
    create_queue(api, "flights", 1, partitioning="dynamic")
    copy = {"name": "copy", "log": "builtin:flights", "partitioning": "dynamic"}
    problem(api.post("/queues", json={**copy, "partition_count": 1}), 422, "invalid")
    assert api.post("/queues", json=copy).status_code == 201
    assert api.post("/queues/flights/partitions/0/split", json={}).status_code == 200
    items = api.get("/queues/copy/lineage").json()["items"]
    assert [one["state"] for one in items] == ["unassigned", "waiting", "waiting"]


def test_an_item_names_at_most_a_thousand_children(api: httpx.Client) -> None:
    flow = tokens(api, "root")
    children = [{"key": f"token-{n}", "parents": ["root"]} for n in range(1001)]
    refused = flow.call("children", {"partitions": [flow.item(0, children=children)]})
    problem(refused, 422, "invalid")
    assert flow.outcomes("children", flow.item(0, children=children[:1000])) == ["ok"]
    graph = api.get("/queues/tokens/lineage?limit=1000").json()
    assert len(graph["items"]) == 1000
    assert graph["next_cursor"]
    waiting = api.get("/queues/tokens/rebalance").json()["waiting"]
    assert len(waiting) == 1000


@pytest.mark.long
def test_a_thousand_children_may_have_long_keys(api: httpx.Client) -> None:
    """Found from outside: every report above 64 KiB was refused."""
    root = long_key(0)
    flow = tokens(api, root)
    children = [{"key": long_key(n), "parents": [root], "position": None} for n in range(1, 1001)]
    item = flow.item(0, children=children, finished=True, position="7")
    assert len(json.dumps(item)) > 6 * SMALL_BYTES
    assert flow.outcomes("children", item) == ["ok"]
    graph = api.get("/queues/tokens/lineage?limit=1000").json()["items"]
    assert [one["key"] for one in graph[1:]] == [child["key"] for child in children[:-1]]
    assert (graph[0]["state"], graph[1]["parents"]) == ("finished", [root])


def test_a_child_may_have_many_parents_with_long_keys(api: httpx.Client) -> None:
    keys = [long_key(n) for n in range(500)]
    flow = tokens(api, *(f"{n}" for n in range(2)))
    first = [{"key": key, "parents": ["0"]} for key in keys]
    merged: list[dict[str, Any]] = [
        {"partition": 2000, "parents": ["1", *keys[:499]], "key": "merged"},
        {"key": "after", "parents": ["merged", "1"]},
    ]
    small = flow.item(0, children=first[:3]), flow.item(1, position="2")
    assert flow.outcomes("children", *small) == ["ok", "ok"]
    items = flow.item(0, children=first), flow.item(1, position="3", children=merged)
    assert len(json.dumps(merged[0])) > SMALL_BYTES
    assert flow.outcomes("children", *items) == ["ok", "ok"]
    found = api.get("/queues/tokens/lineage?limit=1000&cursor=1999").json()["items"]
    assert [(one["partition"], one["key"]) for one in found] == [(2000, "merged"), (2001, "after")]
    assert found[0]["parents"] == merged[0]["parents"]


@pytest.mark.long
def test_a_page_ends_before_it_is_large(api: httpx.Client) -> None:
    """Eight children with 900 long parents each: 1.5 MB in one answer before."""
    keys = [long_key(n) for n in range(900)]
    flow = tokens(api, *keys)
    children = [{"key": f"child-{n}", "parents": keys} for n in range(8)]
    for two in (children[n : n + 2] for n in range(0, 8, 2)):
        assert flow.outcomes("children", flow.item(0, children=two)) == ["ok"]
    for path in ("lineage", "partitions"):
        cursor, seen, pages = "899", list[int](), 0
        while cursor is not None:
            page = api.get(f"/queues/tokens/{path}?limit=1000&cursor={cursor}")
            assert len(page.content) < 2**20
            seen += [one["partition"] for one in page.json()["items"]]
            cursor, pages = page.json()["next_cursor"], pages + 1
        assert (seen, pages) == ([*range(900, 908)], 2)


def test_a_call_names_so_many_children_and_parents_at_the_most(api: httpx.Client) -> None:
    flow = tokens(api, "0", "1")
    parents = ["0", *(f"{n}" for n in range(1, 1000))]
    children = [{"key": f"child-{n}", "parents": parents} for n in range(3)]
    refused = flow.call("children", {"partitions": [flow.item(0, children=children)]})
    problem(refused, 422, "invalid")
    assert "at most 2048" in refused.json()["detail"]
    fewer = flow.item(0, children=children[:2])
    assert flow.outcomes("children", fewer) == ["unknown_parent"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "value", "field"),
    [
        (("position",), 7, "partitions.1.position"),
        (("children", 400, "key"), "", "partitions.1.children.400.key"),
        (("children", 400, "colour"), "red", "partitions.1.children.400.colour"),
        (("children", 400), 7, "partitions.1.children.400"),
        (("children", 3, "parents", 400), 7, "partitions.1.children.3.parents.400"),
        (("children", 3, "parents"), ["0"] * 1001, "partitions.1.children.3.parents"),
        (("children",), [{"key": "k", "parents": ["0"]}] * 1001, "partitions.1.children"),
    ],
)
def test_what_is_wrong_in_a_large_report_is_named(
    api: httpx.Client, place: tuple[str | int, ...], value: object, field: str
) -> None:
    """And nothing else is: what comes after it in the item is read all the same."""
    flow = tokens(api, "0", "1")
    children = [{"key": long_key(n), "parents": ["1"]} for n in range(450)]
    children[3]["parents"] = ["1", *(long_key(n) for n in range(500))]
    items = [flow.item(0), {"children": children, **flow.item(1)}]
    spoiled: Any = items[1]
    for step in place[:-1]:
        spoiled = spoiled[step]
    spoiled[place[-1]] = value
    answer = flow.call("children", {"partitions": items, "seq": 1})
    problem(answer, 422, "invalid")
    assert [one["field"] for one in answer.json()["errors"]] == [field]
