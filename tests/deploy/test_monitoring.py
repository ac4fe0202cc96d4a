"""The alert rules and the dashboard for Grafana name what a live service exposes."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from broker.calls.conditions import MIRROR_FAILED
from broker.calls.rendering import OVER_CAPACITY, PIN_UNMET, RESIZE_PAUSED
from broker.store.conditions import KINDS
from counterpoise.headline import ORDER, OTHER
from tests.api.consumer import bind, create_queue
from tests.architecture.test_repository import ROOT
from tests.service import Service

DEPLOY = ROOT / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "counterpoise.json"
PROMTOOL = shutil.which("promtool")
# Of Prometheus itself.
OWN = {"up"}
METRIC = r"\b(?:up|(?:counterpoise|process)_\w+)\b"


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return document


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (
        one["definition"] for one in dashboard()["templating"]["list"] if "definition" in one
    )


@pytest.fixture
def exposed(service: Service) -> str:
    """What a service exposes of a queue with two consumers, one of them in a handoff."""
    with service.http as api:
        create_queue(api, "q", 2)
        one = bind(api, "q", lease_seconds=60)
        one.until("owned", 0, 1)
        bind(api, "q", lease_seconds=60)
        one.until("revoking", 1)
        assert one.outcomes("release", one.item(1)) == ["ok"]
        poison = {"kind": "quarantined", "text": "t", **one.item(0)}
        assert one.call("conditions", {"seq": 1, "conditions": [poison]}).status_code == 204
    return httpx.get(f"{service.url}/metrics").text


def names_in(exposed: str) -> set[str]:
    types = re.findall(r"^# TYPE (\S+) (\S+)$", exposed, re.M)
    named = {name for name, _ in types}
    for name, kind in types:
        if kind == "histogram":
            named |= {f"{name}_{end}" for end in ("bucket", "sum", "count")}
    return named


def test_each_expression_names_only_what_a_service_exposes(exposed: str) -> None:
    known = names_in(exposed) | OWN
    for expression in expressions():
        named = set(re.findall(METRIC, expression))
        assert named, expression
        assert named <= known, (expression, named - known)


def test_each_expression_selects_by_labels_that_exist(exposed: str) -> None:
    labels: dict[str, set[str]] = {}
    for name, inside in re.findall(r"^(\w+)\{(.*)\} \S+$", exposed, re.M):
        labels.setdefault(name, set()).update(re.findall(r"(\w+)=\"", inside))
    # Of Prometheus itself; and what a service has no series of before it happens.
    own = {"job", "instance"}
    for expression in expressions():
        for name, inside in re.findall(rf"({METRIC})\{{([^}}]*)\}}", expression):
            if name in labels:
                asked = set(re.findall(r"(\w+)(?==|!=|=~|!~)", inside)) - own
                assert asked <= labels[name], expression


def test_what_alerts_count_begins_at_zero(service: Service) -> None:
    with service.http as api:
        create_queue(api, "q", 2)
    samples = re.findall(
        r'^(counterpoise_\w+)\{(.*queue="q".*)\} 0\.0$',
        httpx.get(f"{service.url}/metrics").text,
        re.M,
    )
    for rule in rules():
        for name, inside in re.findall(r"increase\((\w+)(?:\{(.*?)\})?\[", rule["expr"]):
            asked = set(filter(None, inside.split(",")))
            assert any(
                name == exposed and asked <= set(labels.split(",")) for exposed, labels in samples
            ), rule["alert"]


def test_kinds_of_conditions_have_an_alert_each() -> None:
    asked = {kind for rule in rules() for kind in re.findall(r'kind="(\w+)"', str(rule["expr"]))}
    assert asked == {*KINDS, MIRROR_FAILED, OVER_CAPACITY, PIN_UNMET, RESIZE_PAUSED}


def test_a_headline_says_things_in_the_order_of_the_alerts() -> None:
    """The page has what is said and the alert of each; a new one needs a place in the order."""
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    table = page.partition("\n## The headline\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \|.*?\|(?: `(\w+)`)? \|$", table, re.M)
    kinds = [re.sub(r"^# (partitions )?", "", said) for said, _ in rows]
    words = {"unowned": "without an owner"}
    assert kinds == [words.get(kind, kind.replace("_", " ")) for kind in ORDER if kind != OTHER]
    named = [alert for _, alert in rows if alert]
    assert named == [rule["alert"] for rule in rules() if rule["alert"] in named]
    assert {rule["alert"] for rule in rules() if "kind=" in rule["expr"]} <= {*named}
    for said, alert in rows:
        kind = said.removeprefix("# ").replace(" ", "_")
        if f'kind="{kind}"' in str(rules()):
            assert f'kind="{kind}"' in next(r["expr"] for r in rules() if r["alert"] == alert)


def test_each_alert_says_what_it_means() -> None:
    for rule in rules():
        assert rule["alert"].startswith("Counterpoise")
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]


def test_the_panels_do_not_overlap_and_ask_the_chosen_source() -> None:
    places: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        squares = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not squares & places, panel["title"]
        places |= squares
        assert panel["datasource"]["uid"] == "${datasource}"


def test_compose_gives_prometheus_its_key_and_its_rules() -> None:
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text("utf-8"))
    scraping = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text("utf-8"))
    prometheus = compose["services"]["prometheus"]
    (secret,) = prometheus["secrets"]
    key = scraping["scrape_configs"][0]["authorization"]["credentials_file"]
    assert key == f"/run/secrets/{secret}"
    ignored = (DEPLOY / "compose" / ".gitignore").read_text("utf-8").split()
    assert f"{Path(compose['secrets'][secret]['file']).parts[0]}/" in ignored
    mounted = dict(volume.split(":")[:2] for volume in prometheus["volumes"])
    inside = {there: here for here, there in mounted.items()}
    (file,) = scraping["rule_files"]
    assert (DEPLOY / "compose" / inside[file]).resolve() == ALERTS
    for here in mounted | dict(v.split(":")[:2] for v in compose["services"]["grafana"]["volumes"]):
        assert not here.startswith(".") or (DEPLOY / "compose" / here).exists(), here


def test_kubernetes_is_asked_as_the_alerts_and_the_manifests_say() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    [example] = re.findall(r"```yaml\n(.*?)```", page, re.S)
    [job] = yaml.safe_load(example)["scrape_configs"]
    manifests = yaml.safe_load_all((DEPLOY / "kubernetes" / "service.yaml").read_text("utf-8"))
    [pod] = [one["spec"]["template"] for one in manifests if one["kind"] == "Deployment"]
    # Without credentials it would get 401, so nothing offers the pods to a job of another name.
    assert "annotations" not in pod["metadata"]
    assert {job["job_name"]} == set(re.findall(r'job="(\w+)"', str(rules())))
    [found] = job["kubernetes_sd_configs"]
    [selector] = found["selectors"]
    label, value = selector["label"].split("=")
    assert pod["metadata"]["labels"][label] == value
    assert {"credentials_file"} == set(job["authorization"])
    names = next(
        one["value"]
        for one in pod["spec"]["containers"][0]["env"]
        if one["name"] == "COUNTERPOISE_ALLOWED_HOSTS"
    )
    assert job["tls_config"]["server_name"] in names.split(",")


def test_keda_asks_for_what_the_service_answers(service: Service) -> None:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "keda.yaml").read_text("utf-8"))
    by_kind = {one["kind"]: one for one in documents}
    (trigger,) = by_kind["ScaledObject"]["spec"]["triggers"]
    asked = trigger["metadata"]
    with service.http as api:
        create_queue(api, "orders", 2)
    path = "/v1/" + asked["url"].partition("/v1/")[2]
    answer = httpx.get(service.url + path)
    assert isinstance(answer.json()[asked["valueLocation"]], int)
    # The answer is the number itself.
    assert (trigger["metricType"], asked["targetValue"]) == ("AverageValue", "1")
    target = by_kind["ScaledObject"]["spec"]["scaleTargetRef"]
    assert by_kind[target["kind"]]["metadata"]["name"] == target["name"]


@pytest.mark.long
@pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian: prometheus) is not installed")
def test_promtool_finds_nothing_wrong(exposed: str) -> None:
    assert PROMTOOL is not None
    tests = ALERTS.with_name("alerts_test.yml")
    for arguments, given in (
        (("check", "rules", str(ALERTS)), None),
        (("test", "rules", str(tests)), None),
        (("check", "metrics"), exposed),
    ):
        ran = subprocess.run(
            [PROMTOOL, *arguments], input=given, capture_output=True, text=True, timeout=60
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
