/*
 * One partition, its owner, its successor and the broker: the handoff, checked exhaustively.
 *
 * The database is the truth, and a decision is one atomic step on it, because a replica commits only
 * if the revision it decided on is still the current one. Alarms in a replica's memory may be late or
 * lost. Messages between a consumer and the service may be lost, late, or arrive twice. Consumers
 * stop at any point, die, and come back. `make model` runs the model; docs/model.md has its promises.
 *
 * The model → the code:
 *
 * - the variables of *the database*; a decision as one atomic step → `broker/core` on a
 *   replica's copy of a queue, committed by `UPDATE queues … WHERE revision = :seen`
 *   (`broker/store`). A decision on an outdated copy is made again, so all replicas are one
 *   process here
 * - `state` = `unassigned`, `owned`, `warming`, `revoking` → the partition in
 *   `broker/core/model.py`; `retiring` is `owned` here, as it does not change a handoff
 * - `grant` → `broker/core/draft.py:drawn_up`: epoch + 1
 * - `hand_over` → the end of a handoff: `broker/core/reports.py:_release` at a release,
 *   `broker/core/handoff.py:force` at the deadline; the next owner is the successor, another
 *   flow, the owner itself, or none
 * - `left` → unbinding and expiring, `broker/core/decisions.py:unbind`; a successor that leaves
 *   while `revoking` does not take the revoke back
 * - the plan moves the partition → `broker/core/handoff.py:begin`, by the plan of
 *   `broker/core/assignment.py`; here it only needs the other consumer bound
 * - `receive` → `broker/calls/commits.py:commit`, `broker/core/reports.py:release` and
 *   `broker/core/reports.py:ready`; the fence of positions in a WHERE clause,
 *   `broker/store/sql/positions.sql:written` and, of a release,
 *   `broker/store/sql/commit.sql:locked_partitions`; `outdated` is `seq`
 * - `alarm_set`, `alarm_epoch`, and the step that sets a lost one → `broker/replica/alarms.py`
 *   and the sweep of `broker/replica/replica.py` over `next_deadline`
 * - `sent`, `copy`, `update` → calls, their repetition by a network or a retry, and the answer
 *   to `GET …/updates`: one at a time for each consumer. `news` stands for "its revision >
 *   after"
 * - `Consumer`: its view → `counterpoise/flow/core.py` and `view.py`
 * - `Consumer`: takes, finishes and reports messages → `counterpoise/flow/ledger.py`,
 *   `counterpoise/spark/source/progress.py` and `counterpoise/consumer`: no new message of a
 *   revoked partition, commits trail the sink, nothing is in flight at a release
 * - restarted with the same `instance_id` → rule 12, `replaced`
 * - `paused`; `held`, what an administrator has ordered → `broker/core/pauses.py`; a view has
 *   it, and `counterpoise/flow/ledger.py` begins nothing of such a partition
 * - `deaths`, `ends` (a death for good), `expiries`, `losses`, `repeats`, `crashes`, `hangs` →
 *   the budgets: `tests/model/checker.py` lists the combinations
 *
 * Compiled with -DBUG_... it has a known bug, which the checker must find (tests/model).
 */

#ifndef MESSAGES
#define MESSAGES 2      /* in the partition, numbered 0.. */
#endif
#ifndef HANDOFFS
#define HANDOFFS 0      /* how often the plan moves the partition */
#endif
#ifndef DEATHS
#define DEATHS 0        /* consumers that die and start again, with their instance_id only */
#endif
#ifndef EXPIRIES
#define EXPIRIES 0      /* leases that end although the consumer lives: it was frozen or cut off */
#endif
#ifndef LOSSES
#define LOSSES 0        /* calls and answers that are lost */
#endif
#ifndef REPEATS
#define REPEATS 0       /* calls that arrive a second time, however late */
#endif
#ifndef CRASHES
#define CRASHES 0       /* replicas that lose their memory */
#endif

#ifndef HANGS
#define HANGS 0         /* consumers that live and never finish the message in hand */
#endif

