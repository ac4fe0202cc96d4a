"""What the service needs of logs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Purpose = Literal["read", "publish"]


@dataclass(frozen=True, slots=True)
class LogAccess:
    """Short-lived credentials for the built-in log; the URL carries the password: never log it."""

    url: str = field(repr=False)
    expires_at: float
