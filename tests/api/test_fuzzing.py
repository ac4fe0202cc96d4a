"""Requests drawn from openapi.yaml, valid and invalid: no 5xx, and every answer conforms.

With random names, and, where a call names a queue, on an existing queue and flow with the flow's
token.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, settings
from openapi_spec_validator import validate
from schemathesis import Case
from schemathesis.checks import CheckFunction, not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.core.parameters import ParameterLocation
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from broker.core.model import MOST_PARTITIONS
from broker.service import Broker
from tests.api.consumer import Consumer, bind, create_queue
from tests.databases import Databases
from tests.service import Service, running, settings_for

DOCUMENT = Path(__file__).parents[2] / "openapi.yaml"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
# All these tests share one service.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("fuzzing")]

FEW_PARTITIONS = 40
LONGEST_WAIT_SECONDS = 0.05

# The cases are made when a test begins, not when it is collected: that takes seconds.
operations = schemathesis.pytest.from_fixture("openapi")
# An endless answer cannot be fuzzed like this.
everything = operations.exclude(path_regex="/events$")
on_flows = everything.include(path_regex=r"\{queue\}").exclude(method="DELETE")
elsewhere = everything.exclude(path_regex=r"\{queue\}")
# Every run tries other requests; a failing one is printed as a command that repeats it.
drawn = settings(
    max_examples=4,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
# And, before them, each limit and each kind of value that the document names.
covered = settings(drawn, phases=[Phase.explicit, Phase.generate])


@pytest.fixture(scope="module")
def openapi() -> BaseSchema:
    return schemathesis.openapi.from_path(str(DOCUMENT), config=SchemathesisConfig())


def test_the_document_is_valid() -> None:
    validate(yaml.load(DOCUMENT.read_text("utf-8"), yaml.CSafeLoader))


@pytest.fixture(scope="module")
def fuzzed(databases: Databases) -> Iterator[Service]:
    """A service for the whole module; state from earlier requests makes the tests stronger."""
    with databases.lend() as url:
        given = settings_for(url)
        with running(Broker(given), given) as service:
            yield service


@pytest.fixture(scope="module")
def consumer(fuzzed: Service) -> Iterator[Consumer]:
    with fuzzed.http as http:
        create_queue(http, "fuzzed-queue", 4)
        yield bind(http, "fuzzed-queue", lease_seconds=3600)


def _within_bounds(case: Case) -> None:
    """Keep valid values small, so that many requests fit into the time."""
    body: Any = case.body
    if isinstance(body, dict):
        count = body.get("partition_count")
        if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= MOST_PARTITIONS:
            body["partition_count"] = 1 + count % FEW_PARTITIONS
        queues = body.get("queues", ["*"])
        if (
            case.path == "/v1/keys"
            and isinstance(queues, list)
            and all(one == "*" for one in queues)
        ):
            # The first key of all queues would close the service to the other requests.
            body["queues"] = ["fuzzed-*"]
    wait = (case.query or {}).get("wait")
    if isinstance(wait, int | float) and 0 <= wait <= 60:
        case.query["wait"] = min(wait, LONGEST_WAIT_SECONDS)


def _call(
    case: Case,
    service: Service,
    headers: dict[str, str] | None = None,
    excluded: Sequence[CheckFunction] = (),
) -> None:
    _within_bounds(case)
    response = case.call(base_url=service.url, headers=headers, timeout=60)
    case.validate_response(response, checks=CHECKS, excluded_checks=list(excluded))


@pytest.mark.matrix(of="fuzzing")
@everything.parametrize()
@drawn
def test_any_drawn_request_gets_a_documented_answer(case: Case, fuzzed: Service) -> None:
    _call(case, fuzzed)


@pytest.mark.matrix(of="fuzzing")
@elsewhere.parametrize()
@covered
def test_without_a_queue(case: Case, fuzzed: Service) -> None:
    _call(case, fuzzed)


@pytest.mark.matrix(of="fuzzing")
@on_flows.parametrize()
@covered
def test_on_a_queue_and_a_flow_that_exist(case: Case, fuzzed: Service, consumer: Consumer) -> None:
    # Names and token are corrected here, so an invalid draw may become a valid request.
    assert case.meta is not None
    put_right = any(
        part.mode.is_negative
        for place, part in case.meta.components.items()
        if place in (ParameterLocation.PATH, ParameterLocation.HEADER)
    )
    excluded = [negative_data_rejection] if put_right else []
    case.path_parameters["queue"] = consumer.queue
    if "flow" in case.path_parameters:
        case.path_parameters["flow"] = consumer.flow_id
        _call(case, fuzzed, consumer.headers, excluded)
    else:
        _call(case, fuzzed, excluded=excluded)


def test_the_service_is_well_after_all_that(fuzzed: Service, consumer: Consumer) -> None:
    assert httpx.get(f"{fuzzed.url}/readyz").status_code == 200
    assert consumer.call("heartbeat").status_code == 200
