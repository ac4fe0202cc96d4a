/** What a change would do to the assignment: the previews of administrative calls.
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

/** The numbers of partitions after `more` new ones went one by one to the flow with the fewest. */
export function granted(counts, more) {
  const after = [...counts];
  for (let left = after.length ? more : 0; left > 0; left -= 1) after[after.indexOf(Math.min(...after))] += 1;
  return after;
}

/** What the assignment of a queue is, for previews: how many partitions each consumer holds, without
 *  retiring ones and without those of `without`. */
export function held(flows, partitions, without = () => false) {
  const counts = new Map(flows.filter((flow) => !flow.draining).map((flow) => [flow.flow_id, 0]));
  const draining = new Map(flows.filter((flow) => flow.draining).map((flow) => [flow.flow_id, 0]));
  for (const each of partitions) {
    // A partition that is being handed off counts for its successor.
    const holder = each.successor ?? each.owner;
    if (each.state === "retiring" || holder === null || without(each)) continue;
    const of = counts.has(holder) ? counts : draining;
    if (of.has(holder)) of.set(holder, of.get(holder) + 1);
  }
  return { counts: [...counts.values()], draining: [...draining.values()] };
}
