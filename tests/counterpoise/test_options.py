"""Options are named parameters: a misspelt one is answered with the right one, and a number without
sense is refused.
"""

import inspect
import math
from collections.abc import Callable

import pytest

from counterpoise import calls
from counterpoise.client import AsyncClient, Client
from counterpoise.consumer import Consumer, Retry
from counterpoise.flow import AsyncFlow, Flow
from counterpoise.publisher import Publisher


def options(of: type) -> dict[str, object]:
    """The options of a class as its help and an editor show them, with their defaults."""
    parameters = inspect.signature(of).parameters.values()
    assert not [each for each in parameters if each.kind is each.VAR_KEYWORD]
    return {each.name: each.default for each in parameters}


@pytest.mark.parametrize("made", [Consumer, Publisher, Flow, AsyncFlow])
def test_an_unknown_option_names_the_nearest_one(made: type) -> None:
    misspelt = "linger_second" if made is Publisher else "clientnam"
    meant = "linger_seconds" if made is Publisher else "client_name"
    with pytest.raises(
        TypeError, match=rf"{made.__name__} has no .*{misspelt}: did you mean {meant}"
    ):
        made("flights", **{misspelt: 1})
    with pytest.raises(TypeError, match=r"no argument zzz; it has .*token"):
        made("flights", zzz=1)


def test_a_consumer_has_the_options_of_its_flow_with_their_defaults() -> None:
    assert options(Flow).items() <= options(Consumer).items()


def test_a_consumer_hands_its_options_to_its_flow() -> None:
    consumer = Consumer("flights", print, client_name="etl", instance_id="i", lease_seconds=3)
    flow = consumer.flow
    assert (flow.client_name, flow.instance_id, flow.lease_seconds) == ("etl", "i", 3)


def retry(after_seconds: float) -> Retry:
    return Retry("later", after_seconds=[after_seconds])


def numbers(of: Callable[..., object]) -> list[str]:
    """The parameters that are numbers, None or not."""
    return [
        each.name
        for each in inspect.signature(of).parameters.values()
        if {"int", "float"} & set(str(each.annotation).split(" | "))
    ]


CONSTRUCTORS = (Client, AsyncClient, Flow, AsyncFlow, Consumer, Publisher, retry)
OPTIONS = [(made, name) for made in CONSTRUCTORS for name in numbers(made)]


@pytest.mark.parametrize(("made", "name"), OPTIONS)
@pytest.mark.parametrize(
    "nonsense", [-1, math.nan, math.inf, True, "5", b"5", [1]], ids=lambda value: repr(value)
)
def test_an_option_that_is_a_number_is_refused_without_sense(
    made: Callable[..., object], name: str, nonsense: object
) -> None:
    given: dict[str, object] = {name: nonsense}
    if made not in (Client, AsyncClient, retry):
        given["queue"] = "flights"
    with pytest.raises((TypeError, ValueError), match=rf"{name} must be .*, not "):
        made(**given)


def test_the_options_that_are_numbers_are_found() -> None:
    assert len(OPTIONS) == 31


@pytest.mark.parametrize(
    ("made", "given", "said"),
    [
        (Flow, {"lease_seconds": 0.5}, "from 1 to 3,600 seconds, not 0.5"),
        (Consumer, {"lease_seconds": 3601}, "from 1 to 3,600 seconds, not 3601"),
        (Consumer, {"drain_seconds": 86401}, "from 0 to 86,400 seconds, not 86401"),
        (Consumer, {"max_processing_seconds": 0}, "from 0.001 "),
        (Consumer, {"concurrency": 1.5}, "concurrency must be a whole number, not 1.5"),
        (Consumer, {"concurrency": None}, "concurrency must be a whole number, not None"),
        (Publisher, {"timeout_seconds": 0}, "timeout_seconds must be from 0.001 "),
        (Publisher, {"connections": 0}, "connections must be at least 1, not 0"),
    ],
)
def test_a_number_that_the_service_or_the_work_does_not_allow_is_refused(
    made: Callable[..., object], given: dict[str, object], said: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        made("flights", **given)


def test_what_is_allowed_is_taken() -> None:
    Consumer("flights", limit=0, idle_seconds=0, commit_seconds=0, max_processing_seconds=None)
    Publisher("flights", linger_seconds=0).close()
    assert retry(0).after_seconds == (0.0,)


def test_a_list_of_delays_is_a_list() -> None:
    for wrong in (5, "5", None):
        with pytest.raises(TypeError, match="after_seconds must be a list of seconds, not"):
            Retry("later", after_seconds=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one delay"):
        Retry("later", after_seconds=[])


@pytest.mark.parametrize("nonsense", [-1, True, "5", 1.5])
def test_so_is_the_number_of_items_of_a_listing(nonsense: object) -> None:
    for listing in (calls.queues, calls.audit, calls.list_keys):
        with pytest.raises((TypeError, ValueError), match=r"max_items must be .*, not "):
            listing(max_items=nonsense)  # type: ignore[arg-type]
