"""The HTTP service: parse, call the broker, render."""
