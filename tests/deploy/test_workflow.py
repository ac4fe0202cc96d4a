"""The workflow that tests changes and publishes releases. It can run only on the host of the
repository; here it is read by rules as strict as those of the host, and its scripts are parsed.
"""

import os
import re
import subprocess
from graphlib import TopologicalSorter
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import yaml

from tests.architecture.test_repository import ROOT

NAME = "deploy/workflows/release.yml"
TEXT = (ROOT / NAME).read_text("utf-8")
# Every value is a text, and `on` is a key and not a truth.
WORKFLOW: dict[str, Any] = yaml.load(TEXT, yaml.BaseLoader)
JOBS: dict[str, Any] = WORKFLOW["jobs"]
STEPS = [step for job in JOBS.values() for step in job["steps"]]

TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
PERMISSIONS = {
    "type": "object",
    "propertyNames": {"enum": ["contents", "id-token"]},
    "additionalProperties": {"enum": ["read", "write"]},
}
STEP = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "uses": {"type": "string", "pattern": "^[a-z-]+/[a-z-]+@[0-9a-f]{40}$"},
        "run": {"type": "string"},
        "with": TEXTS,
        "env": TEXTS,
        "working-directory": {"type": "string"},
    },
    "additionalProperties": False,
    "oneOf": [
        {"required": ["uses"], "not": {"required": ["run"]}},
        {"required": ["run"], "not": {"required": ["with"]}},
    ],
}
JOB = {
    "type": "object",
    "properties": {
        "runs-on": {"enum": ["ubuntu-24.04"]},
        "container": {"type": ["string", "object"]},
        "environment": {"type": "string"},
        "needs": {"type": ["string", "array"]},
        "if": {"type": "string"},
        "timeout-minutes": {"type": "string", "pattern": "^[0-9]+$"},
        "permissions": PERMISSIONS,
        "steps": {"type": "array", "minItems": 1, "items": STEP},
    },
    "additionalProperties": False,
    "required": ["runs-on", "timeout-minutes", "permissions", "steps"],
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "on": {"propertyNames": {"enum": ["push", "pull_request", "workflow_dispatch"]}},
        "permissions": {"const": {}},
        "env": TEXTS,
        "concurrency": TEXTS,
        "jobs": {"type": "object", "additionalProperties": JOB},
    },
    "additionalProperties": False,
    "required": ["name", "on", "permissions", "jobs"],
}


def needs(job: dict[str, Any]) -> list[str]:
    named = job.get("needs", [])
    return [named] if isinstance(named, str) else named


def all_needed(name: str) -> set[str]:
    before = set(needs(JOBS[name]))
    return before.union(*map(all_needed, before))


def scripts() -> list[str]:
    return [step["run"] for step in STEPS if "run" in step]


def test_the_workflow_has_the_keys_that_there_are() -> None:
    jsonschema.validate(WORKFLOW, SCHEMA)


def test_jobs_follow_each_other() -> None:
    order = TopologicalSorter({name: needs(job) for name, job in JOBS.items()})
    assert set(order.static_order()) == set(JOBS)  # neither a circle nor an unknown job


def test_only_a_tag_that_was_tested_is_published() -> None:
    trusted = [name for name, job in JOBS.items() if "id-token" in job["permissions"]]
    assert trusted == ["publish"]
    publish = JOBS["publish"]
    assert publish["if"] == "github.ref_type == 'tag'"
    assert publish["environment"]
    assert all_needed("publish") == {"test", "files", "rebuild"}
    writes = [name for name, job in JOBS.items() if job["permissions"].get("contents") == "write"]
    assert writes == ["publish"]


def test_everything_that_is_used_is_pinned_and_named() -> None:
    pinned = re.findall(r"uses: ([\w/-]+)@([0-9a-f]{40}) # v[0-9.]+$", TEXT, re.M)
    assert len(pinned) == sum("uses" in step for step in STEPS)
    assert len({commit for _, commit in pinned}) == len({name for name, _ in pinned})


def test_scripts_can_be_parsed_and_hold_no_text_of_others() -> None:
    for script in scripts():
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        # What is put in by the host before the shell reads it could be a command.
        assert "${{" not in script
    used = set(re.findall(r"\$\{\{ *(.*?) *\}\}", TEXT))
    contexts = {name for one in used for name in re.findall(r"\bgithub\.\w+", one)}
    assert contexts <= {"github.ref", "github.ref_name", "github.ref_type", "github.token"} | {
        "github.workflow"
    }
    assert not [one for one in used if re.search(r"\b(secrets|inputs|env|vars)\.", one)]


def test_scripts_run_what_is_here() -> None:
    assert ".ci/run" in scripts()
    assert os.access(ROOT / ".ci/run", os.X_OK)
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"\bmake ([a-z-]+)", "\n".join(scripts())):
        assert re.search(rf"^{target}:", makefile, re.M), target
    variables = set(re.findall(r"\b([A-Z]+)=", "\n".join(scripts())))
    assert variables == {"TAG", "RELEASE"}
    assert all(re.search(rf"\$\({name}\)", makefile) for name in variables)
    assert "RELEASE ?= dist\n" in makefile
