"""Writes deploy/kubernetes/service.yaml: the Helm chart with its default values (`make manifests`).

So the chart and the manifests have one source, the templates of the chart. Helm itself renders
them: the package helm-python-sdk is its library.
"""

import sys
from pathlib import Path

import helm_python

DEPLOY = Path(__file__).resolve().parent
CHART = DEPLOY / "helm/counterpoise"
HEAD = """\
# Rendered from deploy/helm by `make manifests`: change the templates there.

"""


def manifests() -> str:
    """The objects of the service, named `counterpoise` in the namespace `counterpoise`."""
    with helm_python.Chart.load(CHART) as chart:
        rendered = chart.render(name="counterpoise", namespace="counterpoise")
    return HEAD + rendered["counterpoise/templates/service.yaml"]


if __name__ == "__main__":
    sys.stdout.write(manifests())
