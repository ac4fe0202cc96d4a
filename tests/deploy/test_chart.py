"""The Helm chart, linted and rendered by Helm itself (its library, from the package index)."""

import platform
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml

from broker.settings import PREFIX, Settings
from tests.architecture.test_repository import ROOT
from tests.deploy.test_checked import KUBERNETES

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64"),
        reason="Helm's library comes for Linux on x86-64 (package helm-python-sdk)",
    ),
]

CHART = ROOT / "deploy/helm/counterpoise"
ALL: dict[str, Any] = {
    "replicas": 3,
    "image": {"tag": "v9", "pullPolicy": "Always", "pullSecrets": ["registry"]},
    "database": {"secret": "the-database", "key": "address"},
    "tls": {"secret": "the-certificate"},
    "keys": {"optional": True},
    "allowedHosts": ["queues.example.com"],
    "settings": {"HISTORY_DAYS": 1_000_000, "AUTO_MIGRATE": False, "LOG_LEVEL": "warning"},
    "secretSettings": {"LOG_URLS": {"secret": "logs", "key": "urls"}},
    "networkPolicy": {
        "databasePods": {"cnpg.io/cluster": "postgres"},
        "databasePort": 5432,
        "clients": [
            {
                "namespaceSelector": {
                    "matchLabels": {"kubernetes.io/metadata.name": "applications"},
                },
            },
        ],
    },
    "resources": {"limits": {"memory": "2Gi"}},
    "scaling": [
        {
            "queue": "orders",
            "target": {"kind": "StatefulSet", "name": "orders-application"},
            "lagPerConsumer": 10_000,
            "minReplicas": 1,
            "maxReplicas": 100,
            "token": {"secret": "counterpoise-viewer", "key": "token"},
        }
    ],
}


@pytest.fixture(scope="module")
def chart() -> Iterator[Any]:
    import helm_python

    with helm_python.Chart.load(CHART) as loaded:
        yield loaded


def rendered(chart: Any, values: dict, **names: str) -> dict[tuple[str, str], dict]:
    """The objects by kind and name."""
    release = {"name": "counterpoise", "namespace": "counterpoise", **names}
    texts = chart.render(values, **release)
    objects = [
        one
        for name, text in texts.items()
        if name.endswith(".yaml")
        for one in yaml.safe_load_all(text)
        if one is not None
    ]
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def container(objects: dict[tuple[str, str], dict]) -> dict:
    (deployment,) = [one for (kind, _), one in objects.items() if kind == "Deployment"]
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    return only


@pytest.mark.parametrize("values", [{}, ALL], ids=["defaults", "all values"])
def test_helm_finds_nothing_to_complain_of(values: dict) -> None:
    import helm_python

    report = helm_python.lint(CHART, values, strict=True, namespace="counterpoise")
    assert report["errors"] == []
    # Severity 1 is advice: an icon would be an address outside.
    assert [one for one in report["messages"] if one["severity"] > 1] == []


