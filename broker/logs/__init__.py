"""The logs of queues, from the service's side."""