#ifndef ENDS
#define ENDS 0          /* consumers that die and never start again: their lease always ends */
#endif

#ifndef PAUSES
#define PAUSES 0        /* how often an administrator pauses the partition; each pause ends */
#endif

#define NOBODY 2        /* consumers are 0 and 1 */
#define OTHER(c) (1 - (c))

mtype = { unassigned, owned, warming, revoking };   /* of the partition */
mtype = { commit, release, ready };                 /* calls */

/* ---------------------------------------------------------------- the database */

byte epoch = 0;
mtype state = unassigned;
byte owner = NOBODY;
byte successor = NOBODY;
byte position = 0;              /* committed: next to be processed */
bool paused = false;
bool bound[2];
bool news[2];                   /* the revision of its view is above the last one that it has */

/* A replica's alarm for the deadline of a handoff; it knows for which epoch it was set. */
bool alarm_set = false;
byte alarm_epoch = 0;

/* ---------------------------------------------------------------- the network */

/* One call in flight from each consumer, and a copy that may arrive again. */
/* `outdated`: the service has taken a later call of this epoch (the contract's `seq`). */
typedef Call { bool there; mtype kind; byte epoch; byte position; bool outdated };
Call sent[2];
Call copy[2];

/* One update in flight to each consumer: its view at some moment. It asks again on arrival. */
typedef View { bool there; bool bound; byte epoch; mtype state; byte position; bool paused };
View update[2];

/* ---------------------------------------------------------------- what is observed (no one reads it) */

byte written[MESSAGES];         /* how often the plain sink got each message */
bool interrupted = false;       /* a handover that may repeat messages has happened */
byte sink_epoch = 0;            /* the fenced sink: its high-water row */
byte sink_next = 0;
byte granted = 0;               /* the last epoch that was granted */

bool held = false;              /* an administrator has paused the partition, and not resumed it */
bool hung[2];                   /* it will never finish the message in hand */
bool gone[2];                   /* it died and never starts again */

byte handoffs = 0, deaths = 0, expiries = 0, losses = 0, repeats = 0, crashes = 0, hangs = 0;
byte ends = 0, pauses = 0;

/* A consumer that hangs and renews its lease keeps its partition until the plan moves it; after a
 * move all promises hold again. For an owner that hangs there are no further promises. */
#define hangs_on (state == owned && owner != NOBODY && hung[owner])
#define finished ((position == MESSAGES && state == owned) || hangs_on)
#define in_handoff (state == revoking)

/* ---------------------------------------------------------------- the broker's decisions */

inline set_alarm() {
    if
#ifdef BUG_TIMER_OF_OLD_EPOCH
    :: alarm_set -> skip
#else
    :: false -> skip
#endif
    :: else -> alarm_set = true; alarm_epoch = epoch
    fi
}

inline drop_alarm() {
#ifndef BUG_TIMER_OF_OLD_EPOCH
    alarm_set = false; alarm_epoch = 0;
#endif
    skip
}

inline changed() { news[0] = true; news[1] = true }

/* Every grant of ownership raises the epoch; no grant had the new epoch before. */
inline grant(to) {
#ifdef BUG_FORCED_KEEPS_EPOCH
    if
    :: forced -> skip
    :: else -> epoch++
    fi;
#else
    epoch++;
#endif
    assert(epoch > granted);                                         /* promise 1 */
    granted = epoch;
    owner = to; state = owned; successor = NOBODY; drop_alarm();
#ifdef BUG_PAUSE_LOST_AT_A_GRANT
    paused = false;
#endif
    changed()
}

/* The owner after a handoff: the successor, or another bound flow, or none. */
inline hand_over() {
    if
    :: successor != NOBODY && bound[successor] -> grant(successor)
    :: else ->
        if
        :: owner != NOBODY && bound[owner] -> grant(owner)
        :: else -> owner = NOBODY; successor = NOBODY; state = unassigned; drop_alarm(); changed()
        fi
    fi
}

