"""The source: one query's share of a queue, in the process that Spark starts for it, and its tasks.

Start reading at `planning`, then `progress`: what is read and what is done, without Spark. `query`
puts the threads and rules of the process together, `opening` begins and ends all of it. `reader`
is what Spark calls, in two ways (`with_limits`, `without_limits`), `log_partition` is what it
plans, and `tasks` reads their slices of the log on executors.
"""
