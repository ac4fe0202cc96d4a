"""The attacked service and the bystander (`tests/attacks/__init__.py` says how to use them)."""

import contextlib
import itertools
from collections.abc import Callable, Iterator

import pytest

from broker.service import Broker
from tests.api.access import Guarded, guarded
from tests.attacks.bystander import Bystander
from tests.databases import Databases
from tests.service import Service, running, settings_for

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def target(databases: Databases) -> Iterator[Service]:
    """A live service on loopback, shared by all attacks."""
    with databases.lend() as url:
        settings = settings_for(url)
        with running(Broker(settings), settings) as service:
            yield service


@pytest.fixture
def name_of_a_queue() -> Callable[[], str]:
    """Names that no other attack uses."""
    return lambda: f"attacked-{next(_numbers)}"


@pytest.fixture
def bystander(target: Service, name_of_a_queue: Callable[[], str]) -> Iterator[Bystander]:
    """Somebody else's flow; the test fails if the attack has cost it anything."""
    somebody = Bystander(target.url, name_of_a_queue())
    yield somebody
    somebody.leave()
    assert not somebody.faults


@contextlib.contextmanager
def without_upkeep() -> Iterator[None]:
    """What starts meanwhile has no upkeep, which ends once a minute what should end at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("broker.service.UPKEEP_SECONDS", 24 * 3600.0)
        yield


@pytest.fixture(scope="session")
def secured(databases: Databases) -> Iterator[Guarded]:
    """A live service with keys and without upkeep, shared by all attacks with keys."""
    with databases.lend() as url, contextlib.ExitStack() as stack:
        with without_upkeep():
            secured = stack.enter_context(guarded(url))
        yield secured


@pytest.fixture(scope="session")
def other(secured: Guarded) -> Iterator[Service]:
    """A second replica of `secured`."""
    settings = settings_for(secured.url)
    with contextlib.ExitStack() as stack:
        with without_upkeep():
            service = stack.enter_context(running(Broker(settings), settings))
        yield service
