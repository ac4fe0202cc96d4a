"""Logs: where messages live (built-in Postgres log, Redis Streams, Kafka)."""
