"""Traces of calls, commits, handoffs and reads, collected in memory by OpenTelemetry's SDK."""
