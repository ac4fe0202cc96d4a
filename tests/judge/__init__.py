"""One judge of a run, used for runs of real processes, the crowds, the demo and the simulation.

The judge uses facts alone: what consumers did and were told, what publishers were told, what the
log holds, and which faults the run itself caused. The judge imports nothing of the product. The
numbers are those of the contract's *What must never happen*.

1. *One owner.* For each partition and epoch, one consumer is granted, told and handles everything.
   Once a later epoch has begun, the owner of an earlier one does nothing more, unless a fault kept
   the news from it. From `Granted`, `Handled`, `Told`.
2. *Stale epochs.* A commit is not acknowledged if it was sent after any consumer had been told of a
   later epoch. From `Asked`, `Told`, `Done`.
3. *Nothing lost.* Every number that a publisher was acknowledged is in the log, once and in order.
   Every message of the log is handled, and nothing else. No position is skipped.
   From `Acknowledged`, `Handled` and the log.
4. *Order and repetition.* Within an epoch positions rise one by one. An epoch begins at the end of
   the handled messages or before it. A message, or one below it, is repeated only if a handover in
   between was not graceful and a fault explains that. The first time, the messages of a key are
   handled in the order in which they were published; between partitions, too, if the queue keeps
   that. From `Granted`, `Handled`, `Fault`, `Mended` and the log.
7. *Nothing forgotten.* An answer reflects every epoch that was told, and every position that was
   acknowledged, before its call was sent. From `Asked`, `Told`, `Done`.

5, 6, 8 and 9 are about partitions that no consumer hears of, the number of handoffs, and deadlines.
They need the rows, which only the simulation sees: `tests/simulation/checker.py` checks them. It
checks the promises above too, by the same rules.

The rules are in `rules.py`: `Owners`, `Lane` (what was handled of one partition), `Keys` (the order
of a key, wherever its messages are), `Answers`. Each is small and takes one fact at a time.
`judge.py` passes a whole journal to them and collects all violations. The simulation's checker
passes facts as they happen and stops at the first violation.
To learn which messages may be repeated, `judge.py` asks `causes.py`, and the checker asks the rows.
`balance.py` computes balanced queues and the smallest number of handoffs, for the simulation and
the core's oracle.

What is judged, and how:

* `make faults`: consumers, publishers and the run write a `journal.py`; the log is read at the end.
* Crowds (`tests/broker/crowd.py`): the same journal in memory, with calls and answers. Crowds
  process no messages, so 3 and 4 are not checked.
* The demo judges itself (`broker/demo/verdict.py`). Users run that code, so it imports
  nothing of the tests. `demo.py` turns its evidence into a journal, and tests check that both
  judges agree.
"""
