"""The dashboard's modules as they are served; `tests/browser` runs them."""

import json
import re

import httpx

from counterpoise.headline import OF_PARTITIONS, ORDER, OTHER, QUIET
from tests.service import Service


def test_each_module_is_served_with_all_that_it_imports(
    http: httpx.Client, scripted: Service
) -> None:
    waiting, found = ["main.js"], dict[str, str]()
    while waiting:
        name = waiting.pop()
        answer = httpx.get(f"{scripted.url}/dashboard/{name}")
        assert answer.status_code == 200, name
        assert answer.headers["content-type"].startswith("text/javascript")
        found[name] = answer.text
        imported = re.findall(r' from "\./(\w+\.js)";$', answer.text, re.M)
        waiting += [one for one in imported if one not in {*found, *waiting}]
    # The words of the headline are those of the commands.
    exported = re.findall(r"^export const (\w+) = (.+);$", found["headline.js"], re.M)
    assert {name: json.loads(value) for name, value in exported} == {
        "ORDER": [*ORDER],
        "QUIET": QUIET,
        "OTHER": OTHER,
        "OF_PARTITIONS": OF_PARTITIONS,
        "GROWS_FROM": 1000,
        "GROWS_SECONDS": 900,
        "GROWS_LEAST_SECONDS": 540,
        "GROWS_AGE_SECONDS": 300,
    }
