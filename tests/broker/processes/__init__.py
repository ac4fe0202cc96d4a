"""Whole services: processes on a real database, and the crowd that tries them."""
