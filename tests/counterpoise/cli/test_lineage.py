"""`counterpoise lineage`, and what `status` says of partitions that wait for their parents."""

import json
from io import StringIO

import pytest

from counterpoise.cli.partitions import MOST_LINES, MOST_NAMED, draw
from counterpoise.cli.tables import PlainConsole
from counterpoise.client import Client
from counterpoise.plain import dot
from counterpoise.wire import LineageNode
from tests.databases import name_clients


def node(number, *parents, state="owned", owner="f1", waits_for=(), key=None):
    if waits_for:
        state, owner = "waiting", None
    return LineageNode(number, key or f"k{number}", state, owner, parents, (), tuple(waits_for))


def drawn(*nodes):
    return [line.plain for line in draw(nodes, {"f1": "etl"})]


def test_what_comes_after_a_partition_stands_below_it():
    assert drawn(
        node(0),
        node(1, state="finished", owner=None),
        node(2, "k1", owner="a-flow-that-left"),
        node(3, "k1"),
        node(4, "k2", "k3", waits_for=(2, 3)),
        node(5, "gone", state="unassigned", owner=None),
        node(6, "k3", waits_for=(3,)),
        node(7, "k3", state="revoking"),
    ) == [
        "0  k0  owned by etl",
        "5  k5  has no owner",
        "1  k1  finished",
        "├─ 2  k2  owned by flow a-flow-t",
        "│  └─ 4  k4  waits for 2, 3",
        "└─ 3  k3  owned by etl",
        "   ├─ 6  k6  waits for 3",
        "   └─ 7  k7  owned by etl, is being handed off",
    ]


def test_a_thousand_partitions_are_told_together():
    lines = drawn(*(node(n, owner=f"f{n % 3}") for n in range(1000)))
    assert len(lines) == 3
    assert lines[0] == (
        "334 partitions  owned by flow f0: 0, 3, 6, 9, 12, 15, 18, 21, 24, 27 and 324 more"
    )


def test_of_a_thousand_children_some_are_named_and_the_rest_is_counted():
    lines = drawn(node(0), *(node(n, "k0", waits_for=(0,)) for n in range(1, 1001)))
    assert len(lines) == 1 + MOST_NAMED + 1
    assert lines[-1] == f"└─ … and {1000 - MOST_NAMED} more: {1000 - MOST_NAMED} waiting"


def test_a_deep_graph_is_cut_short():
    chain = [node(0), *(node(n, f"k{n - 1}", waits_for=(n - 1,)) for n in range(1, 5000))]
    lines = drawn(*chain)
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == "… and more; --json has all 5000"
    assert max(map(len, lines)) < 100


def test_dot_quotes_what_it_names():
    text = dot('q"', [node(0, key='a"b'), node(1, 'a"b', "gone", waits_for=(0,))])
    assert text.splitlines() == [
        'digraph "q\\"" {',
        "  rankdir=LR;",
        "  node [shape=box];",
        '  "a\\"b" [label="0: a\\"b\\nowned"];',
        '  "k1" [label="1: k1\\nwaiting"];',
        '  "gone" [style=dashed];',
        '  "a\\"b" -> "k1";',
        '  "gone" -> "k1";',
        "}",
    ]


@pytest.fixture
def client(service):
    with Client(service.url) as client:
        yield client


@pytest.fixture
def flights(run):
    run("queues", "create", "flights", "-p", "1", "--dynamic")
    run("partitions", "split", "flights", "0")
    return "flights"


def test_the_graph_of_a_queue_is_drawn(run, flights):
    assert run("lineage", flights).output.splitlines() == [
        "0  00000000-ffffffff.0  has no owner",
        "├─ 1  00000000-7fffffff.1  waits for 0",
        "└─ 2  80000000-ffffffff.2  waits for 0",
        "flights: 3 partitions, of which 2 wait and 0 are finished",
    ]
    (first, second, _) = json.loads(run("lineage", flights, "--json").output)
    assert first["children"] == ["00000000-7fffffff.1", "80000000-ffffffff.2"]
    assert second["waits_for"] == [0]
    assert '  "00000000-ffffffff.0" -> ' in run("lineage", flights, "--dot").output
    run("lineage", flights, "--dot", "--json", code=2)


def test_the_status_says_which_partition_waits_until_which_is_finished(run, flights):
    picture = run("status", flights).output
    assert "p1 waits until 0 is finished" in picture
    assert "1 partition + 2 waiting or finished" in picture
    assert "… waits for its parents" in picture


def test_a_fixed_queue_has_no_graph(run):
    run("queues", "create", "fixed", "-p", "2")
    assert "dynamic" in run("lineage", "fixed", code=1).stderr


def test_control_characters_do_not_reach_the_terminal(run, client, flights, service):
    client.bind(flights, "etl", "i")
    client.rebalance_now(flights)
    name_clients(service.settings.database_url.get_secret_value(), flights, "evil\x9b31m")
    shown = run("lineage", flights).output
    assert "owned by evil\\x9b31m" in shown
    hostile = StringIO()
    console = PlainConsole(file=hostile, force_terminal=True, color_system=None)
    for line in draw([node(0, key="k\x1b]0;title\x07"), node(1, state="\x9b31m")], {}):
        console.print(line)
    assert not {"\x1b", "\x9b", "\x07"} & set(shown + hostile.getvalue())
