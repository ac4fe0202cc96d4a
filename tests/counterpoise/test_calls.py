"""The client's calls fit `openapi.yaml`, which both sides follow."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import to_builtins

from counterpoise import calls, conditions
from counterpoise.calls import Call, Listing, base_url
from counterpoise.client import Settings
from counterpoise.errors import InvalidSettings
from counterpoise.wire import Child, ChildrenItem, CommitItem, Condition, ReadyItem, ReleaseItem
from tests.api.conformance import document

SETTINGS: dict[str, Any] = {
    "access_type": "exclusive",
    "rebalance_delay": 1.0,
    "max_handoff_time": 1.0,
    "max_warmup_time": 1.0,
    "max_concurrent_handoffs": 1,
    "start": "latest",
}
FLOW = ("q", "f", "t")

# For autoscalers and for the dashboard.
NOT_IN_THE_CLIENT = {
    ("get", "/v1/queues/{queue}/scaling"),
    ("get", "/v1/queues/{queue}/partitions/{partition}/messages"),
    ("post", "/v1/queues/{queue}/messages"),
}

SENT: dict[str, Call | Listing] = {
    "queues": calls.queues(),
    "create_queue": calls.create_queue("q", 3, log="builtin:p", **SETTINGS),
    "queue": calls.queue("q"),
    "change_queue": calls.change_queue("q", True, partition_count=4, **SETTINGS),
    "delete_queue": calls.delete_queue("q", force=True),
    "rebalance_status": calls.rebalance_status("q"),
    "measurements": calls.measurements("q"),
    "rebalance_now": calls.rebalance_now("q"),
    "pause_queue": calls.pause_queue("q", datetime.now(UTC), reason="why"),
    "resume_queue": calls.resume_queue("q"),
    "pause_partition": calls.pause_partition("q", 3, seconds=60.0),
    "resume_partition": calls.resume_partition("q", 3),
    "pin_partition": calls.pin_partition("q", 3, "etl", reason="why"),
    "unpin_partition": calls.unpin_partition("q", 3),
    "partitions": calls.partitions("q"),
    "flows": calls.flows("q"),
    "rebalances": calls.rebalances("q"),
    "set_positions": calls.set_positions("q", {0: "5"}),
    "set_positions to a time": calls.set_positions("q", datetime.now(UTC)),
    "dead_letter": calls.dead_letter("q", 0, "5", "q-dead"),
    "redrive": calls.redrive("q-dead"),
    "log_access": calls.log_access("q", "read"),
    "bind": calls.bind("q", "me", "instance", 5.0, True),
    "unbind": calls.unbind(*FLOW),
    "poll": calls.poll(*FLOW, after=3, wait_seconds=1.0),
    "heartbeat": calls.heartbeat(*FLOW),
    "commit": calls.commit(*FLOW, [CommitItem(0, 1, "5")], seq=1),
    "release": calls.release(*FLOW, [ReleaseItem(0, 1, "5", True)], seq=1),
    "ready": calls.ready(*FLOW, [ReadyItem(0, 1)]),
    "children": calls.children(
        *FLOW, [ChildrenItem(0, 1, "9", True, (Child("b", ("a",), 7, "5"), Child("c", ("a",))))], 2
    ),
    "lineage": calls.graph("q"),
    "split_partition": calls.split_partition("q", 3, "load"),
    "merge_partitions": calls.merge_partitions("q", 3, 4),
    "drain": calls.drain(*FLOW, timeout_seconds=5.0),
    "report": conditions.report(*FLOW, [Condition("quarantined", "bad", 0, 1)], 2),
    "conditions": conditions.conditions("q").page(None),
}


def operation(call):
    """The operation of the document for a call."""
    for template, item in document()["paths"].items():
        if re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), "/v1" + call.path):
            assert call.method.lower() in item, f"{call.method} {template} is not described"
            return {"parameters": item.get("parameters", []), **item[call.method.lower()]}
    pytest.fail(f"{call.path} is not described")


def resolve(schema):
    while "$ref" in schema:
        found = document()
        for name in schema["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        schema = found
    return schema


def fits(value, schema, where):
    """Whether the names in `value` are those of the schema; the service checks the types."""
    schema = resolve(schema)
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        schema = resolve(next((one for one in options if resolve(one).get("properties")), {}))
    if isinstance(value, dict) and "properties" in schema:
        assert set(value) <= set(schema["properties"]), where
        assert set(schema.get("required", ())) <= set(value), where
        for name, part in value.items():
            fits(part, schema["properties"][name], f"{where}.{name}")
    if isinstance(value, list):
        for part in value:
            fits(part, schema["items"], where)


@pytest.mark.parametrize("name", SENT)
def test_each_call_is_described(name):
    sent = SENT[name]
    call = sent.page("next") if isinstance(sent, Listing) else sent
    described = operation(call)
    parameters = [resolve(one) for one in described["parameters"]]
    query = {one["name"] for one in parameters if one["in"] == "query"}
    assert set(call.query) <= query
    if call.body is not None:
        schema = described["requestBody"]["content"]["application/json"]["schema"]
        fits(to_builtins(call.body), schema, name)
    else:
        assert not described.get("requestBody", {}).get("required")


def test_a_bind_always_names_an_instance():
    one, two = (calls.bind("q", "me").body.instance_id for _ in range(2))
    assert one
    assert two
    assert one != two
    assert calls.bind("q", "me", "given").body.instance_id == "given"


def test_every_operation_on_queues_has_its_call():
    described = {
        (method, path)
        for path, item in document()["paths"].items()
        for method in item
        if path.startswith("/v1/queues") and method in ("get", "post", "patch", "delete")
    }
    sent = [one.page(None) if isinstance(one, Listing) else one for one in SENT.values()]
    sent.append(Call("GET", calls.events_path("q"), lambda _: None))
    made = {
        (call.method.lower(), path)
        for call in sent
        for path in document()["paths"]
        if re.fullmatch(re.sub(r"{\w+}", "[^/]+", path), "/v1" + call.path)
    }
    assert described - NOT_IN_THE_CLIENT == made


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://a:1", "http://a:1/v1"),
        ("http://a:1/", "http://a:1/v1"),
        ("https://a/counterpoise/", "https://a/counterpoise/v1"),
        ("http://a/v1/", "http://a/v1"),
        (" http://[::1]:8640 ", "http://[::1]:8640/v1"),
        ("http://[fe80::1%eth0]", "http://[fe80::1%eth0]/v1"),
        ("http://bücher.example:1", "http://bücher.example:1/v1"),
        ("http://my_service", "http://my_service/v1"),
    ],
)
def test_addresses_may_be_written_in_many_ways(url, base):
    assert base_url(url) == base


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://user:hunter2@host", "COUNTERPOISE_TOKEN"),
        ("https://hunter2@host/v1", "COUNTERPOISE_TOKEN"),
        ("https://user:hun/hunter2@host", "COUNTERPOISE_TOKEN"),
        ("https://user:hun#hunter2@host", "COUNTERPOISE_TOKEN"),
        ("user:hunter2@host", "COUNTERPOISE_TOKEN"),
        ("https://host/v1?token=hunter2", "query or fragment: leave out what follows https://host"),
        ("https://host#hunter2", "query or fragment"),
        ("host?token=hunter2", "http:// or https://"),
        ("http://[::1", "is not a URL: 'http://\\[::1'"),
        ("https://host/v1?", "query or fragment"),
        ("http://a:1,b:2", "must be a single one, not 'http://a:1,b:2': .* load balancer"),
        ("http://a,b?token=hunter2", "must be a single one, not this one"),
        ("http://a http://b", "must be a single one"),
        ("http://a:x", "is not a URL: 'http://a:x'"),
        ("http://a:99999", "is not a URL"),
        ("localhost:99999", "is not a URL"),
        ("http://a..b", "is not a URL"),
        ("http://a b", "a character that no address has: 'http://a b'"),
        ("http://a\nb", r"a character that no address has: 'http://a\\nb'"),
        ("http://a;b", "a character that no address has"),
    ],
)
def test_an_address_holds_no_secret_and_what_may_be_one_is_not_repeated(url, said):
    with pytest.raises(InvalidSettings, match=said) as refused:
        base_url(url)
    assert "hunter2" not in str(refused.value)


class Moment(datetime):
    """As pandas has them."""


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Real(float):
    pass


def test_kinds_of_the_types_that_a_call_takes_are_sent_as_these() -> None:
    """Of pandas, NumPy and others."""
    at = Moment(2026, 3, 1, tzinfo=UTC)

    def sent(call: Call[Any]) -> Any:
        return json.loads(Settings("http://localhost", None, 5.0).request(call)["content"])

    assert sent(calls.set_positions("q", at)) == {"to": at.isoformat()}
    assert sent(calls.drain(*FLOW, timeout_seconds=Real(2.5))) == {"timeout_seconds": 2.5}
    item = sent(calls.commit(*FLOW, [CommitItem(Whole(3), Whole(1), Text("5"))], seq=1))
    assert item["partitions"][0] == {"partition": 3, "epoch": 1, "position": "5"}
    made = sent(calls.create_queue("q", Whole(2), rebalance_delay=Real(1.5)))
    assert (made["partition_count"], made["rebalance_delay"]) == (2, 1.5)
