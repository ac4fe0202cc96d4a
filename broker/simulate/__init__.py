"""What a scaling plan would do to a queue, before production: the real core in virtual time.

Every decision is the core's own (`broker.core`): the same code that serves, with the settings that
are to be tried. So the number of handoffs, and which of them the holddown avoids, is what the
service would do.

Consumers are a model (`play.ConsumerModel`):

- A consumer that is told to finish partitions releases them together after a while, as a Spark
  application does between two micro-batches. How long is drawn for each consumer and each time,
  evenly from half to one and a half times `finish_seconds`. What takes longer than the queue's
  `max_handoff_time` is forced.
- One that crashes says nothing; its lease ends `lease_seconds` later.
- One that is drained stays until it owns nothing.

Not modelled: the time that the service and its database take, and messages. So the times are those
of the plan and the consumers, and lower bounds.
"""
