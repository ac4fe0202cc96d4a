"""Ends of partitions that the service does not take: an error that people see.

What comes after such a partition is processed by no consumer until a person acts. So it is logged
once as an error, it is a condition of the queue (`counterpoise.conditions`), and it is the error
with which the consumer ends.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from counterpoise.errors import EndRefused
from counterpoise.flow.view import GrantId


class Refusals:
    """Which refusals are in the log already."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._logged: Mapping[GrantId, str] = {}

    def log(self, queue: str, refused: Mapping[GrantId, str]) -> None:
        """Log those that are new, by partition and epoch."""
        for grant, why in refused.items():
            if self._logged.get(grant) != why:
                self._logger.error("%s", error_of(queue, {grant: why}))
        self._logged = refused


def error_of(queue: str, refused: Mapping[GrantId, str]) -> EndRefused:
    """The error of these refusals."""
    shown = "; ".join(f"partition {number}: {why}" for (number, _), why in refused.items())
    return EndRefused(
        f"queue {queue}: the service does not take the report that partitions have ended, so what "
        f"comes after them waits: {shown}"
    )


def raise_refused(queue: str, refused: Mapping[GrantId, str]) -> None:
    """Raises EndRefused if there is one."""
    if refused:
        raise error_of(queue, refused)
