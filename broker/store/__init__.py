"""Storage of queues, flows, partitions and records in Postgres, and the port of every store."""
