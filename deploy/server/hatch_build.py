"""Puts the service's packages into the wheel; an editable install gets the checkout on its path.

The sources are outside this directory, so the wheel takes them by `force_include`. If this were
set in pyproject.toml, an editable install would also get copies, which would hide the checkout.
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
