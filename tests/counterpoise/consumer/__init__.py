"""Tests of the plain consumer, from its parts to several of them on a real queue."""
