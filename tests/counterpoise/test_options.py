"""Options are named parameters, and a misspelt one is answered with the right one."""

import inspect

import pytest

from counterpoise.consumer import Consumer
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