def test_the_manifests_are_the_chart_with_its_defaults() -> None:
    """After a change of the chart: make manifests."""
    command = [sys.executable, str(ROOT / "deploy/manifests.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == (ROOT / "deploy/kubernetes/service.yaml").read_text("utf-8")


@pytest.mark.parametrize("version", KUBERNETES)
def test_objects_with_all_values_fit_the_schemas_of_kubernetes(chart: Any, version: str) -> None:
    for (kind, _), one in rendered(chart, ALL, name="other").items():
        if kind not in ("ScaledObject", "TriggerAuthentication"):  # KEDA's own
            kubernetes_validate.validate(one, version, strict=True)


def test_what_is_chosen_is_what_runs(chart: Any) -> None:
    objects = rendered(chart, ALL, name="other", namespace="shared")
    deployment = objects["Deployment", "other-counterpoise"]
    pod = deployment["spec"]["template"]["spec"]
    only = container(objects)
    assert deployment["spec"]["replicas"] == 3
    assert only["image"] == "registry.example/counterpoise:v9"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert only["resources"]["limits"] == {"memory": "2Gi"}
    [tls] = [one for one in pod["volumes"] if one["name"] == "tls"]
    assert tls["secret"] == {"secretName": "the-certificate"}
    given = {one["name"].removeprefix(PREFIX): one for one in only["env"]}
    secrets = {
        name: one["valueFrom"]["secretKeyRef"] for name, one in given.items() if "valueFrom" in one
    }
    assert secrets == {
        "DATABASE_URL": {"name": "the-database", "key": "address"},
        "LOG_URLS": {"name": "logs", "key": "urls"},
    }
    texts = {name: one["value"] for name, one in given.items() if "value" in one}
    # A large number is not written as 1e+06.
    chosen = ("HISTORY_DAYS", "AUTO_MIGRATE", "LOG_LEVEL", "KEYS_OPTIONAL")
    assert [texts[name] for name in chosen] == ["1000000", "false", "warning", "true"]
    Settings.model_validate({name.lower(): text for name, text in texts.items()})
    hosts = "other-counterpoise other-counterpoise.shared.svc *.shared.svc.cluster.local"
    assert texts["ALLOWED_HOSTS"].split(",") == [*hosts.split(), "queues.example.com"]


def test_two_releases_in_one_namespace_have_nothing_in_common(chart: Any) -> None:
    one, other = rendered(chart, ALL, name="one"), rendered(chart, {}, name="other")
    assert not one.keys() & other.keys()
    selectors = [
        objects["Service", f"{name}-counterpoise"]["spec"]["selector"]
        for name, objects in (("one", one), ("other", other))
    ]
    labels = one["Deployment", "one-counterpoise"]["spec"]["template"]["metadata"]["labels"]
    assert [selector.items() <= labels.items() for selector in selectors] == [True, False]


def test_the_policy_of_the_database_is_that_of_the_example(chart: Any) -> None:
    text = (ROOT / "deploy/kubernetes/database-policy.yaml").read_text("utf-8")
    example = yaml.safe_load(text)
    objects = rendered(chart, ALL)
    assert objects["NetworkPolicy", "counterpoise-database"] == example
    # It lets the replicas in.
    labels = objects["Deployment", "counterpoise"]["spec"]["template"]["metadata"]["labels"]
    [rule] = example["spec"]["ingress"]
    assert rule["from"][0] == {"podSelector": {"matchLabels": labels}}
    assert not [kind for kind, _ in rendered(chart, {}) if kind == "NetworkPolicy"]


def test_keda_scales_as_in_the_example(chart: Any) -> None:
    text = (ROOT / "deploy/kubernetes/keda.yaml").read_text("utf-8")
    example = {one["kind"]: one["spec"] for one in yaml.safe_load_all(text)}
    objects = {kind: one.get("spec") for (kind, _), one in rendered(chart, ALL).items()}
    assert objects["TriggerAuthentication"] == example["TriggerAuthentication"]
    [trigger] = example["ScaledObject"]["triggers"]
    trigger["authenticationRef"] = {"name": "orders-application"}  # one for each target
    assert objects["ScaledObject"] == example["ScaledObject"]


def test_keda_scales_by_age_too_if_that_is_wanted(chart: Any) -> None:
    scaling = [{**ALL["scaling"][0], "maxLagSeconds": 86_400 * 365}]
    objects = rendered(chart, {**ALL, "scaling": scaling})
    [scaled] = [one for (kind, _), one in objects.items() if kind == "ScaledObject"]
    [trigger] = scaled["spec"]["triggers"]
    asked = urlsplit(trigger["metadata"]["url"]).query
    assert asked == "lag_per_consumer=10000&max_lag_seconds=31536000"


@pytest.mark.parametrize(
    "values",
    [
        {"replicas": 0},
        {"replica": 2},
        {"image": {"repository": ""}},
        {"database": {"secret": ""}},
        {"database": {"url": "postgresql://user:password@host/database"}},
        {"tls": {"secret": ""}},
        {"keys": {"optional": "no"}},
        {"allowedHosts": ["one,two"]},
        {"settings": {"HISTORY": 3}},
        {"settings": {"INSECURE": True}},
        {"settings": {"LOG_URLS": "redis://user:password@host"}},
        {"networkPolicy": {"clients": [{}]}},
        {"networkPolicy": {"databasePort": 0}},
        {"scaling": [{"queue": "orders"}]},
        {"scaling": [{**ALL["scaling"][0], "maxLagSeconds": 0}]},
        {"scaling": [{**ALL["scaling"][0], "target": {"kind": "Pod", "name": "one"}}]},
    ],
    ids=str,
)
def test_values_that_make_no_sense_are_refused(chart: Any, values: dict) -> None:
    import helm_python

    with pytest.raises(helm_python.errors.HelmValuesError):
        rendered(chart, values)
