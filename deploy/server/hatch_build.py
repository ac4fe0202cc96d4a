"""Puts the service's packages into the sdist and the wheel; an editable install gets the checkout
on its path.

In a checkout the packages are at the root of the repository, outside this directory; in an sdist
they are beside this file. So both are told where they are by `force_include`. If this were set in
pyproject.toml, an editable install would also get copies, which would hide the checkout.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("api", "broker", "migrations")


class ServerPackages(BuildHookInterface):  # type: ignore[type-arg]
    """Adds PACKAGES to an sdist and to a standard wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return
        here = Path(self.root)
        sources = here if (here / PACKAGES[0]).is_dir() else here.parents[1]
        included = {str(sources / package): package for package in PACKAGES}
        # LICENSE and NOTICE are links to those of the repository, which an sdist has to carry.
        for source, target in build_data["force_include"].items():
            included[str(Path(source).resolve())] = target
        build_data["force_include"] = included
