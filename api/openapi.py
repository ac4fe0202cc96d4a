"""All routes, and the OpenAPI document: made from them, edited for readers.

`python -m api.openapi > openapi.yaml` writes the committed document anew; a test checks that it
equals the document that the application serves.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from api import problems
from api.answers import MEDIA_TYPE
from api.documents import schemas_of
from api.routes import access, flows, lineage, messages, monitoring, pauses, pins, queues, service
from api.routing import Route
from api.security import Also
from counterpoise import wire
from counterpoise.wire import MOST_INT64

VERSION = "1"
DESCRIPTION = """\
Counterpoise lets many consumers share one partitioned queue so that every partition has exactly one
owner, per-key order holds, and consumers join, leave, crash and scale without stopping the others.
The service decides which flow owns which partition; consumers read the messages from a log.

**A consumer's life**: bind a flow, follow its view (`updates`), commit positions, release what is
`revoking`, answer `warming` with ready, and at the end drain and unbind. A view is always complete:
a lost or repeated one does no harm. The contract, *Life of a client*, has each step and what
follows each refusal.

**Errors** are RFC 9457 problem documents. `code` is stable and meant for programs; `detail` says
what to do.

**Permissions**: each call names its callers (`x-callers`): roles of keys, `flow`, or `anyone`. A
key, or the token that bind answered, is sent as `Authorization: Bearer`. A key is for the queues
that match its patterns. While a service has no keys, each caller without a token is an
administrator on a loopback address (unless its request came through a proxy) and with `--insecure`.

Times are RFC 3339, in UTC. Clients must ignore unknown fields of answers; the service refuses
unknown fields and parameters of requests.
"""
TAGS = [
    {"name": "Queues", "description": "A queue is a named set of partitions, numbered from 0."},
    {"name": "Rebalancing", "description": "Which partitions move, why, and the progress."},
    {"name": "Flows", "description": "A flow is one consumer's binding to a queue."},
    {"name": "Access", "description": "Who calls, and who changed what."},
    {"name": "Service", "description": "The service itself."},
]


def all_routes() -> list[BaseRoute]:
    """Every route, the most called first, because they are tried in order."""
    parts = (flows, queues, lineage, pauses, pins, messages, monitoring, service, access)
    return [route for part in parts for route in part.ROUTER.routes]


def document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The OpenAPI document of these routes, as a JSON-ready mapping."""
    described = [route for route in routes if isinstance(route, Route) and route.include_in_schema]
    for route in described:
        route.complete()
    # In the order of the tags; the routes themselves are in the order of use.
    order = [tag["name"] for tag in TAGS]
    described.sort(key=lambda route: order.index(str(route.tags[0])))
    api = get_openapi(
        title="Counterpoise",
        version=VERSION,
        summary="Share one partitioned queue among many consumers.",
        description=DESCRIPTION,
        tags=TAGS,
        routes=described,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        servers=[{"url": "http://127.0.0.1:8640", "description": "The default address."}],
    )
    tags = api.pop("tags")
    components: dict[str, Any] = {}
    api |= {"components": components, "tags": tags}
    answering = [route for route in described if route.document is not None]
    taking = [route for route in described if route.taken is not None]
    (_, preview, *references), schemas = schemas_of(
        [wire.Problem, wire.Preview]
        + [route.document for route in answering]
        + [route.taken for route in taking]
    )
    answered, taken = references[: len(answering)], references[len(answering) :]
    components["schemas"] = dict(sorted(schemas.items()))
    components["responses"] = {}
    components["securitySchemes"] = {
        "flowToken": {
            "type": "http",
            "scheme": "bearer",
            "description": "The `flow_token` that bind answered.",
        },
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "`cp_<id>_<secret>`, as `counterpoise keys create` shows it.",
        },
        "session": {
            "type": "apiKey",
            "in": "cookie",
            "name": "counterpoise_session",
            "description": "Set by `POST /v1/session`; for `GET`, unlocked for some more calls. "
            "With TLS the cookie is called `__Host-counterpoise`.",
        },
    }
    for route in described:
        for method in route.methods or ():
            operation = api["paths"][route.path_format][method.lower()]
            _describe(operation, route, components["responses"])
    for route, reference in zip(answering, answered, strict=True):
        for method in route.methods or ():
            responses = api["paths"][route.path_format][method.lower()]["responses"]
            response = responses[str(route.status_code or 200)]
            response["content"][MEDIA_TYPE]["schema"] = reference
    for route, reference in zip(taking, taken, strict=True):
        for method in route.methods or ():
            operation = api["paths"][route.path_format][method.lower()]
            responses = operation.pop("responses")
            operation["requestBody"] = _body(reference, route.may_be_without)
            operation["responses"] = responses
    for route in described:
        for method in route.methods or () if route.previews else ():
            responses = api["paths"][route.path_format][method.lower()]["responses"]
            api["paths"][route.path_format][method.lower()]["responses"] = dict(
                sorted(_with_preview(responses, preview).items())
            )
    _share_parameters(api)
    _restore_whole_numbers(api)
    return api


