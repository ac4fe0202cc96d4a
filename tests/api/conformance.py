"""Checks every answer against openapi.yaml: its status is listed, its body fits the schema.

    client = httpx.Client(event_hooks={"response": [conforms]})

Stricter than the document: answers have no unlisted fields.
"""

import copy
import functools
import re
from pathlib import Path
from typing import Any

import httpx
import yaml
from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]

DOCUMENT = Path(__file__).parents[2] / "openapi.yaml"
# Answers of the middleware and the router, on any path.
EVERYWHERE = {404: "not_found", 405: "method_not_allowed"}


@functools.cache
def document() -> dict[str, Any]:
    """Each worker reads it, and PyYAML's parser in C is ten times as fast as the one in Python."""
    api: dict[str, Any] = yaml.load(DOCUMENT.read_text("utf-8"), yaml.CSafeLoader)
    return api


@functools.cache
def _operations() -> list[tuple[str, re.Pattern[str], dict[str, Any]]]:
    return [
        (method.upper(), re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), operation)
        for path, operations in document()["paths"].items()
        for method, operation in operations.items()
    ]


@functools.cache
def _strict_components() -> dict[str, Any]:
    components: dict[str, Any] = copy.deepcopy(document()["components"])
    for schema in components["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return components


def conforms(response: httpx.Response) -> None:
    """Fail unless openapi.yaml allows this answer to this request."""
    request = response.request
    path = request.url.path
    found = [
        operation
        for method, pattern, operation in _operations()
        if method == request.method and pattern.fullmatch(path)
    ]
    if response.status_code in EVERYWHERE and not found:
        return
    assert found, f"{request.method} {path} is not in openapi.yaml"
    status = str(response.status_code)
    listed = found[0]["responses"].get(status)
    assert listed is not None, f"{request.method} {path} answers {status}, which is not listed"
    if "$ref" in listed:
        listed = document()["components"]["responses"][listed["$ref"].rpartition("/")[2]]
    content = listed.get("content", {})
    media_type = response.headers.get("content-type", "").partition(";")[0]
    if not content:
        assert not response.read()
        return
    assert media_type in content, f"{request.method} {path} answers {media_type}"
    if not media_type.endswith("json"):
        return
    response.read()
    schema = {**content[media_type]["schema"], "components": _strict_components()}
    Draft202012Validator(schema, format_checker=FormatChecker()).validate(response.json())
    if status >= "400":
        assert response.json()["code"] in content[media_type]["examples"]
