"""The JSON that calls take and give."""
