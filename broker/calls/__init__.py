"""The calls that the API makes."""
