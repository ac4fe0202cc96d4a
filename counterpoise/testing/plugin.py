"""The pytest plugin: the fixture `counterpoise_service`.

pytest loads this module in every run, so it imports the rest when a test asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from counterpoise.testing.service import MemoryService


@pytest.fixture
def counterpoise_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryService]:
    """A service and its log in memory, empty, for one test (`counterpoise.testing`).

    COUNTERPOISE_URL names it, so that programs that do not name their service use it. A token or an
    access to logs in the environment is set aside.
    """
    from counterpoise.testing.service import MemoryService

    with MemoryService() as service:
        monkeypatch.setenv("COUNTERPOISE_URL", service.url)
        for name in ("COUNTERPOISE_TOKEN", "COUNTERPOISE_TOKEN_FILE", "COUNTERPOISE_LOG_URL"):
            monkeypatch.delenv(name, raising=False)
        yield service
