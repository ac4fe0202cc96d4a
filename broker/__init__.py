"""The broker: decides who owns which partition, and keeps it in Postgres."""
