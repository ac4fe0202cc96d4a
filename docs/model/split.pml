/*
 * A merge and a split, checked exhaustively: two keys whose messages move through five partitions.
 *
 * Partitions 0 and 1 have one key each. They are merged into 2, which is split into 3 and 4.
 * A decision of the service is one atomic step on the database; the log has transactions of its own,
 * and replicas die between the two. A partition may be taken from its consumer at any moment, and the
 * consumer goes on with what it knows.
 *
 * The model → the code:
 *
 * - the log's transaction → `broker/logs/hash_ranges.py:split` and
 *   `broker/logs/hash_ranges.py:merge`
 * - `tells` → `broker/calls/lineage.py:_sealed`
 * - the sealed end: position, children and finish in one step → `counterpoise/flow/ledger.py`
 *   rule 5, `broker/core/reports.py:_report`, `broker/replica/transaction.py:_report`
 * - `add` → `broker/core/lineage.py:record_children`
 * - `follow` → `broker/core/lineage.py:end_waits` and `broker/core/lineage.py:finish`
 *
 * Compiled with -DBUG_... it has a known bug, which the checker must find (tests/model).
 */

#ifndef MESSAGES
#define MESSAGES 4      /* message n has the key n mod 2 */
#endif
#ifndef SEALINGS
#define SEALINGS 2      /* the merge, then the split */
#endif
#ifndef TAKEOVERS
#define TAKEOVERS 0     /* partitions that get another consumer, gracefully or not */
#endif
#ifndef REPEATS
#define REPEATS 0       /* reports that arrive a second time, however late */
#endif

#define PARTITIONS 5
mtype = { unknown, waiting, live, finished, removed };

/* ---------------------------------------------------------------- the log */

typedef Partition { byte message[MESSAGES]; byte end; bool sealed };
Partition log[PARTITIONS];
byte generation = 0;            /* publishers route with it: 0, 1 and 2 are before, between, after */

#define of_key(k, g) (g == 0 -> k : (g == 1 -> 2 : 3 + k))

/* ---------------------------------------------------------------- the database */

mtype state[PARTITIONS];
byte committed[PARTITIONS];
byte epoch[PARTITIONS];
byte owner[PARTITIONS];         /* consumer 0 or 1 */

#define is_over(p) (state[p] == finished || state[p] == removed)

/* ---------------------------------------------------------------- what is observed */

byte processed[2];              /* of each key, the messages below it */
byte takeovers = 0, repeats = 0;

#define done (processed[0] == (MESSAGES + 1) / 2 && processed[1] == MESSAGES / 2 && \
    (generation != 2 || (is_over(0) && is_over(1) && is_over(2) && state[3] == live && state[4] == live)))

/* What is known already is not added again, whoever reports it. */
inline add(p) {
    if
    :: state[p] == unknown -> state[p] = waiting; committed[p] = 0
    :: else -> skip
    fi
}

inline children(p) {
    if
    :: p < 2 -> add(2)
    :: p == 2 -> add(3); add(4)
    :: else -> skip
    fi
}

/* A child goes on when the last of its parents has ended. What nothing unfinished follows goes. */
inline follow() {
    if
#ifdef BUG_ONE_PARENT_EARLY
    :: state[2] == waiting && (is_over(0) || is_over(1)) -> state[2] = live
#else
    :: state[2] == waiting && is_over(0) && is_over(1) -> state[2] = live
#endif
    :: else -> skip
    fi;
    if
    :: state[3] == waiting && is_over(2) -> state[3] = live
    :: else -> skip
    fi;
    if
    :: state[4] == waiting && is_over(2) -> state[4] = live
    :: else -> skip
    fi;
    if
#ifdef BUG_KEY_FORGOTTEN
    :: is_over(0) && is_over(1) && is_over(2) -> state[0] = removed; state[1] = removed; state[2] = unknown
#else
    :: is_over(0) && is_over(1) && is_over(2) -> state[0] = removed; state[1] = removed
#endif
    :: else -> skip
    fi
}