def _body(reference: dict[str, Any], may_be_without: bool) -> dict[str, Any]:
    """What a call takes; `may_be_without`: or nothing, or null."""
    if may_be_without:
        return {"content": {MEDIA_TYPE: {"schema": {"anyOf": [reference, {"type": "null"}]}}}}
    return {"required": True, "content": {MEDIA_TYPE: {"schema": reference}}}


def _describe(operation: dict[str, Any], route: Route, shared: dict[str, Any]) -> None:
    """Add what FastAPI cannot know: roles, and the shared problem documents for errors."""
    callers = route.requirement.callers
    operation["operationId"] = route.name
    operation["x-callers"] = callers
    rights = route.requirement.rights
    operation["security"] = [
        *([{"key": []}, {"session": []}] if rights else ()),
        *([{"flowToken": []}] if Also.FLOW in callers else ()),
        # On a service without keys, callers need no credential.
        *([{}] if rights or Also.ANYONE in callers else ()),
    ]
    for status, response in operation["responses"].items():
        if codes := response.pop("x-codes", None):
            name = "_or_".join(codes)
            shared[name] = problems.described(codes)
            operation["responses"][status] = {"$ref": f"#/components/responses/{name}"}
    # Every call can be over its rate.
    shared["too_many_requests"] = problems.described(["too_many_requests"])
    operation["responses"]["429"] = {"$ref": "#/components/responses/too_many_requests"}
    operation["responses"] = dict(sorted(operation["responses"].items()))


def _with_preview(responses: dict[str, Any], preview: dict[str, Any]) -> dict[str, Any]:
    """The responses with that of a dry run."""
    said = "With `dry_run=true`: what the call would do."
    if "200" not in responses:
        content = {MEDIA_TYPE: {"schema": preview}}
        return {"200": {"description": said, "content": content}, **responses}
    done = responses["200"]
    done["description"] = f"{done['description']} {said}"
    one = done["content"][MEDIA_TYPE]
    one["schema"] = {"anyOf": [one["schema"], preview]}
    return responses


def _restore_whole_numbers(part: Any) -> None:
    """Restore the ranges of whole numbers, which FastAPI makes floating-point numbers."""
    if isinstance(part, dict):
        if part.get("type") == "integer":
            for bound in part.keys() & {"minimum", "maximum"}:
                # The largest one of 64 bits was rounded up.
                part[bound] = min(int(part[bound]), MOST_INT64)
        for inner in part.values():
            _restore_whole_numbers(inner)
    elif isinstance(part, list):
        for inner in part:
            _restore_whole_numbers(inner)


def _share_parameters(api: dict[str, Any]) -> None:
    """Write a parameter that several calls share only once: of each name the most usual one."""
    operations = [operation for path in api["paths"].values() for operation in path.values()]
    times: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for parameter in (each for operation in operations for each in operation.get("parameters", ())):
        parameter["schema"].pop("title", None)
        parameter["schema"].pop("description", None)
        times[parameter["name"]][_fingerprint(parameter)] += 1
    shared = api["components"]["parameters"] = {}
    for operation in operations:
        for index, parameter in enumerate(operation.get("parameters", ())):
            name = parameter["name"]
            ((usual, count),) = times[name].most_common(1)
            if count > 1 and usual == _fingerprint(parameter):
                shared[name] = parameter
                operation["parameters"][index] = {"$ref": f"#/components/parameters/{name}"}


def _fingerprint(parameter: dict[str, Any]) -> str:
    return json.dumps(parameter, sort_keys=True)


def to_yaml(api: dict[str, Any]) -> str:
    import yaml  # of the development environment; the service does not need it

    class Dumper(yaml.SafeDumper):
        """Long texts as blocks, no anchors."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump(api, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)


if __name__ == "__main__":
    sys.stdout.write(to_yaml(document(all_routes())))
