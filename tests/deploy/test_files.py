"""What deploy/ says agrees with the service: commands, settings, ports, paths and times.

There is no container engine here, so what an engine would find out is read from the files.
"""

import json
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from api.openapi import all_routes
from broker.settings import PREFIX, SECRETS, Settings
from counterpoise.cli.app import COMMANDS, load
from tests.architecture.test_repository import ROOT, tracked_files

DEPLOY = ROOT / "deploy"
# Read by clients, or by the command line.
OF_CLIENTS = {"URL", "TOKEN", "LOG_URL"}


def text(name: str) -> str:
    return (DEPLOY / name).read_text("utf-8")


def one_in(pattern: str, where: str) -> str:
    """The group of the first match at the begin of a line."""
    match = re.search(pattern, where, re.M)
    assert match is not None, pattern
    return str(match[1])


def documents(name: str) -> list[dict]:
    return list(yaml.safe_load_all(text(name)))


COMPOSE = documents("compose/compose.yaml")[0]
KUBERNETES = {one["kind"]: one for one in documents("kubernetes/service.yaml")}
POD = KUBERNETES["Deployment"]["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]
SERVICES = {name: one for name, one in COMPOSE["services"].items() if "build" in one}
FILES = [
    path.relative_to(DEPLOY).as_posix()
    for path in sorted(DEPLOY.rglob("*"))
    if path.is_file() and path.suffix not in (".py", ".pyc", ".txt")
]


def port() -> int:
    return Settings().port


# ------------------------------------------------------------------ settings, commands, paths


@pytest.mark.parametrize("name", FILES)
def test_every_setting_that_is_named_exists(name: str) -> None:
    known = {field.upper() for field in Settings.__struct_fields__} | OF_CLIENTS
    # A secret may be in a file.
    known |= {f"{field.upper()}_FILE" for field in SECRETS}
    assert set(re.findall(rf"\b{PREFIX}([A-Z_]+)", text(name))) <= known


def test_the_images_run_commands_that_exist() -> None:
    runs = [CONTAINER["args"], *(service["command"] for service in SERVICES.values())]
    runs.append(one_in(r'^CMD \["(.*)"\]', text("Dockerfile")).split('", "'))
    unit = text("systemd/counterpoise.service")
    runs.append(one_in(r"^ExecStart=/\S+/counterpoise (.*)$", unit).split())
    for command, *options in runs:
        assert command in COMMANDS
        assert options == []


@pytest.mark.parametrize("name", ["README.md", "systemd/counterpoise.env"])
def test_keys_are_made_as_the_documents_say(name: str) -> None:
    made = re.findall(r"\bkeys create((?: --\S+(?: \"[^\"]*\"| [^-\s`]\S*)?)*)", text(name))
    keys: Any = load("keys")
    create = keys.commands["create"]
    options = {option for parameter in create.params for option in parameter.opts}
    assert made
    for one in made:
        assert set(re.findall(r"--[a-z-]+", one)) <= options


def test_probes_ask_for_paths_that_are_served() -> None:
    served = {getattr(route, "path", "") for route in all_routes()}
    probes = [CONTAINER[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert {probe["path"] for probe in probes} == {"/healthz", "/readyz"}
    assert CONTAINER["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert CONTAINER["readinessProbe"]["httpGet"]["path"] == "/readyz"
    named = re.findall(r"\buri (/\S+)", text("compose/haproxy.cfg"))
    scrapes = documents("compose/prometheus.yml")[0]["scrape_configs"]
    named += [one["metrics_path"] for one in scrapes]
    named += re.findall(r"127\.0\.0\.1:\d+(/\w+)", text("compose/compose.yaml"))
    assert {"/readyz", "/healthz", "/metrics"} == set(named)
    assert {*named, *(probe["path"] for probe in probes)} <= served


def test_ports_are_the_services() -> None:
    found = re.findall(r"(?:service-\d|127\.0\.0\.1|bind ):(\d+)", text("compose/haproxy.cfg"))
    targets = documents("compose/prometheus.yml")[0]["scrape_configs"][0]["static_configs"][0]
    found += [target.rpartition(":")[2] for target in targets["targets"]]
    found += re.findall(r"^EXPOSE (\d+)", text("Dockerfile"), re.M)
    found += [f"{CONTAINER['ports'][0]['containerPort']}"]
    found += [f"{KUBERNETES['Service']['spec']['ports'][0]['port']}"]
    found += [COMPOSE["services"]["proxy"]["ports"][0].rpartition(":")[2]]
    assert {int(one) for one in found} == {port()}
    assert {target.partition(":")[0] for target in targets["targets"]} == set(SERVICES)


def test_the_service_is_called_by_names_that_it_allows() -> None:
    allowed = SERVICES["service-1"]["environment"][f"{PREFIX}ALLOWED_HOSTS"].split(",")
    # By Prometheus, and by consumers in the network.
    assert {*SERVICES, "proxy"} <= set(allowed)


# ------------------------------------------------------------------ stopping


def test_a_replica_has_time_to_stop() -> None:
    stops = Settings().shutdown_seconds
    pause = int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    unready = CONTAINER["readinessProbe"]["periodSeconds"] * 2
    assert pause >= unready
    assert POD["terminationGracePeriodSeconds"] >= pause + stops + 10
    for service in SERVICES.values():
        assert int(service["stop_grace_period"].removesuffix("s")) >= stops + 10
    unit = one_in(r"^TimeoutStopSec=(\d+)", text("systemd/counterpoise.service"))
    assert int(unit) >= stops + 10


def test_the_unit_stops_the_service_and_the_service_its_postgres() -> None:
    """A SIGTERM to all processes ends the sessions of calls that are under way."""
    assert "\nKillMode=mixed\n" in text("systemd/counterpoise.service")


def test_one_replica_serves_while_another_is_replaced() -> None:
    deployment, budget = KUBERNETES["Deployment"]["spec"], KUBERNETES["PodDisruptionBudget"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["replicas"] - budget["maxUnavailable"] >= 1
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    for selector in (deployment["selector"], budget["selector"]):
        assert selector["matchLabels"].items() <= labels.items()
    assert KUBERNETES["Service"]["spec"]["selector"].items() <= labels.items()


def test_the_proxy_waits_longer_than_any_long_poll() -> None:
    timeouts = dict(re.findall(r"timeout (client|server) (\d+)s", text("compose/haproxy.cfg")))
    assert all(int(seconds) > 60 for seconds in timeouts.values())
    assert set(timeouts) == {"client", "server"}


# ------------------------------------------------------------------ security


def test_the_image_is_not_root_and_holds_no_secret() -> None:
    dockerfile = text("Dockerfile")
    stages = re.split(r"^FROM ", dockerfile, flags=re.M)[1:]
    assert len(stages) == 2
    (user,) = re.findall(r"^USER (\S+)", stages[-1], re.M)
    assert all(int(number) > 0 for number in user.split(":"))
    assert not re.search(r"^(ARG|ENV).*(TOKEN|PASSWORD|SECRET|KEY|URL)", dockerfile, re.M)
    assert int(user.split(":")[0]) == POD["securityContext"]["runAsUser"]
    (only,) = re.findall(r"^COPY .*$", stages[-1], re.M)
    assert only.startswith("COPY --from=build")
    ignored = text("Dockerfile.dockerignore").splitlines()
    assert ignored[1] == "*"


def test_the_image_takes_only_what_has_a_hash_in_the_lock() -> None:
    dockerfile = text("Dockerfile").replace("\\\n", " ")
    installs = re.findall(r"\bpip install [^&\n]*", dockerfile)
    assert len(installs) == 3
    assert all("--require-hashes" in one for one in installs)
    lock = text("constraints.txt")
    # As the file does it with sed: a package with its hashes.
    for pattern in re.findall(
        r"sed -n -E '/(\^[^/]*)/,/\[\^\\\\\]\$/p' deploy/constraints.txt", dockerfile
    ):
        chosen = re.findall(rf"{pattern}\S+(?: \\\n +--hash=sha256:[0-9a-f]{{64}})+$", lock, re.M)
        assert len(chosen) == len(pattern.split("|"))
    # Wherever packages come from, the lock names no other.
    assert not re.search(r"--hash=/d|no-verify-hashes|no-deps", dockerfile)


def test_the_image_copies_what_the_wheels_are_built_from() -> None:
    copied = {
        name
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text("Dockerfile"), re.M)
        for name in line.split()
    }
    allowed = {
        line.removeprefix("!")
        for line in text("Dockerfile.dockerignore").splitlines()
        if line.startswith("!")
    }
    assert copied == allowed
    assert all(any(f"{name}/".startswith(f"{one}/") for name in tracked_files()) for one in copied)


def test_containers_have_no_rights_that_they_do_not_need() -> None:
    security = CONTAINER["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert POD["automountServiceAccountToken"] is False
    for name in (*SERVICES, "proxy", "prometheus", "grafana"):
        service = COMPOSE["services"][name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_compose_is_reached_from_this_machine_only() -> None:
    """The replicas have neither keys nor TLS there."""
    published = [port for one in COMPOSE["services"].values() for port in one.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_users_in_the_containers_of_compose_can_read_its_secrets(tmp_path: Path) -> None:
    """A file of a secret keeps its owner and mode there, and nobody is root or has capabilities."""
    for name in ("docker", "curl"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho text")
        program.chmod(0o755)
    (tmp_path / "deploy/compose").mkdir(parents=True)
    lines = re.findall(r"^#   (.*)$", text("compose/compose.yaml"), re.M)
    subprocess.run(
        ["sh", "-ec", "umask 077\n" + "\n".join(lines)],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        check=True,
    )
    for secret in COMPOSE["secrets"].values():
        file = tmp_path / "deploy/compose" / secret["file"]
        assert file.read_text().strip()
        assert stat.S_IMODE(file.stat().st_mode) == 0o644
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_kubernetes_needs_keys_and_tls() -> None:
    names = {one["name"] for one in CONTAINER["env"]}
    assert f"{PREFIX}INSECURE" not in names
    assert {f"{PREFIX}TLS_CERT", f"{PREFIX}TLS_KEY"} <= names
    [database] = [one for one in CONTAINER["env"] if one["name"] == f"{PREFIX}DATABASE_URL"]
    assert "secretKeyRef" in database["valueFrom"]


def test_the_unit_is_restarted_only_where_that_may_help() -> None:
    unit = text("systemd/counterpoise.service")
    codes = set(one_in(r"^RestartPreventExitStatus=(.*)$", unit).split())
    commands = (ROOT / "docs/commands.md").read_text("utf-8")
    described = commands.partition("## Exit codes of the service's commands")[2]
    assert codes == {"2", "6", "8", "9"}
    # A start fails within a second or two, and systemd gives up after five in ten.
    assert "\nStartLimitIntervalSec=0\n" in unit.partition("[Service]")[0]
    assert codes <= set(re.findall(r"^\| (\d+) \|", described, re.M))
    for directive in ("DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict"):
        assert directive in unit


def test_the_unit_gets_its_certificate_from_root() -> None:
    """Its user exists only while it runs, so no file of the key could be its own."""
    assert "DynamicUser=yes" in text("systemd/counterpoise.service")
    parts = [text(name) for name in FILES if name.startswith("systemd/")]
    named = [(part, path) for part in parts for path in re.findall(r"TLS_(?:CERT|KEY)=(\S+)", part)]
    assert named
    for part, path in named:
        assert f"\nLoadCredential={path.removeprefix('%d/')}:/etc/counterpoise/" in part


# ------------------------------------------------------------------ Spark


def test_the_driver_may_write_its_checkpoint() -> None:
    """A new volume is root's, unless the pod has a group for it."""
    [pod] = documents("kubernetes/spark-driver.yaml")
    assert any("persistentVolumeClaim" in volume for volume in pod["spec"]["volumes"])
    security = pod["spec"]["securityContext"]
    assert security["fsGroup"] == security["runAsUser"]


def test_the_page_about_clusters_submits_as_the_pod_template_says() -> None:
    [said] = re.findall(
        r"^(#   spark-submit (?:.*\n#     )+.*)$", text("kubernetes/spark-driver.yaml"), re.M
    )
    command = said.replace("#   ", "")
    assert "COUNTERPOISE_URL" in command
    assert command in (ROOT / "docs/cluster.md").read_text("utf-8")


# ------------------------------------------------------------------ the chart (see test_chart)


def test_the_settings_of_the_chart_are_the_services() -> None:
    schema = json.loads(text("helm/counterpoise/values.schema.json"))
    jsonschema.Draft7Validator.check_schema(schema)
    allowed = {
        name
        for part in ("settings", "secretSettings")
        for name in schema["properties"][part]["propertyNames"]["enum"]
    }
    # By the chart itself, or without a meaning in a container with one port and no disk.
    elsewhere = {"ALLOWED_HOSTS", "DATABASE_URL", "DATA_DIR", "HOST", "INSECURE", "KEYS_OPTIONAL"}
    elsewhere |= {"PORT", "SHUTDOWN_SECONDS", "TLS_CERT", "TLS_KEY"}
    assert allowed == {name.upper() for name in Settings.__struct_fields__} - elsewhere


def test_the_defaults_of_the_chart_fit_its_schema() -> None:
    [values] = documents("helm/counterpoise/values.yaml")
    jsonschema.validate(values, json.loads(text("helm/counterpoise/values.schema.json")))


def test_chart_and_image_have_the_version_of_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [chart] = documents("helm/counterpoise/Chart.yaml")
    [kustomization] = documents("kubernetes/kustomization.yaml")
    [image] = kustomization["images"]
    assert {chart["version"], chart["appVersion"], image["newTag"]} == {project["version"]}
    assert CONTAINER["image"] == f"{image['name']}:{project['version']}"


# ------------------------------------------------------------------ licenses


def test_the_list_of_third_party_packages_is_current() -> None:
    """After a change of dependencies: `.venv/bin/python deploy/third_party.py`.

    It is that of Python 3.11. With a newer one a few packages have other versions, which word their
    licenses in another way and need less.
    """
    done = subprocess.run(
        [sys.executable, DEPLOY / "third_party.py"], capture_output=True, text=True, check=True
    )
    columns = 4 if sys.version_info < (3, 12) else 2

    def rows(page: str) -> list[list[str]]:
        return [line.split(" | ")[:columns] for line in page.splitlines()]

    assert rows(done.stdout) == rows(text("THIRD-PARTY.md"))


def test_licenses_of_all_packages_are_known() -> None:
    rows = re.findall(r"^\| ([a-z0-9-]+) \| (\S+) \| (.+?) \| .* \|$", text("THIRD-PARTY.md"), re.M)
    assert len(rows) > 40
    assert not [row for row in rows if row[1] == "?" or row[2] == "see the package"]
