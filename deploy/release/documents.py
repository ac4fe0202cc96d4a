"""What a release says about itself: the packages that come with it, and how it was made.

The first is a CycloneDX 1.6 document, the second an in-toto statement with SLSA provenance. Both
are functions of the commit and of the tools: they name no time but that of the commit.
"""

import hashlib
import json
import platform
import re
import uuid
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from source import Source

SERVICE = "counterpoise-server"
CONSUMERS = "counterpoise"
LOCKED = re.compile(
    r"^(?P<name>[a-z0-9.-]+)==(?P<version>[^ ;\\]+)(?: ; (?P<marker>[^\\\n]+?))?"
    r" \\\n(?P<hashes>(?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+)",
    re.M,
)


def as_json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def bill_of_materials(source: Source) -> dict[str, Any]:
    """The packages that users get with the wheels, in the locked versions with their hashes.

    Which these are, and under which licenses, is in deploy/THIRD-PARTY.md.
    """
    components = [*_components(source)]
    name = f"{SERVICE}@{source.version} {json.dumps(components, sort_keys=True)}"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(source.epoch, UTC).isoformat(),
            "component": {
                **_ours(SERVICE, source.version, "application"),
                "components": [_ours(CONSUMERS, source.version, "library")],
            },
        },
        "components": components,
    }


def _ours(name: str, version: str, kind: str) -> dict[str, Any]:
    address = f"pkg:pypi/{name}@{version}"
    return {
        "type": kind,
        "bom-ref": address,
        "name": name,
        "version": version,
        "licenses": [{"expression": "Apache-2.0"}],
        "purl": address,
    }


def _components(source: Source) -> Iterator[dict[str, Any]]:
    """A component for each locked version; a package may have one for older Pythons, too."""
    listed = {
        name: (stated, why)
        for name, stated, why in re.findall(
            r"^\| ([a-z0-9.-]+) \| \S+ \| (.+?) \| (.+) \|$",
            source.text("deploy/THIRD-PARTY.md"),
            re.M,
        )
    }
    for found in LOCKED.finditer(source.text("deploy/constraints.txt")):
        if found["name"] not in listed:
            continue
        stated, why = listed[found["name"]]
        address = f"pkg:pypi/{found['name']}@{found['version']}"
        properties = {"counterpoise:comes-with": why}
        if found["marker"]:
            properties["counterpoise:marker"] = found["marker"]
        yield {
            "type": "library",
            "bom-ref": address,
            "name": found["name"],
            "version": found["version"],
            "licenses": [_license(stated)],
            "purl": address,
            # One file for each platform and Python; each has one of these hashes.
            "externalReferences": [
                {
                    "type": "distribution",
                    "url": address,
                    "hashes": [
                        {"alg": "SHA-256", "content": digest}
                        for digest in re.findall(r"sha256:([0-9a-f]+)", found["hashes"])
                    ],
                }
            ],
            "properties": [{"name": key, "value": text} for key, text in properties.items()],
        }


def _license(stated: str) -> dict[str, Any]:
    """An SPDX expression if it is one, else the package's own words."""
    try:
        return {"expression": canonicalize_license_expression(stated)}
    except InvalidLicenseExpression:
        return {"license": {"name": stated}}


def provenance(source: Source, sums: str) -> dict[str, Any]:
    """From which commit the files with these sums were made, with what, and how to make them again.

    It is not signed.
    """
    repository = source.project["urls"]["Source"]
    lock = source.text("deploy/constraints.txt").encode()
    definition = {
        "buildType": f"{repository}/blob/HEAD/docs/releasing.md",
        "externalParameters": {
            "tag": source.tag,
            "command": f"make release TAG={source.tag}" if source.tag else "make release",
        },
        "internalParameters": {"SOURCE_DATE_EPOCH": str(source.epoch)},
        "resolvedDependencies": [
            {"uri": f"git+{repository}", "digest": {"gitCommit": source.commit}},
            {
                "name": "deploy/constraints.txt",
                "digest": {"sha256": hashlib.sha256(lock).hexdigest()},
            },
        ],
    }
    builder = {
        "id": f"{repository}/blob/HEAD/deploy/release",
        "version": {
            "python": platform.python_version(),
            "zlib": zlib.ZLIB_RUNTIME_VERSION,
            **{tool: metadata.version(tool) for tool in ("build", "hatchling")},
        },
    }
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": name, "digest": {"sha256": digest}}
            for digest, name in (line.split("  ", 1) for line in sums.splitlines())
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": definition, "runDetails": {"builder": builder}},
    }
