"""The Helm chart, linted and rendered by Helm itself (its library, from the package index)."""

import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml

from broker.settings import PREFIX, load
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
PLACE = {"name": "counterpoise", "namespace": "counterpoise"}
ALL: dict[str, Any] = {
    "replicas": 3,
    "image": {
        "repository": "images.example/queues",
        "tag": "v9",
        "pullPolicy": "Always",
        "pullSecrets": ["registry"],
    },
    "database": {"secret": "the-database", "key": "address"},
    "tls": {"secret": "the-certificate"},
    "keys": {"optional": True},
    "allowedHosts": ["queues.example.com"],
    "settings": {"LOG_KEEP_MESSAGES": 1_000_000, "AUTO_MIGRATE": False, "LOG_LEVEL": "warning"},
    "secretSettings": {"LOG_URLS": {"secret": "logs", "key": "urls"}},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [
        {
            "key": "dedicated",
            "operator": "Equal",
            "value": "queues",
            "effect": "NoExecute",
            "tolerationSeconds": 60,
        },
    ],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "arch", "operator": "In", "values": ["amd64"]}]}
                ]
            }
        },
    },
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
        {
            "maxSkew": 2,
            "topologyKey": "rack",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"a": "b"}},
        },
    ],
    "podAnnotations": {"example.com/scrape": "true"},
    "service": {"annotations": {"example.com/balancer": "yes: no"}},
    "podDisruptionBudget": {"maxUnavailable": "50%"},
    "serviceMonitor": {
        "enabled": True,
        "interval": "30s",
        "labels": {"release": "prometheus"},
        "token": {"secret": "viewer", "key": "the-key"},
        "authority": {"secret": "authority", "key": "ca.pem"},
        "serverName": "queues.example.com",
    },
    "networkPolicy": {
        "callers": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}],
        "databasePods": {"cnpg.io/cluster": "postgres"},
        "databasePort": 6432,
        "clients": [
            {
                "namespaceSelector": {
                    "matchLabels": {"kubernetes.io/metadata.name": "applications"},
                },
            },
        ],
    },
    "resources": {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
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
    texts = chart.render(values, **{**PLACE, **names})
    objects = [
        one
        for name, text in texts.items()
        if name.endswith(".yaml")
        for one in yaml.safe_load_all(text)
        if one is not None
    ]
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def choices(values: dict, *path: str) -> Iterator[tuple[str, ...]]:
    """The path of each value that can be chosen; an empty map is one."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from choices(value, *path, name)
        else:
            yield (*path, name)


def without(values: dict, name: str, *rest: str) -> dict:
    """All values but this one; KeyError if it is none of them."""
    if rest:
        return {**values, name: without(values[name], *rest)}
    values[name]
    return {other: value for other, value in values.items() if other != name}


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
        # KEDA's own, and that of the Prometheus operator.
        if kind not in ("ScaledObject", "TriggerAuthentication", "ServiceMonitor"):
            kubernetes_validate.validate(one, version, strict=True)


def test_what_is_chosen_is_what_runs(chart: Any) -> None:
    objects = rendered(chart, ALL, name="other", namespace="shared")
    deployment = objects["Deployment", "other-counterpoise"]
    pod = deployment["spec"]["template"]["spec"]
    only = container(objects)
    assert deployment["spec"]["replicas"] == 3
    assert only["image"] == "images.example/queues:v9"
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
    chosen = ("LOG_KEEP_MESSAGES", "AUTO_MIGRATE", "LOG_LEVEL", "KEYS_OPTIONAL")
    assert [texts[name] for name in chosen] == ["1000000", "false", "warning", "true"]
    load(**{name.lower(): text for name, text in texts.items()})
    hosts = "other-counterpoise other-counterpoise.shared.svc *.shared.svc.cluster.local"
    assert texts["ALLOWED_HOSTS"].split(",") == [*hosts.split(), "queues.example.com"]


@pytest.mark.matrix("path")
@pytest.mark.parametrize(
    "path", [*choices(yaml.safe_load((CHART / "values.yaml").read_text("utf-8")))], ids=".".join
)
def test_each_value_that_can_be_chosen_is_rendered(chart: Any, path: tuple[str, ...]) -> None:
    """`ALL` has it, so its objects are validated; without it they are others."""
    assert rendered(chart, without(ALL, *path)) != rendered(chart, ALL)


def test_replicas_run_where_they_should(chart: Any) -> None:
    objects = rendered(chart, ALL, name="other")
    template = objects["Deployment", "other-counterpoise"]["spec"]["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    for name in ("nodeSelector", "tolerations", "affinity"):
        assert pod[name] == ALL[name]
    own, given = ALL["topologySpreadConstraints"]
    assert pod["topologySpreadConstraints"] == [
        {**own, "labelSelector": {"matchLabels": labels}},
        given,
    ]
    assert template["metadata"]["annotations"] == ALL["podAnnotations"]
    service = objects["Service", "other-counterpoise"]["metadata"]
    assert service["annotations"] == ALL["service"]["annotations"]
    budget = objects["PodDisruptionBudget", "other-counterpoise"]["spec"]
    assert budget["maxUnavailable"] == "50%"
    default = rendered(chart, {})["Deployment", "counterpoise"]["spec"]["template"]
    assert "annotations" not in default["metadata"]
    assert not {"nodeSelector", "tolerations", "affinity"} & default["spec"].keys()
    [spread] = default["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    none = rendered(chart, {"topologySpreadConstraints": []})["Deployment", "counterpoise"]
    assert "topologySpreadConstraints" not in none["spec"]["template"]["spec"]


def test_prometheus_asks_the_replicas_with_a_key(chart: Any) -> None:
    objects = rendered(chart, ALL, name="other")
    monitor = objects["ServiceMonitor", "other-counterpoise"]
    service = objects["Service", "other-counterpoise"]
    assert monitor["metadata"]["labels"] == {
        **service["metadata"]["labels"],
        "release": "prometheus",
    }
    selected = monitor["spec"]["selector"]["matchLabels"]
    assert selected.items() <= service["metadata"]["labels"].items()
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "counterpoise"
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [one["name"] for one in service["spec"]["ports"]]
    assert endpoint == {
        "port": "https",
        "scheme": "https",
        "path": "/metrics",
        "interval": "30s",
        "authorization": {"credentials": {"name": "viewer", "key": "the-key"}},
        "tlsConfig": {
            "ca": {"secret": {"name": "authority", "key": "ca.pem"}},
            "serverName": "queues.example.com",
        },
    }
    assert not [kind for kind, _ in rendered(chart, {}) if kind == "ServiceMonitor"]
    short = {"serviceMonitor": {"enabled": True}}
    default = rendered(chart, short, name="other", namespace="shared")
    [endpoint] = default["ServiceMonitor", "other-counterpoise"]["spec"]["endpoints"]
    assert endpoint["tlsConfig"]["serverName"] == "other-counterpoise.shared.svc"


def test_only_the_named_callers_reach_the_replicas(chart: Any) -> None:
    objects = rendered(chart, {"networkPolicy": {"callers": ALL["networkPolicy"]["callers"]}})
    assert [name for kind, name in objects if kind == "NetworkPolicy"] == ["counterpoise"]
    policy = objects["NetworkPolicy", "counterpoise"]["spec"]
    labels = objects["Deployment", "counterpoise"]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"] == {"matchLabels": labels}
    [rule] = policy["ingress"]
    assert rule["from"] == ALL["networkPolicy"]["callers"]
    [port] = container(objects)["ports"]
    assert rule["ports"] == [{"protocol": "TCP", "port": port["name"]}]


def test_the_notes_have_the_line_of_the_page_for_the_first_key(chart: Any) -> None:
    def notes(values: dict, **names: str) -> str:
        [text] = [
            text
            for name, text in chart.render(values, **names).items()
            if name.endswith("NOTES.txt")
        ]
        return str(text)

    [line] = [one for one in notes({}, **PLACE).splitlines() if one.startswith("kubectl")]
    page = (ROOT / "deploy/README.md").read_text("utf-8")
    assert re.sub(r"--image=\S+", "--image=IMAGE", line) in page
    # The pod may reach the database, as the policy has it.
    [given] = re.findall(r"--labels=(\S+)", line)
    objects = rendered(chart, ALL)
    [rule] = objects["NetworkPolicy", "counterpoise-database"]["spec"]["ingress"]
    assert rule["from"][0]["podSelector"]["matchLabels"] == dict(
        one.split("=") for one in given.split(",")
    )
    # A shell reads it as it is meant.
    dotted = notes({**ALL, "database": {"secret": "s", "key": "a.url"}}, **PLACE)
    [line] = [one for one in dotted.splitlines() if one.startswith("kubectl")]
    assert r"jsonpath={.data.a\.url}" in shlex.split(line)


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
    objects = rendered(chart, {"networkPolicy": {**ALL["networkPolicy"], "databasePort": 5432}})
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
        {"networkPolicy": {"callers": [{}]}},
        {"nodeSelector": {"disk": 1}},
        {"tolerations": [{"effect": "NoWhere"}]},
        {"affinity": {"nodes": {}}},
        {"topologySpreadConstraints": [{"maxSkew": 0}]},
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone"}]},
        {"podAnnotations": {"example.com/scrape": True}},
        {"service": {"annotations": {"example.com/scrape": 1}}},
        {"service": {"type": "NodePort"}},
        {"podDisruptionBudget": {"maxUnavailable": 0}},
        {"podDisruptionBudget": {"maxUnavailable": "0%"}},
        {"serviceMonitor": {"enabled": "yes"}},
        {"serviceMonitor": {"interval": "often"}},
        {"serviceMonitor": {"token": "cp_1"}},
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