inline left(c) {                /* unbound, expired, or detected as dead */
    bound[c] = false;
    if
    :: owner == c ->
        interrupted = true;     /* orphaned */
        if
        :: bound[OTHER(c)] -> grant(OTHER(c))
        :: else -> owner = NOBODY; successor = NOBODY; state = unassigned; drop_alarm(); changed()
        fi
    :: owner != c && successor == c && state == warming ->
        state = owned; successor = NOBODY; changed()
    :: owner != c && successor == c && state == revoking ->
#ifdef BUG_REVOKE_TAKEN_BACK
        state = owned; alarm_set = false;
#endif
        successor = NOBODY; changed()                                /* never taken back */
    :: else -> changed()
    fi
}

inline receive(c, call) {
    if
#ifdef BUG_COMMIT_NOT_FENCED
    :: call.kind == commit ->
#else
#ifdef BUG_LATE_COMMIT_APPLIED
    :: call.kind == commit && bound[c] && owner == c && call.epoch == epoch ->
#else
    :: call.kind == commit && bound[c] && owner == c && call.epoch == epoch && !call.outdated ->
#endif
#endif
        position = call.position; copy[c].outdated = true
#ifdef BUG_RELEASE_WITHOUT_EPOCH
    :: call.kind == release && bound[c] && owner == c && state == revoking ->
#else
    :: call.kind == release && bound[c] && owner == c && state == revoking && call.epoch == epoch ->
#endif
        if
        :: !call.outdated -> position = call.position
        :: else -> skip
        fi;
        forced = false;
        hand_over()
    :: call.kind == ready && bound[c] && state == warming && successor == c && call.epoch == epoch ->
        state = revoking; set_alarm(); changed()
    :: else -> skip                                                  /* stale: changes nothing */
    fi
}

