"""Writes the OpenAPI document: `python -m api.openapi > openapi.yaml`."""

import sys

from api.app import all_routes
from api.http.openapi import document, to_yaml

if __name__ == "__main__":
    sys.stdout.write(to_yaml(document(all_routes())))
