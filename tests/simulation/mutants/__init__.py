"""Known bugs to plant in the product, one at a time: the simulation must find each.

A mutant replaces attributes of the product while a run lasts. The bugs are mistakes that are easily
made in a system like this, most of them in one line.
"""

from __future__ import annotations

from broker.core.transitions import (
    PARTITION_TRANSITIONS,
    QUEUE_TRANSITIONS,
    PartitionEvent,
    QueueEvent,
    State,
    Status,
)
from tests.simulation.mutants import (
    by_key,
    fencing,
    granting,
    pausing,
    reshaping,
    timing,
    weighing,
    working,
)
from tests.simulation.mutants.mutant import Mutant

_CALLED_OFF = ((State.REVOKING, PartitionEvent.CALLED_OFF), State.OWNED)
_EXTENDED = ((Status.HOLDDOWN, QueueEvent.HOLDDOWN_STARTED), Status.HOLDDOWN)

MUTANTS = {
    mutant.name: mutant
    for mutant in (
        Mutant("forced handoff keeps the epoch", fencing.forced_keeps_the_epoch),
        Mutant("commit of the epoch before is accepted", fencing.epoch_off_by_one),
        Mutant("release accepted without its epoch", fencing.release_without_epoch),
        Mutant("ready accepted from anybody", fencing.ready_from_anybody),
        Mutant("told before it is committed", fencing.told_before_committed),
        Mutant("commit not fenced by the revision", fencing.commit_not_fenced),
        Mutant("decisions of a failed commit are kept", fencing.failed_commit_is_kept),
        Mutant("a refusal comes from the past", fencing.answers_from_the_past),
        Mutant("position passed over at a handoff", fencing.position_passed_over),
        Mutant("release forgets the position", fencing.release_forgets_the_position),
        Mutant("a delayed retry moves a position back", fencing.seq_ignored),
        Mutant(
            "a delayed retry counts after positions were set", fencing.seq_ignored_after_a_reset
        ),
        Mutant("timer of an old handoff fires", timing.old_timer_fires),
        Mutant("leases run while nobody serves", timing.leases_run_in_an_outage),
        Mutant("handoff deadlines run while nobody serves", timing.deadlines_run_in_an_outage),
        Mutant("a late commit is taken", timing.late_commit_is_taken),
        Mutant(
            "only the last of several outages is given back", timing.only_the_last_outage_counts
        ),
        Mutant("a clock that goes back is not noticed", timing.clock_back_not_noticed),
        Mutant("deadlines do not go back with the clock", timing.deadlines_do_not_go_back),
        Mutant("the time from before a step is used after it", timing.time_from_before_a_step),
        Mutant("a frozen replica trusts its clock", timing.frozen_replica_trusts_its_clock),
        Mutant("expiry not fenced by the lease", timing.expiry_not_fenced),
        Mutant(
            "holddown extended by further binds",
            timing.holddown_extended,
            ((QUEUE_TRANSITIONS, *_EXTENDED),),
        ),
        Mutant("a late bind replaces a later one", timing.late_bind_replaces),
        Mutant("no sweep", timing.no_sweep),
        Mutant("a queue is not looked at again when it is due", timing.not_looked_at_again),
        Mutant("flows bind together for nothing", granting.bound_together_without_a_balance),
        Mutant("a handoff takes longer than allowed", granting.handoff_takes_longer),
        Mutant(
            "a revoke is taken back",
            granting.revoke_taken_back,
            ((PARTITION_TRANSITIONS, *_CALLED_OFF),),
        ),
        Mutant("a leaver's partitions go to a draining flow", granting.granted_to_the_draining),
        Mutant("one handoff too many", granting.too_many_moves),
        Mutant("others move with a pair", granting.others_move_with_a_pair),
        Mutant("what waits for a pair waits anew", granting.what_waits_for_a_pair_waits_anew),
        Mutant("Ready with a spread of two", granting.unsettled_is_ready),
        Mutant("a partition retires again in its epoch", granting.retires_again_in_its_epoch),
        Mutant("a group is granted in part", granting.granted_in_part),
        Mutant("orphans are granted one by one", granting.orphans_are_granted_one_by_one),
        Mutant("a group is ready in part", granting.ready_in_part),
        Mutant("a flow that is held back gets partitions", granting.held_back_takes),
        Mutant("moves do not count", granting.moves_do_not_count),
        Mutant("nobody is held back", granting.nobody_is_held_back),
        Mutant("held back for ever", granting.held_back_for_ever),
        Mutant("latest is asked when the queue is there", granting.latest_is_asked_too_late),
        Mutant("a client takes an older view", working.older_view_taken),
        Mutant("a flow that waits is not woken", working.waiting_flow_is_not_woken),
        Mutant("commits wait for the handoffs of their flow", working.commits_wait_for_handoffs),
        Mutant("commits wait for the rebalance to end", working.commits_wait_for_rebalance),
        Mutant("a client does not see a pause", pausing.client_does_not_see_it),
        Mutant("a pause is lost at a handoff", pausing.lost_at_a_handoff),
        Mutant("a pause never ends by itself", pausing.never_ends),
        Mutant("owners are not told of a pause", pausing.owners_are_not_told),
        Mutant("a weight is forgotten at the bind", weighing.forgotten_when_bound),
        Mutant("by weight, a rebalance ends one step early", weighing.ends_one_step_early),
        Mutant("a maximum is passed", weighing.maximum_is_passed_when_nobody_has_room),
        Mutant("beyond a maximum nothing is shared", weighing.what_is_over_is_not_shared),
        Mutant("a release forgets what is done above", by_key.release_forgets_what_is_above),
        Mutant("the next owner does not see what is done above", by_key.next_owner_does_not_see_it),
        Mutant("what is in work below is passed", by_key.position_of_the_last_done),
        Mutant("two messages of a key at once", by_key.two_of_a_key_at_once),
        Mutant("a cut is taken before the lock", reshaping.cut_before_the_lock),
        Mutant("a publisher with the old count is accepted", reshaping.old_count_accepted),
        Mutant("gcd mistaken for min", reshaping.gcd_is_min),
        Mutant("a barrier is lifted one message early", reshaping.barrier_lifted_one_early),
        Mutant("a cut that the service does not know is passed", reshaping.newer_cut_passed),
        Mutant("the next resize does not wait", reshaping.next_resize_does_not_wait),
        Mutant("what the owner of a log reaches counts for all", reshaping.reached_by_the_owner),
        Mutant("no barriers after a reset", reshaping.no_barriers_after_a_reset),
        Mutant("a child is granted one parent early", reshaping.granted_one_parent_early),
        Mutant("a finish is committed without its children", reshaping.finished_without_children),
        Mutant("a key is forgotten at its removal", reshaping.key_forgotten),
        Mutant("removed before its children end", reshaping.removed_before_its_children),
        Mutant("finished partitions are kept", reshaping.finished_is_kept),
        Mutant("a publisher with the old range is accepted", reshaping.old_range_accepted),
        Mutant("the position of a report is dropped", reshaping.position_of_a_report_is_dropped),
    )
}