active proctype Publisher() {
    byte known = 0, n = 0;
end:
    do
#ifdef BUG_OLD_RANGE_ACCEPTED
    :: atomic { n < MESSAGES ->
#else
    :: atomic { n < MESSAGES && !log[of_key(n % 2, known)].sealed ->
#endif
        log[of_key(n % 2, known)].message[log[of_key(n % 2, known)].end] = n / 2 + 16 * (n % 2);
        log[of_key(n % 2, known)].end++; n++ }
    /* Refused inside the append: it asks for the ranges and routes again. */
    :: atomic { n < MESSAGES && known != generation -> known = generation }
    od
}

active proctype Service() {
    bool tells = false;         /* a replica that has sealed in the log and is to tell the queue */
end:
    do
    /* The log's transaction: the parents are sealed at their ends, and the children begin. */
    :: atomic { generation == 0 && generation < SEALINGS ->
        log[0].sealed = true; log[1].sealed = true; generation = 1; tells = true }
    :: atomic { generation == 1 && generation < SEALINGS && state[2] != unknown ->
        log[2].sealed = true; generation = 2; tells = true }
    /* It tells the queue, or dies: then the owners of the parents report. */
    :: atomic { tells ->
        tells = false;
        if
        :: skip
        :: generation == 1 -> children(0); follow()
        :: generation == 2 -> children(2); follow()
        fi }
    /* A report arrives again, when all it says may be long over. */
    :: atomic { repeats < REPEATS && is_over(0) -> repeats++; children(0); follow() }
    :: atomic { repeats < REPEATS && state[3] != unknown -> repeats++; children(2); follow() }
    :: atomic { takeovers < TAKEOVERS -> takeovers++; epoch[0]++; owner[0] = 1 - owner[0] }
    :: atomic { takeovers < TAKEOVERS -> takeovers++; epoch[2]++; owner[2] = 1 - owner[2] }
    :: timeout -> skip
    od
}

/* Consumer `me` of partition `part`. */
proctype Consumer(byte me; byte part) {
    byte mine = 255;            /* the epoch under which it holds the partition; 255: it does not */
    byte next = 0, key = 0;
    bool working = false;
end:
    do
    :: atomic { owner[part] == me && state[part] == live && mine != epoch[part] ->
        mine = epoch[part]; next = committed[part]; working = false }
    :: atomic { mine != 255 && (owner[part] != me || state[part] != live) ->
        mine = 255; working = false; next = 0 }
    :: atomic { mine != 255 && !working && next < log[part].end -> working = true }
    :: atomic { working ->
        working = false;
        /* Partition 2 has the messages of both keys, in the order in which they were published. */
        key = (part == 2 -> log[2].message[next] / 16 : (part < 2 -> part : part - 3));
        /* No message of a key before all earlier ones; one comes again only by force or a crash. */
        assert(log[part].message[next] % 16 <= processed[key]);
        assert(log[part].message[next] % 16 == processed[key] || takeovers > 0);
        if
        :: log[part].message[next] % 16 == processed[key] -> processed[key]++
        :: else -> skip
        fi;
        key = 0; next++ }
    :: atomic { mine != 255 && !working && owner[part] == me && mine == epoch[part] &&
            state[part] == live && next > committed[part] -> committed[part] = next }
    /* The sealed end: its position, its children and that it is finished, all or nothing. */
    :: atomic { mine != 255 && !working && owner[part] == me && mine == epoch[part] &&
            state[part] == live && log[part].sealed && next == log[part].end ->
        committed[part] = next;
#ifndef BUG_FINISHED_WITHOUT_CHILDREN
        children(part);
#endif
        state[part] = finished; follow() }
    od
}

init {
    byte p;
    atomic {
        state[0] = live; state[1] = live; state[2] = unknown; state[3] = unknown; state[4] = unknown;
        for (p : 0 .. PARTITIONS - 1) { run Consumer(0, p); run Consumer(1, p) }
        p = 0
    }
}

/* ---------------------------------------------------------------- promises over time */

/* In the end all is processed, the parents have ended, and the children are at work. */
ltl lineage { <> [] done }