active proctype Broker() {
    bool forced;
end:
    do
    /* A call arrives. */
    :: atomic { sent[0].there -> sent[0].there = false; receive(0, sent[0]) }
    :: atomic { sent[1].there -> sent[1].there = false; receive(1, sent[1]) }
    :: atomic { copy[0].there -> copy[0].there = false; receive(0, copy[0]) }
    :: atomic { copy[1].there -> copy[1].there = false; receive(1, copy[1]) }

    /* A partition without an owner is granted at once. */
#ifndef BUG_UNOWNED_NOT_GRANTED
    :: atomic { state == unassigned && bound[0] -> forced = false; grant(0) }
    :: atomic { state == unassigned && bound[1] -> forced = false; grant(1) }
#else
    :: atomic { state == unassigned && epoch == 0 && bound[0] -> forced = false; grant(0) }
    :: atomic { state == unassigned && epoch == 0 && bound[1] -> forced = false; grant(1) }
#endif

    /* The plan moves the partition: with a warm-up, or straight away. */
    :: atomic { state == owned && handoffs < HANDOFFS && owner != NOBODY && bound[OTHER(owner)] ->
        handoffs++; successor = OTHER(owner);
        if
        :: state = warming
        :: state = revoking; set_alarm()
        fi;
        changed() }
    /* max_warmup_time is over. */
    :: atomic { state == warming -> state = revoking; set_alarm(); changed() }

    /* An administrator pauses the partition, in any state, and resumes it. */
    :: atomic { !held && pauses < PAUSES -> pauses++; held = true; paused = true;
#ifndef BUG_PAUSE_NOT_TOLD
        changed()
#endif
        }
    :: atomic { held -> held = false; paused = false;
#ifndef BUG_RESUME_NOT_TOLD
        changed()
#endif
        }

#ifndef BUG_NO_DEADLINE
    /* The alarm: at the deadline, or later, or for a handoff that is over. */
#ifdef BUG_TIMER_OF_OLD_EPOCH
    :: atomic { alarm_set && state == revoking ->
#else
    :: atomic { alarm_set && state == revoking && alarm_epoch == epoch ->
#endif
        assert(alarm_epoch == epoch);                   /* no handoff is cut short by another's */
        alarm_set = false; interrupted = true; forced = true; hand_over() }
#endif
#ifndef BUG_NO_SWEEP
    /* The sweep sets the alarms that a dead replica has lost: deadlines are columns. */
    :: atomic { state == revoking && !alarm_set -> set_alarm() }
#endif
    :: atomic { alarm_set && crashes < CRASHES -> crashes++; alarm_set = false }

    /* The lease of a dead consumer ends: it is not renewed. */
#ifndef BUG_LEASES_DO_NOT_END
    :: atomic { bound[0] && gone[0] -> forced = false; left(0) }
    :: atomic { bound[1] && gone[1] -> forced = false; left(1) }
#endif
    /* A lease ends: the consumer was frozen or cut off, and does not know it. */
    :: atomic { bound[0] && expiries < EXPIRIES -> expiries++; forced = false; left(0) }
    :: atomic { bound[1] && expiries < EXPIRIES -> expiries++; forced = false; left(1) }

    /* No other step is possible, and time goes on. Without this step spin, which looks only at fair
     * runs, would not see that a run that stands still breaks a promise over time. */
    :: timeout -> skip
    od
}

/* ---------------------------------------------------------------- a consumer */

/* The sinks. The plain sink accepts everything; the fenced one stores (epoch, next) with the data. */
inline write(message, under) {
    if
    :: written[message] < 2 -> written[message]++
    :: else -> skip
    fi;
    if
    :: under >= sink_epoch ->
        sink_epoch = under;
        assert(message <= sink_next);                                /* promise 3: nothing jumped over */
        if
        :: message == sink_next -> sink_next++
        :: else -> skip
        fi
    :: else -> skip
    fi;
    assert(written[message] == 1 || interrupted)                     /* promise 4: graceful is clean */
}

inline call(c, what, at) {
    sent[c].there = true; sent[c].kind = what; sent[c].epoch = v_epoch;
    sent[c].position = at;
    said = true
}

proctype Consumer(byte me) {
    bool knows = false;         /* whether it believes that it is bound */
    byte v_epoch = 0;
    mtype v_state = unassigned; /* its view of the partition; unassigned means "not mine" */
    bool v_paused = false;
    byte next = 0;              /* next message to take */
    bool working = false;       /* one message is taken and not yet written */
    byte in_hand = 0;
    byte working_epoch = 0;
    bool forced = false;
    bool said = true;           /* everything is reported; false after a lost call */

end:
    do
    /* Bind; also again after an answer that the flow is gone. */
    :: atomic { !knows && !gone[me] && !bound[me] && !update[me].there ->
        bound[me] = true; changed(); knows = true;
        v_state = unassigned; v_epoch = 0; v_paused = false; said = true }
    /* Started again while its old flow is still bound: replaced, under new epochs. */
    :: atomic { !knows && !gone[me] && bound[me] && !working ->
        if
        :: owner == me && state != revoking -> interrupted = true; grant(me)
        :: owner == me && state == revoking -> interrupted = true; hand_over()
        :: else -> changed()
        fi;
        knows = true; update[me].there = false; sent[me].there = false;
        v_state = unassigned; v_epoch = 0; v_paused = false; said = true }

    /* Ask for the view; the answer is the current state, and arrives later. */
    :: atomic { knows && !update[me].there && (news[me] || !bound[me]) ->
        news[me] = false;
        update[me].there = true; update[me].bound = bound[me]; update[me].paused = paused;
        if
        :: owner == me ->
            update[me].state = (state == warming -> owned : state);
            update[me].epoch = epoch; update[me].position = position
        :: owner != me && successor == me && state == warming ->
            update[me].state = warming; update[me].epoch = epoch; update[me].position = position
        :: else -> update[me].state = unassigned; update[me].epoch = epoch; update[me].position = 0
        fi }
#ifdef BUG_LOST_UPDATE_NOT_ASKED_AGAIN
    :: atomic { update[me].there && losses < LOSSES -> losses++; update[me].there = false }
#else
    :: atomic { update[me].there && losses < LOSSES -> losses++; update[me].there = false; news[me] = true }
#endif
    :: atomic { update[me].there ->
        update[me].there = false;
        if
        :: !update[me].bound -> knows = false; v_state = unassigned
        :: else ->
            if
            :: update[me].state != unassigned && update[me].state != warming &&
               (update[me].epoch != v_epoch || v_state == unassigned || v_state == warming) ->
                next = update[me].position
            :: else -> skip
            fi;
            if
            :: v_state != update[me].state || v_epoch != update[me].epoch ->
                said = (update[me].state == owned || update[me].state == unassigned)
            :: else -> skip
            fi;
            v_state = update[me].state; v_epoch = update[me].epoch; v_paused = update[me].paused
        fi;
        /* Remove ended grants from the state. */
        update[me].epoch = 0; update[me].position = 0; update[me].paused = false }

    /* Take a message; never one of a partition that is being revoked, or paused in its view. */
#ifdef BUG_TAKES_WHILE_REVOKING
    :: atomic { knows && (v_state == owned || v_state == revoking) && !working && next < MESSAGES &&
#else
    :: atomic { knows && v_state == owned && !working && next < MESSAGES &&
#endif
        !v_paused ->
        /* Only who is still to hear of a pause takes a message of a paused partition. */
        assert(!held || news[me] || update[me].there);
        working = true; in_hand = next; working_epoch = v_epoch }
    /* It lives and never finishes this one: only the deadline helps. */
    :: atomic { working && !hung[me] && hangs < HANGS -> hangs++; hung[me] = true }
    /* Finish it. */
    :: atomic { working && !hung[me] -> write(in_hand, working_epoch);
        if
        :: working_epoch == v_epoch -> next = in_hand + 1; said = false
        :: else -> skip
        fi;
        working = false; working_epoch = 0; in_hand = 0 }

    /* Report finished messages: commits trail the sink, nothing is outstanding at a release. */
#ifdef BUG_COMMITS_BEFORE_THE_SINK
    :: atomic { knows && v_state == owned && working && !sent[me].there && working_epoch == v_epoch ->
        call(me, commit, next + 1) }
#endif
    :: atomic { knows && v_state == owned && !working && !sent[me].there && !said ->
        call(me, commit, next) }
#ifdef BUG_RELEASES_TOO_EARLY
    :: atomic { knows && v_state == revoking && !sent[me].there &&
#else
    :: atomic { knows && v_state == revoking && !working && !sent[me].there &&
#endif
        !said ->
        call(me, release, next) }
    :: atomic { knows && v_state == warming && !sent[me].there && !said ->
        call(me, ready, 0) }

    /* The network: a call is lost (and sent again), or arrives a second time. */
    :: atomic { sent[me].there && losses < LOSSES ->
        losses++; sent[me].there = false;
        if
#ifdef BUG_LOST_COMMIT_NOT_SAID_AGAIN
        :: sent[me].kind == commit -> skip
#endif
#ifdef BUG_LOST_RELEASE_NOT_SAID_AGAIN
        :: sent[me].kind == release -> skip
#endif
        :: else -> said = false
        fi }
    :: atomic { sent[me].there && repeats < REPEATS && !copy[me].there ->
        repeats++;
        copy[me].there = true; copy[me].kind = sent[me].kind; copy[me].epoch = sent[me].epoch;
        copy[me].position = sent[me].position; copy[me].outdated = false }

    /* It dies and loses its memory; or it dies for good while the other one lives. */
    :: atomic { knows && (deaths < DEATHS || (ends < ENDS && !gone[OTHER(me)])) ->
        if
        :: deaths < DEATHS -> deaths++
        :: ends < ENDS && !gone[OTHER(me)] -> ends++; gone[me] = true
        fi;
        knows = false; working = false; hung[me] = false; working_epoch = 0; in_hand = 0; v_state = unassigned;
        v_paused = false; next = 0; v_epoch = 0; update[me].there = false; sent[me].there = false }
    od
}

init { atomic { run Consumer(0); run Consumer(1) } }

/* ---------------------------------------------------------------- promises over time */

/* After the last fault, all is processed and committed, and the partition has an owner. */
ltl processed { <> [] finished }
/* A handoff ends (promises 8 and 9). */
ltl handed_over { [] (in_handoff -> <> !in_handoff) }
