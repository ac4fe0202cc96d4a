"""The files in deploy/, checked by the programs that are for it; the proxy is played with."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import kubernetes_validate
import pytest
import yaml

from broker.service import Broker
from counterpoise import Client, Flow
from counterpoise.errors import Unreachable
from tests.architecture.test_repository import ROOT
from tests.service import Service, eventually, free_port, running, settings_for

pytestmark = pytest.mark.long

DEPLOY = ROOT / "deploy"
HAPROXY = shutil.which("haproxy")
PROMTOOL = shutil.which("promtool")
SYSTEMD = shutil.which("systemd-analyze")
# The oldest that gets fixes, and the newest that there are schemas for.
KUBERNETES = ("1.33", kubernetes_validate.latest_version())


def checked(*command: str | Path) -> str:
    """What a checker says of a file that is right."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=500)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    hadolint = shutil.which("hadolint", path=str(ROOT / ".venv" / "bin"))
    assert hadolint is not None
    assert checked(hadolint, DEPLOY / "Dockerfile") == ""


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    documents = [*yaml.safe_load_all((DEPLOY / "kubernetes/service.yaml").read_text("utf-8"))]
    policy = (DEPLOY / "kubernetes/database-policy.yaml").read_text("utf-8")
    documents.append(yaml.safe_load(policy))
    template = yaml.safe_load((DEPLOY / "kubernetes/spark-driver.yaml").read_text("utf-8"))
    # Spark gives the driver its name.
    documents.append({**template, "metadata": {"name": "driver", **template.get("metadata", {})}})
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.skipif(SYSTEMD is None, reason="needs systemd-analyze (Debian package systemd)")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd/counterpoise.service").read_text("utf-8")
    assert SYSTEMD is not None
    installed = tmp_path / "counterpoise.service"
    installed.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit, flags=re.M))
    (tmp_path / "counterpoise.service.d").mkdir()
    shutil.copy(DEPLOY / "systemd/tls.conf", tmp_path / "counterpoise.service.d")
    assert checked(SYSTEMD, "verify", installed) == ""


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool (Debian package prometheus)")
def test_prometheus_takes_its_configuration_with_the_alerts(tmp_path: Path) -> None:
    page = (ROOT / "docs/monitoring.md").read_text("utf-8")
    [of_kubernetes] = re.findall(r"```yaml\n(.*?)```", page, re.S)
    # Debian's promtool is built without Kubernetes.
    finding = r"kubernetes_sd_configs:\n(?: {6}.*\n)+"
    of_kubernetes = re.sub(finding, "static_configs: [{targets: [pod]}]\n", of_kubernetes)
    compose = (DEPLOY / "compose/prometheus.yml").read_text("utf-8")
    shutil.copy(DEPLOY / "prometheus/alerts.yml", tmp_path)
    (tmp_path / "metrics-key").write_text("key")
    (tmp_path / "counterpoise").mkdir()
    (tmp_path / "counterpoise/key").write_text("key")
    shutil.copy(ROOT / "tests/certificates/first.pem", tmp_path / "counterpoise/ca.crt")
    assert PROMTOOL is not None
    for config, says in ((compose, "rules found"), (of_kubernetes, "is valid")):
        config = re.sub("/run/secrets/|/etc/prometheus/", f"{tmp_path}/", config)
        (tmp_path / "prometheus.yml").write_text(config)
        assert says in checked(PROMTOOL, "check", "config", tmp_path / "prometheus.yml")


# ------------------------------------------------------------------ the proxy


needs_haproxy = pytest.mark.skipif(HAPROXY is None, reason="needs haproxy (Debian package haproxy)")


def on_loopback(port: int, replicas: dict[str, Service]) -> str:
    """The proxy's configuration, for replicas at ports of this machine."""
    config = (DEPLOY / "compose/haproxy.cfg").read_text("utf-8")
    config = re.sub(r"^resolvers docker\n(?: .*\n)*", "", config, flags=re.M)
    config = config.replace(" resolvers docker init-addr last,libc,none", "")
    config = config.replace("bind :8640", f"bind 127.0.0.1:{port}")
    for name, service in replicas.items():
        config = config.replace(f"{name}:8640", service.url.removeprefix("http://"))
    assert not re.search(r"8640|docker", config), config
    return config


@pytest.fixture
def replicas(migrated_url: str) -> Iterator[dict[str, Service]]:
    settings = settings_for(migrated_url, allowed_hosts="proxy,service-1,service-2")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(running(Broker(settings), settings))
            for name in ("service-1", "service-2")
        }


def is_ready(client: Client) -> bool:
    """Whether the proxy listens, and has found a replica that is ready."""
    with suppress(Unreachable):
        return client.probe("/readyz").status == 200
    return False


@contextmanager
def proxied(replicas: dict[str, Service], tmp_path: Path) -> Iterator[str]:
    """The address of a proxy that has found a replica."""
    assert HAPROXY is not None
    port = free_port()
    config = tmp_path / "haproxy.cfg"
    config.write_text(on_loopback(port, replicas))
    checked(HAPROXY, "-c", "-f", config)
    with (
        (tmp_path / "haproxy.log").open("w") as log,
        subprocess.Popen([HAPROXY, "-f", config], stdout=log, stderr=log) as proxy,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            with Client(url) as client:
                eventually(lambda: is_ready(client))
            yield url
        finally:
            # While it starts it takes no other signal.
            proxy.kill()


def first_key(replicas: dict[str, Service]) -> str:
    """The key of an administrator; it is made on the service's own machine."""
    with replicas["service-1"].http as directly:
        key: str = directly.post("/keys", json={"role": "admin"}).json()["key"]
    return key


@needs_haproxy
def test_a_consumer_behind_the_proxy_outlives_each_replica(
    replicas: dict[str, Service], tmp_path: Path
) -> None:
    lost: list[int] = []
    key = first_key(replicas)
    with proxied(replicas, tmp_path) as url, Client(url, token=key) as client:
        client.create_queue("orders", 4, rebalance_delay=0)
        flow = Flow("orders", url=url, token=key, on_lost=lambda one: lost.append(one.partition))
        with flow:
            eventually(lambda: len(flow.partitions) == 4)
            replicas["service-1"].stop()
            commit = dict.fromkeys(range(4), "1")
            assert set(flow.commit(commit).values()) == {"ok"}
            # The other one serves: a rebalance begins, and is told.
            with Flow("orders", client_name="other", url=url, token=key):
                eventually(lambda: "revoking" in {o.state for o in flow.partitions.values()})
        assert lost == []


@needs_haproxy
def test_people_behind_the_proxy_need_a_key_and_log_in(
    replicas: dict[str, Service], tmp_path: Path
) -> None:
    with proxied(replicas, tmp_path) as url:
        # Without keys only callers from the service's own machine need none.
        assert httpx.get(f"{url}/v1/queues").status_code == 401
        key = first_key(replicas)
        page = {"Origin": url, "Sec-Fetch-Site": "same-origin"}
        entered = httpx.post(f"{url}/v1/session", json={"key": key}, headers=page)
        assert entered.status_code == 200, entered.text

        def role() -> object:
            session = httpx.get(f"{url}/v1/session", cookies=entered.cookies)
            return session.json().get("role")

        # The other replica learns of the first key within seconds.
        eventually(lambda: role() == "admin")
