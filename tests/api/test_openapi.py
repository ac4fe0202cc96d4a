"""openapi.yaml is what the application serves, and is complete (`test_fuzzing`: is valid)."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from api import openapi
from api.openapi import all_routes, document, to_yaml
from api.routing import Route
from api.security import Also
from broker.core.access import Role

COMMITTED = Path(__file__).parents[2] / "openapi.yaml"


@pytest.fixture(scope="module")
def served() -> dict[str, Any]:
    return document(all_routes())


def operations(api: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in api["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_committed_document_is_the_served_one(served: dict[str, Any]) -> None:
    assert COMMITTED.read_text("utf-8") == to_yaml(served), (
        "python -m api.openapi > openapi.yaml writes it anew"
    )


def test_it_is_served(http: httpx.Client, scripted: Any, served: dict[str, Any]) -> None:
    assert httpx.get(f"{scripted.url}/openapi.json").json() == served
    assert yaml.load(COMMITTED.read_text("utf-8"), yaml.CSafeLoader) == served


def test_a_queue_has_the_defaults_and_ranges_of_the_contract(served: dict[str, Any]) -> None:
    """The table in the contract, *Queue*. A change and an answer have the same ranges."""
    contract = (COMMITTED.parent / "docs" / "protocol.md").read_text("utf-8")
    section = contract.partition("\n## Queue\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ([^|]*) \|", section, re.M)
    schemas = served["components"]["schemas"]
    compared = 0
    for name, default, values in rows:
        given = schemas["QueueCreate"]["properties"][name]
        changed = schemas["QueueChange"]["properties"].get(name)
        if changed is not None:
            assert _range(changed) == _range(given), name
        least, largest, _ = _range(schemas["Queue"]["properties"].get(name, {}))
        assert (least, largest) in ((None, None), _range(given)[:2]), name
        if span := re.search(r"([0-9.]+)\.\.([0-9.]+)", values):
            assert _range(given) == (*map(float, span.groups()), "null" in values), name
            compared += 1
        elif choices := re.findall(r"`(\w+)`", values):
            assert sorted(given["enum"]) == sorted(choices), name
            compared += 1
        if re.fullmatch(r"[0-9.]+|null|`\w+`", default):
            assert given.get("default") == yaml.safe_load(default.strip("`")), name
    assert compared >= 7


SPAN, DEFAULT = r"(?P<least>\d+)\.\.(?P<most>\d+)", r"(?P<default>\d+)"


@pytest.mark.parametrize(
    ("schema", "field", "said"),
    [
        ("BindRequest", "lease_seconds", rf"Default lease {DEFAULT} s, range {SPAN}"),
        ("BindRequest", "weight", rf"`weight` \({SPAN}, default {DEFAULT}\)"),
        ("BindRequest", "max_partitions", rf"`max_partitions` \({SPAN}\)"),
        ("DrainRequest", "timeout_seconds", rf"optional `timeout_seconds` \({SPAN}\)"),
    ],
)
def test_a_number_has_the_default_and_the_range_of_the_contract(
    served: dict[str, Any], schema: str, field: str, said: str
) -> None:
    contract = (COMMITTED.parent / "docs" / "protocol.md").read_text("utf-8")
    [found] = re.finditer(said, contract)
    given = served["components"]["schemas"][schema]["properties"][field]
    assert _range(given)[:2] == (float(found["least"]), float(found["most"]))
    default = found.groupdict().get("default")
    assert given.get("default") == (None if default is None else float(default))


def _range(schema: dict[str, Any]) -> tuple[float | None, float | None, bool]:
    """The least and the largest value, and whether it may be null."""
    of = {**schema, **next((one for one in schema.get("anyOf", ()) if "minimum" in one), {})}
    return of.get("minimum"), of.get("maximum"), {"type": "null"} in schema.get("anyOf", ())


def test_ranges_are_those_of_json_schema(served: dict[str, Any]) -> None:
    """Generators of clients ignore other words, and an integer beyond 2^63 - 1 stops some."""
    text = json.dumps(served)
    assert not re.findall(r'"(?:ge|le|gt|lt|min_length|max_length)":', text)
    whole = [*_whole_numbers(served)]
    assert max(one.get("maximum", 0) for one in whole) == 2**63 - 1
    assert not [one for one in whole for bound in BOUNDS if isinstance(one.get(bound), float)]


BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def _whole_numbers(part: Any) -> Iterator[dict[str, Any]]:
    """All schemas of integers in it."""
    if isinstance(part, dict) and part.get("type") == "integer":
        yield part
    for inner in part.values() if isinstance(part, dict) else part:
        if isinstance(inner, dict | list):
            yield from _whole_numbers(inner)


def test_every_call_is_described(served: dict[str, Any]) -> None:
    names = set()
    for name, operation in operations(served):
        assert operation["summary"], name
        assert operation["description"], name
        assert operation["tags"], name
        assert operation["x-callers"], name
        assert set(operation["x-callers"]) <= {*Role, *Also}, name
        names.add(operation["operationId"])
        for parameter in operation.get("parameters", ()):
            shared = parameter.get("$ref", "").rpartition("/")[2]
            assert (served["components"]["parameters"][shared] if shared else parameter)[
                "description"
            ], name
    assert len(names) == len(operations(served))


def test_every_call_lists_its_errors(served: dict[str, Any]) -> None:
    for name, operation in operations(served):
        statuses = set(operation["responses"])
        if "/v1/" not in name:
            continue
        assert {"401", "403", "422", "503"} <= statuses, name
        if "{queue}" in name:
            assert "404" in statuses, name
        if "requestBody" in operation:
            assert {"413", "415"} <= statuses, name
        for response in operation["responses"].values():
            if "content" in response:
                assert "application/problem+json" not in response["content"], "should be shared"


def test_only_calls_about_the_service_itself_are_left_out() -> None:
    hidden = {
        route.path
        for route in all_routes()
        if isinstance(route, Route) and not route.include_in_schema
    }
    assert hidden == {"/", "/dashboard/{module}", "/docs", "/openapi.json"}


def test_every_example_is_valid(served: dict[str, Any]) -> None:
    count = 0
    for name, schema in served["components"]["schemas"].items():
        for example in schema.get("examples", ()):
            complete = {"$ref": f"#/components/schemas/{name}", "components": served["components"]}
            Draft202012Validator(complete).validate(example)
            count += 1
    for response in served["components"]["responses"].values():
        content = response["content"]["application/problem+json"]
        for example in content["examples"].values():
            complete = {**content["schema"], "components": served["components"]}
            Draft202012Validator(complete).validate(example["value"])
            count += 1
    assert count > 20


def test_what_calls_share_is_as_each_of_them_has_it(
    served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openapi, "_share_parameters", lambda api: None)
    shared = served["components"]["parameters"]
    shown = dict(operations(served))
    for name, operation in operations(document(all_routes())):
        for place, own in enumerate(operation.get("parameters", ())):
            one = shown[name]["parameters"][place]
            one = shared[one["$ref"].rpartition("/")[2]] if "$ref" in one else one
            defaults = [each["schema"].get("default") for each in (one, own)]
            assert (one["name"], defaults[0]) == (own["name"], defaults[1]), name
