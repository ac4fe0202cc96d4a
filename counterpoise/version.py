"""The version of both packages, for what must not load the names of the first (a circle)."""

__version__ = "0.1.0"
