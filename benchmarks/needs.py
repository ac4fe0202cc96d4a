"""What a benchmark needs beyond the environment of the tests; it looks for that before it begins.

`python -m benchmarks` looks for what all of them need before the first one starts, because they
run for minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple


class Need(NamedTuple):
    """Something that may be missing, and the command that brings it."""

    name: str
    command: str
    path: Path | None = None
    """Where it is, if it is no module."""

    def is_missing(self) -> bool:
        return find_spec(self.name) is None if self.path is None else not self.path.exists()


APACHE_KAFKA = Need("Apache Kafka", "make kafka", Path(sys.prefix, "kafka/.installed"))
KAFKA_SOURCE = Need(
    "Spark's Kafka source", "make bench-kafka", Path(sys.prefix, "kafka-source/.installed")
)
ADBC = Need("adbc_driver_postgresql", "make bench")
MATPLOTLIB = Need("matplotlib", "make bench")

OF: dict[str, tuple[Need, ...]] = {
    "coordinator": (APACHE_KAFKA,),
    "kafka_source": (APACHE_KAFKA, KAFKA_SOURCE),
    "source": (ADBC,),
    "log": (ADBC,),
}
"""By benchmark."""


def require(needs: Iterable[Need]) -> None:
    """Ends the program, naming all that is missing, if anything is."""
    missing = [need for need in dict.fromkeys(needs) if need.is_missing()]
    if missing:
        sys.exit("\n".join(f"{one.name} is missing; `{one.command}` brings it" for one in missing))
