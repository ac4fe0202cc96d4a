"""Where queues, flows, partitions and records are kept: Postgres, and an in-memory twin."""
