/*
 * An ordered resize, checked exhaustively: one key whose messages move between two partitions.
 *
 * With one partition its messages are in partition 0, with two in partition 1. A decision of the
 * service is one atomic step on the database; the log has transactions of its own. Replicas die
 * between the two, and between a commit and what follows from it. A partition may be taken from its
 * consumer at any moment, and the consumer goes on for a while with what it knows.
 *
 * The model → the code:
 *
 * - a publisher's append and its refusal → the count that an append names,
 *   `counterpoise/logs/port.py` promises 4 and 8
 * - the next resize only when `settled`; `due` → `broker/core/cuts.py:refuse_unsettled` and
 *   `broker/core/cuts.py:await_cuts`
 * - the log's transaction; taking its cuts, positions first → `broker/calls/cuts.py:settle` and
 *   `broker/calls/cuts.py:cuts_of`, `broker/core/cuts.py:take_cuts`
 * - `looks`: what follows from a commit → `broker/calls/cuts.py:reached`,
 *   `broker/core/cuts.py:reach_cuts`
 * - `waits` → `broker/core/barriers.py:waits`. The model has one class: gcd(1, 2) is 1. The
 *   oracle (`tests/broker/core/test_barriers.py`) and the simulation have the rule for other
 *   counts
 * - `stop` → `counterpoise/flow/barriers.py:stop_of`
 * - a commit that only says, again, that the cut is reached → `counterpoise/flow/ledger.py`,
 *   rule 6
 *
 * Compiled with -DBUG_... it has a known bug, which the checker must find (tests/model).
 */

#ifndef MESSAGES
#define MESSAGES 3      /* of the key, numbered in the order of publication */
#endif
#ifndef RESIZES
#define RESIZES 1       /* from one partition to two, and back */
#endif
#ifndef TAKEOVERS
#define TAKEOVERS 0     /* partitions that get another consumer, gracefully or not */
#endif
#ifndef CRASHES
#define CRASHES 0       /* replicas that die before they do what a call has asked for */
#endif

/* ---------------------------------------------------------------- the log */

typedef Partition { byte message[MESSAGES]; byte end; byte cut };
Partition log[2];
byte count = 1;                 /* an append is routed with it */
byte resize = 0;                /* how many resizes the log has had */
byte resized_from = 1;

#define of_key(n) (n - 1)       /* the partition of the key where there are n */

/* ---------------------------------------------------------------- the database */

byte q_count = 1;
byte seen = 0;                  /* the log's resize of which the cuts are known */
bool due = false;               /* the cuts are awaited */
bool unreached[2];
byte q_cut[2];
byte q_from = 1;
byte committed[2];
byte epoch[2];
byte owner[2];                  /* consumer 0 or 1 of the partition */
bool looks[2];                  /* a replica is to see whether a commit has reached the cut */

#define settled (!due && !unreached[0] && !unreached[1])
/* The old partitions are those below q_from; gcd(1, 2) is 1, so each of them may share the key. */
#define waits(p) (p < q_count && ((p != 0 && unreached[0]) || (p != 1 && unreached[1])))

/* ---------------------------------------------------------------- what is observed */

byte processed = 0;             /* all messages of the key below it */
byte resizes = 0, takeovers = 0, crashes = 0;

#define done (processed == MESSAGES && settled && count == q_count && \
    committed[0] == log[0].end && committed[1] == log[1].end)

