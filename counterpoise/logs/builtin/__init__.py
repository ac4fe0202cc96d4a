"""The built-in log: messages in Postgres."""
