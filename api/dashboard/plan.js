/** How far an assignment is from balance: what a running rebalance has still to do.
 *
 *  The rules are those of the contract, *Balance*: shares differ by at most one, the larger shares go
 *  to the flows that hold most, and a rebalance makes as many handoffs as there are partitions above
 *  the shares.
 */

/** How many handoffs balance these numbers of partitions; draining flows keep none. */
export function handoffs(counts, draining = []) {
  const leaving = draining.reduce((sum, count) => sum + count, 0);
  if (!counts.length) return 0;
  const total = counts.reduce((sum, count) => sum + count, 0) + leaving;
  const floor = Math.floor(total / counts.length);
  let larger = total % counts.length;
  const sorted = [...counts].sort((a, b) => b - a);
  let above = leaving;
  for (const count of sorted) {
    const share = larger > 0 ? floor + 1 : floor;
    larger -= 1;
    above += Math.max(0, count - share);
  }
  return above;
}

/** What the assignment of a queue is: how many partitions each consumer holds, without retiring
 *  ones. */
export function held(flows, partitions) {
  const counts = new Map(flows.filter((flow) => !flow.draining).map((flow) => [flow.flow_id, 0]));
  const draining = new Map(flows.filter((flow) => flow.draining).map((flow) => [flow.flow_id, 0]));
  for (const each of partitions) {
    // A partition that is being handed off counts for its successor.
    const holder = each.successor ?? each.owner;
    if (each.state === "retiring" || holder === null) continue;
    const of = counts.has(holder) ? counts : draining;
    if (of.has(holder)) of.set(holder, of.get(holder) + 1);
  }
  return { counts: [...counts.values()], draining: [...draining.values()] };
}
