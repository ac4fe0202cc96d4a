"""Collections of the core that know nothing of queues."""
