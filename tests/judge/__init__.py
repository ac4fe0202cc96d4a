"""One judge of what happened, for the runs of real processes, the crowds, the demo and the
simulation.

A run is judged by facts alone: what consumers did and were told, what publishers were told, what
the log holds, and what the run itself broke. The judge imports nothing of the product. Numbers are
those of the contract's *What must never happen*.

1. *One owner.* Of a partition and an epoch all is granted to, told to and handled by one consumer.
   Once a later epoch has begun, an earlier one's owner does nothing any more, unless a fault kept
   from him that he was superseded. From `Granted`, `Handled`, `Told`.
2. *Stale epochs.* A commit is not acknowledged that was sent after a later epoch had been told to
   anybody. From `Asked`, `Told`, `Done`.
3. *Nothing lost.* Every number that a publisher was acknowledged is in the log, once and in order.
   Every message of the log is handled, and nothing that is not in it. No position is jumped over.
   From `Acknowledged`, `Handled` and the log.
4. *Order and repetition.* Within an epoch positions rise one by one; an epoch begins no later than
   where all before it was handled. A message comes again, or one below it, only if a handover in
   between was not graceful and a fault explains that. From `Granted`, `Handled`, `Fault`, `Mended`.
7. *Nothing forgotten.* An answer knows every epoch that was told, and every position that was
   acknowledged, before its call was sent. From `Asked`, `Told`, `Done`.

5, 6, 8 and 9 are about what the service does with partitions nobody hears of, about the number of
handoffs, and about deadlines. They need the rows, which only the simulation sees:
`tests/simulation/checker.py` holds them. It holds the promises above too, by the same rules.

The rules are in `rules.py`, each small and told one fact at a time: `Owners`, `Lane` (what was
handled of one partition), `Answers`. `judge.py` tells them a whole journal, and collects what is
broken; the simulation's checker tells them as it goes, and ends at the first. What may come again
is asked of `causes.py` by the one, and of the rows by the other. `balance.py` counts what a
balanced queue and the smallest number of handoffs are, for the simulation and the core's oracle.

Who is judged how:

* `make faults`: consumers, publishers and the run write a `journal.py`; the log is read at the end.
* Crowds (`tests/broker/crowd.py`): the same journal in memory, with what was asked and told. They
  process nothing, so 3 and 4 are not looked at.
* The demo judges itself (`counterpoise/demo/proof/verdict.py`): users run that, so it imports
  nothing of the tests. `demo.py` turns its evidence into a journal, and tests hold that both judges
  agree.
"""