active proctype Publisher() {
    byte known = 1, n = 0;
end:
    do
#ifdef BUG_OLD_COUNT_ACCEPTED
    :: atomic { n < MESSAGES ->
#else
    :: atomic { n < MESSAGES && known == count ->
#endif
        log[of_key(known)].message[log[of_key(known)].end] = n;
        log[of_key(known)].end++; n++ }
    /* Refused inside the append: it asks for the count and routes again. */
    :: atomic { n < MESSAGES && known != count -> known = count }
    od
}

active proctype Service() {
    byte told[2], before[2];
    bool reading = false, locking = false;
end:
    do
    /* The next resize waits until the last one is settled. */
#ifdef BUG_NEXT_RESIZE_AT_ONCE
    :: atomic { resizes < RESIZES && count == q_count ->
#else
    :: atomic { resizes < RESIZES && settled ->
#endif
        resizes++; q_count = 3 - q_count; due = true }
    /* The log's transaction: the count and the cuts at one instant. Any replica may do it. */
#ifdef BUG_CUT_BEFORE_THE_LOCK
    :: atomic { due && count != q_count && !locking ->
        before[0] = log[0].end; before[1] = log[1].end; locking = true }
    :: atomic { locking ->
        locking = false; log[0].cut = before[0]; log[1].cut = before[1];
#else
    :: atomic { due && count != q_count ->
        log[0].cut = log[0].end; log[1].cut = log[1].end;
#endif
        resized_from = count; count = q_count; resize++ }
    /* The queue takes the cuts: positions first, so that what is committed later is found. */
    :: atomic { due && count == q_count && !reading ->
        reading = true; told[0] = committed[0]; told[1] = committed[1] }
    :: atomic { reading ->
        reading = false;
        if
        :: due && resize > seen ->
            seen = resize; due = false; q_from = resized_from;
            q_cut[0] = log[0].cut; q_cut[1] = log[1].cut;
            unreached[0] = told[0] < log[0].cut;
            unreached[1] = q_from == 2 && told[1] < log[1].cut
        :: else -> skip
        fi }
    /* What follows from a commit; a replica may die before that. */
    :: atomic { looks[0] -> looks[0] = false;
        unreached[0] = unreached[0] && committed[0] < q_cut[0] }
    :: atomic { looks[1] -> looks[1] = false;
        unreached[1] = unreached[1] && committed[1] < q_cut[1] }
    :: atomic { looks[0] && crashes < CRASHES -> crashes++; looks[0] = false }
    :: atomic { looks[1] && crashes < CRASHES -> crashes++; looks[1] = false }
    /* A partition goes to another consumer at its committed position, whether or not its owner has
     * let go. */
    :: atomic { takeovers < TAKEOVERS -> takeovers++; epoch[0]++; owner[0] = 1 - owner[0] }
    :: atomic { takeovers < TAKEOVERS -> takeovers++; epoch[1]++; owner[1] = 1 - owner[1] }
    :: timeout -> skip
    od
}

/* The view's cut while it says that the partition waits; the log's while the log is ahead of it. */
#ifndef BUG_VIEW_ALONE
#define stop(p) (v_waits -> v_cut : (resize > v_seen -> log[p].cut : log[p].end))
#else
#define stop(p) (v_waits -> v_cut : log[p].end)
#endif

/* Consumer `me` of partition `part`. Its view may be old; what it learns of the log is of one instant. */
proctype Consumer(byte me; byte part) {
    byte mine = 255;            /* the epoch under which it holds the partition; 255: it does not */
    byte next = 0, v_seen = 0, v_cut = 0;
    bool v_waits = false, v_unreached = false, working = false, said = false;
end:
    do
    /* A view: of a new grant, or of the present one. */
    :: atomic { owner[part] == me && (mine != epoch[part] || v_seen != seen || v_waits != waits(part) ||
            v_unreached != unreached[part]) ->
        if
        :: mine != epoch[part] -> next = committed[part]; working = false
        :: else -> skip
        fi;
        mine = epoch[part]; v_seen = seen; v_cut = q_cut[part];
        v_waits = waits(part); v_unreached = unreached[part]; said = false }
    :: atomic { owner[part] != me && mine != 255 -> mine = 255; working = false; said = false;
        next = 0; v_seen = 0; v_cut = 0; v_waits = false; v_unreached = false }
    /* It takes a message, within what it may read now. */
    :: atomic { mine != 255 && !working && next < stop(part) ->
#ifdef BUG_REACHED_BY_READING
        if
        :: owner[part] == me && next + 1 >= q_cut[part] -> unreached[part] = false
        :: else -> skip
        fi;
#endif
        working = true }
    :: atomic { working ->
        working = false;
        /* No message of the key before all earlier ones; it may come again. */
        assert(log[part].message[next] <= processed);
        if
        :: log[part].message[next] == processed -> processed++
        :: else -> skip
        fi;
        next++ }
    /* A commit, fenced by the epoch; also one that only says that the cut is reached. */
    :: atomic { mine != 255 && !working && owner[part] == me && mine == epoch[part] &&
#ifdef BUG_CUT_NOT_SAID_AGAIN
            next > committed[part] ->
#else
            (next > committed[part] || (v_unreached && next >= v_cut && !said)) ->
#endif
        committed[part] = next; looks[part] = true; said = true }
    /* The answer to what it said came late or never, and the view is as it was. */
    :: atomic { said && !looks[part] && mine == epoch[part] && owner[part] == me && unreached[part] &&
            v_unreached -> said = false }
    od
}

init { atomic { run Consumer(0, 0); run Consumer(1, 0); run Consumer(0, 1); run Consumer(1, 1) } }

/* ---------------------------------------------------------------- promises over time */

/* In the end all is processed and committed, and nothing waits. */
ltl settles { <> [] done }
