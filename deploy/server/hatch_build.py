"""Puts the service's packages into the wheel; an editable install gets the checkout on its path.

The sources lie outside this directory, so the wheel takes them by `force_include`. Said in
pyproject.toml, that would copy them into an editable install as well, where the copies would hide
the checkout.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("api", "broker", "migrations")


class ServerPackages(BuildHookInterface):  # type: ignore[type-arg]
    """Adds PACKAGES from the repository's root to a standard wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            repository = Path(self.root).parents[1]
            build_data["force_include"] |= {
                str(repository / package): package for package in PACKAGES
            }
