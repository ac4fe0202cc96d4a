"""What is left out means the same wherever it is left out.

`openapi.yaml` says what the service takes for a field or parameter that is not sent. The other ways
to the same call either send nothing then, or send the same.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import click
import pytest
import yaml

from broker.core.model import Settings
from broker.logs.retention import DEFAULT_BYTES, DEFAULT_SECONDS
from counterpoise import AsyncClient, AsyncFlow, Client, Consumer, Flow, calls
from counterpoise.cli.app import app
from counterpoise.cli.queues import FITTING
from counterpoise.spark.options import SourceOptions
from tests.architecture.test_repository import ROOT

DOCUMENT = yaml.load((ROOT / "openapi.yaml").read_text("utf-8"), yaml.CSafeLoader)
SHAPING, SETTINGS = (
    (ROOT / f"api/dashboard/{name}.js").read_text("utf-8") for name in ("shaping", "settings")
)


def _of_calls() -> Iterator[tuple[str, dict[str, Any]]]:
    """The names of all calls, each with the defaults of its parameters and of its body's fields."""
    schemas = DOCUMENT["components"]["schemas"]
    for methods in DOCUMENT["paths"].values():
        for call in methods.values():
            taken = {
                one["name"]: one["schema"] for one in call.get("parameters", ()) if "name" in one
            }
            for content in call.get("requestBody", {}).get("content", {}).values():
                name = content["schema"].get("$ref", "").rpartition("/")[2]
                taken |= schemas.get(name, {}).get("properties", {})
            yield call["operationId"], taken


FIELDS = dict(_of_calls())
SERVED = {
    call: {name: one["default"] for name, one in taken.items() if "default" in one}
    for call, taken in FIELDS.items()
}
UNLIKE = {
    # A page of the history is small unless more is asked for. The client's history is whole.
    ("rebalances", "moves"),
}
RENAMED = {"everything": "all"}


@pytest.mark.parametrize("of", [calls, Client, AsyncClient], ids=lambda of: of.__name__)
def test_of_the_clients(of: Any) -> None:
    """None is not sent."""
    compared = 0
    for call, served in SERVED.items():
        method = getattr(of, call, None)
        for parameter in inspect.signature(method).parameters.values() if method else ():
            name, default = RENAMED.get(parameter.name, parameter.name), parameter.default
            if name in served and default not in (None, parameter.empty):
                is_list = isinstance(default, tuple)
                assert (call, name) in UNLIKE or served[name] == (
                    [*default] if is_list else default
                )
                compared += 1
    assert compared > 5


@pytest.mark.parametrize(
    "of", [Flow, AsyncFlow, Consumer, SourceOptions], ids=lambda of: of.__name__
)
def test_of_consumers(of: Any) -> None:
    taken = inspect.signature(of).parameters
    same = {name: one for name, one in SERVED["bind"].items() if name in taken}
    assert "lease_seconds" in same
    assert {name: taken[name].default for name in same} == same


def _options(*path: str) -> dict[str, click.Option]:
    command: click.Command | None = app
    for word in path:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    return {one.name or "": one for one in command.params if isinstance(one, click.Option)}


def _told(option: click.Option) -> str:
    """The default in the option's help: `… (default 5)`, `some: … (default); other: …`."""
    shown = option.show_default if isinstance(option.show_default, str) else ""
    help = f"{option.help} (default {shown})" if shown else option.help or ""
    found = re.search(r"\(default ([^;)]+)|^(\w+): [^;]+ \(default\)|(\w+) \(default\)", help)
    assert found, f"{option.name} does not say its default"
    return found[1] or found[2] or found[3]


def _shown(default: Any) -> str:
    one = default[0] if isinstance(default, list) else default
    return f"{one:g}" if isinstance(one, float) else str(one)


# What commands call options, where it is not the field's name.
OF_COMMANDS = {
    ("queues", "create"): ("create_queue", {}),
    ("queues", "delete"): ("delete_queue", {}),
    ("queues", "resize"): ("change_queue", {}),
    ("consume",): ("bind", {"lease": "lease_seconds"}),
    ("simulate",): ("bind", {}),
    ("partitions", "split"): ("split_partition", {}),
    ("peek",): ("messages", {"max_messages": "limit"}),
    ("positions", "set"): ("set_positions", {}),
    ("keys", "create"): ("create_key", {"queue": "queues"}),
}


@pytest.mark.parametrize("path", OF_COMMANDS, ids=" ".join)
def test_of_commands(path: tuple[str, ...]) -> None:
    """What an option's help says counts, too, because an option without a value is not sent."""
    call, renamed = OF_COMMANDS[path]
    served, compared = SERVED[call], 0
    for name, option in _options(*path).items():
        field = renamed.get(name, name)
        if field not in FIELDS[call]:
            continue
        default = option.to_info_dict()["default"]
        if field not in served:
            assert default is None, f"{name} would be sent"
            continue
        if default != served[field]:
            assert default is None or isinstance(option.show_default, str), name
            assert _told(option) == _shown(served[field])
        compared += 1
    assert compared, "the names have changed"


def test_of_the_contract() -> None:
    page = (ROOT / "docs/protocol.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", page.split("\n## Balance")[0], re.M))
    for name, default in SERVED["create_queue"].items():
        if name in rows:
            assert rows[name].strip("`") == str(default), name
    assert len(rows.keys() & SERVED["create_queue"].keys()) > 4


def test_of_the_core() -> None:
    """`counterpoise simulate` has them from there. The core imports no documents."""
    taken = {one.name: one.default for one in fields(Settings) if one.name != "partition_count"}
    same = {name: one for name, one in SERVED["create_queue"].items() if name in taken}
    assert len(same) > 5
    assert same == {name: taken[name] for name in same}


def test_of_the_dashboard() -> None:
    create = SETTINGS.split("export function create(")[1]
    split = SHAPING.split("export function split(")[1]
    # True wherever the log can; of another log than the built-in one only false is sent.
    assert "ordered_resize" not in SERVED["create_queue"]
    assert re.search(r'ordered: labelled\([^)]*type: "checkbox", checked: ""', create)
    served = {"max_handoff_time": SERVED["create_queue"]["max_handoff_time"]}
    fitting = {name: {**served, **given}["max_handoff_time"] for name, given in FITTING.items()}
    assert f"HANDOFF_SECONDS = {{ {_js(fitting)} }}" in SETTINGS
    assert DEFAULT_SECONDS == 24 * 3600
    assert DEFAULT_BYTES == 2**30
    assert 'field("retention_seconds", 24 * HOUR)' in create
    assert 'field("retention_bytes", GIB)' in create
    first = re.search(r'at: labelled\("Where", \{ options: \[\["(\w+)"', split)
    assert first
    assert first[1] == SERVED["split_partition"]["at"]


def _js(numbers: Mapping[str, float]) -> str:
    """The inside of an object in JavaScript."""
    return ", ".join(f"{name}: {value:g}" for name, value in numbers.items())
