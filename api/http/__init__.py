"""What every call needs of HTTP: routes and roles, limits, streams, metrics, errors as problems."""
