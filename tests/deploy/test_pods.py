"""The service in the environment that a kubelet makes for its pod.

A kubelet writes the address of each Service of the namespace into the environment of every
container, unless the pod says that it needs none (`enableServiceLinks`). Of a Service
`counterpoise` that is COUNTERPOISE_PORT=tcp://….
"""

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tests.deploy.test_files import CONTAINER, DEPLOY, KUBERNETES, documents, port, text
from tests.forked import Forked

CERTIFICATES = Path(__file__).parents[1] / "certificates"
# Of Services: the tests speak to no other address.
ADDRESS = "127.0.0.1"
API = {"metadata": {"name": "kubernetes"}, "spec": {"ports": [{"name": "https", "port": 443}]}}


def links(services: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What a kubelet writes about these Services."""
    written = {}
    for service in services:
        name = service["metadata"]["name"].upper().replace("-", "_")
        ports = service["spec"]["ports"]
        written[f"{name}_SERVICE_HOST"] = ADDRESS
        written[f"{name}_SERVICE_PORT"] = str(ports[0]["port"])
        for one in ports:
            number, url = one["port"], f"tcp://{ADDRESS}:{one['port']}"
            written[f"{name}_SERVICE_PORT_{one['name'].upper()}"] = str(number)
            written.setdefault(f"{name}_PORT", url)
            written[f"{name}_PORT_{number}_TCP"] = url
            written[f"{name}_PORT_{number}_TCP_PROTO"] = "tcp"
            written[f"{name}_PORT_{number}_TCP_PORT"] = str(number)
            written[f"{name}_PORT_{number}_TCP_ADDR"] = ADDRESS
    return written


def of_image() -> dict[str, str]:
    """The variables of the image."""
    [said] = re.findall(r"^ENV ((?:.*\\\n)*.*)$", text("Dockerfile"), re.M)
    return dict(one.split("=", 1) for one in said.replace("\\\n", " ").split())


def environment(secrets: Mapping[str, str]) -> dict[str, str]:
    """That of the container, with links; `secrets` are the values of variables."""
    assert "envFrom" not in CONTAINER
    of_pod = {one["name"]: one.get("value") or secrets[one["name"]] for one in CONTAINER["env"]}
    of_machine = {"HOME": "/", "HOSTNAME": "counterpoise-5d9c7bf9c4-x2x7p"}
    return {**of_machine, **of_image(), **links([KUBERNETES["Service"], API]), **of_pod}


def pods(part: Any) -> Iterator[dict[str, Any]]:
    """The specifications of pods in an object."""
    if isinstance(part, dict):
        if "containers" in part:
            yield part
        for inner in part.values():
            yield from pods(inner)


@pytest.mark.parametrize(
    "name", sorted(path.name for path in (DEPLOY / "kubernetes").glob("*.yaml"))
)
def test_no_pod_is_told_of_other_services(name: str) -> None:
    found = [pod for one in documents(f"kubernetes/{name}") for pod in pods(one)]
    assert [pod.get("enableServiceLinks") for pod in found] == [False] * len(found)
    assert found or name in ("database-policy.yaml", "kustomization.yaml")


@pytest.mark.long
def test_the_service_starts_in_its_pod(migrated_url: str) -> None:
    """Also in one that is told: by other manifests, or by Docker's links."""
    variables = environment({"COUNTERPOISE_DATABASE_URL": f"{migrated_url}\n"})
    assert variables["COUNTERPOISE_PORT"].startswith("tcp://")
    # A machine of its own: others listen on the port, too.
    host = ".".join(["127", *(str(random.SystemRandom().randrange(1, 255)) for _ in range(3))])
    variables |= {
        "COUNTERPOISE_HOST": host,
        "COUNTERPOISE_TLS_CERT": str(CERTIFICATES / "first.pem"),
        "COUNTERPOISE_TLS_KEY": str(CERTIFICATES / "first-key.pem"),
    }
    nobody = ["--url", f"https://{host}:{port()}"]
    for command in (["migrate", "--json"], ["keys", "list", "--json", *nobody]):
        with Forked("counterpoise.cli", command, environment=variables, stdout=PIPE) as process:
            said, _ = process.communicate()
            assert process.wait() == 0
            json.loads(said)
    args = CONTAINER["args"]
    with Forked("counterpoise.cli", args, environment=variables, stdout=PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"Counterpoise listens on https://{host}:{port()}\n"
        finally:
            process.terminate()
        assert process.wait() == 0
