"""What an ordered resize adds to the state of a queue: barriers, and the records that change them.

Theory
------
A key has the hash h. Before a resize from N to M partitions its messages go to partition h mod N,
after it to h mod M. The log takes a *cut* of each partition in the transaction of the resize: the
older messages of a key lie below the cut of partition j = h mod N, the newer ones at the cut of
partition i = h mod M or past it (`counterpoise.logs.port`, promise 8).

**The rule.** Partition i may be processed past its cut only when each old partition j that can have
a key in common with it has been processed up to its own cut. There is an h with h = j (mod N) and
h = i (mod M) exactly if i = j (mod gcd(N, M)). So partition i *waits for* the partitions j < N of
its class modulo gcd(N, M) that have not *reached* their cuts. Waiting for more would be in vain,
waiting for less would let a newer message pass an older one. A barrier of i is lifted with the last
of them; i is processed in order, so its own part of the class needs no barrier.

**Why no newer message passes an older one**, whatever happens between the steps:

1. *Nobody reads past a cut unknowingly.* A consumer learns the end of a partition from the log,
   together with the number of the log's last resize and its cuts. Its view says of which resize the
   queue knows the cuts. If the log's is newer, the consumer stops at the log's cuts, else at `cut`
   while the view says `waits_for`. So it does not matter whether the service has died between the
   log's transaction and its own, or whether the view is late.
2. *A barrier is lifted by positions alone.* A partition has reached its cut when its committed
   position, which only the owner of the present epoch can move, is at the cut or past it. A
   committed position means processed. Work under an old epoch moves no position.
3. *Cuts belong to partitions and not to epochs.* A forced handoff, a replaced or orphaned owner, a
   warm-up: the next owner gets the partition at its committed position with the same barrier.
4. *One resize at a time.* The log keeps the cuts of its last resize. The next one is refused until
   every queue that reads the log with ordered resizes has reached all cuts (`resize_unsettled`),
   so one set of cuts is enough. Cuts of a resize that comes nevertheless (an administrator who
   sets positions at that very moment) are taken when those before are reached; until then rule 1
   holds all consumers at the newer cuts.
5. *Publishers cannot be late.* The log refuses an append that was routed with another count than
   its own, within the append.
6. *A retiring partition ends at its cut*, so its owner reaches it by draining it. A partition that
   is gone has reached its cut: it was finished.

**Positions that an administrator sets** mean: everything before them counts as processed. So a
partition that is set to its cut or past it has reached it. A partition that is set to before its
cut has not, even if the resize was settled before: the barriers come back, and the messages that
are read again come in the order of the last resize, too. (Of earlier resizes the log has no cuts.)

Several queues may read one log. The cuts are the log's; who has reached them is each queue's own.
"""
