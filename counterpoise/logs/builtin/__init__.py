"""The built-in log: messages in Postgres."""

# The errors of the schema's functions (migrations/log), by their SQLSTATE.
STALE_PARTITION_COUNT = "CP001"
LOG_NOT_FOUND = "CP002"
OUT_OF_RANGE = "CP003"
STALE_RANGES = "CP004"
