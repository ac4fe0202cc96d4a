"""The JSON that calls take."""
