"""The graph of a dynamic queue over HTTP: as JSON, as DOT, and how much one report may name."""

import httpx

from tests.api.consumer import bind, create_queue
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
    create_queue(api, "fixed", 1)
    refused = api.get("/queues/fixed/lineage", headers={"Accept": DOT})
    problem(refused, 422, "invalid")


def test_an_item_names_at_most_a_thousand_children(api: httpx.Client) -> None:
    created = api.post(
        "/queues",
        json={
            "name": "tokens",
            "partitioning": "dynamic",
            "partitions": [{"key": "root"}],
            "rebalance_delay": 0,
            "log": "changes://source/tokens",
        },
    )
    assert created.status_code == 201, created.text
    flow = bind(api, "tokens")
    flow.until("owned", 0)
    children = [{"key": f"token-{n}", "parents": ["root"]} for n in range(1001)]
    refused = flow.call("children", {"partitions": [flow.item(0, children=children)]})
    problem(refused, 422, "invalid")
    assert flow.outcomes("children", flow.item(0, children=children[:1000])) == ["ok"]
    graph = api.get("/queues/tokens/lineage?limit=1000").json()
    assert len(graph["items"]) == 1000
    assert graph["next_cursor"]
    waiting = api.get("/queues/tokens/rebalance").json()["waiting"]
    assert len(waiting) == 1000
