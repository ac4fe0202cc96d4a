"""Whole services: processes on a real database, and the crowd that uses them."""
