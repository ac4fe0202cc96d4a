/** What a queue's partitions say in sum, and how fast they move: lag, and messages a second.
 *
 *  Positions of the logs that the service knows are decimal numbers, so the difference between two
 *  looks at a queue is a number of messages. Other positions are not compared.
 */

const KEPT_SECONDS = 900;
const SMOOTH_SECONDS = 10;

/** The sum of the known lags; null if none is known. */
export function lagOf(partitions) {
  const known = partitions.filter((each) => each.lag !== null);
  return known.length ? known.reduce((sum, each) => sum + each.lag, 0) : null;
}

/** The looks at one queue, newest last, and since when each position has stood. */
export class History {
  looks = [];
  moved = new Map();

  /** Takes a look at all partitions. Times are of this machine's clock, in milliseconds. */
  add(partitions) {
    const at = Date.now();
    const look = { at, lag: lagOf(partitions), done: sum(partitions, "position"), end: sum(partitions, "end") };
    for (const { partition, position } of partitions) {
      const before = this.moved.get(partition);
      // At the first look nobody knows since when.
      if (!before) this.moved.set(partition, { position, at: null });
      else if (before.position !== position) this.moved.set(partition, { position, at });
    }
    this.looks.push(look);
    while (this.looks[0].at < at - KEPT_SECONDS * 1000) this.looks.shift();
  }

  /** When this partition's position last moved, in milliseconds; null: not since the first look. */
  lastCommit(partition) {
    return this.moved.get(partition)?.at ?? null;
  }

  /** Messages a second: `in` published, `out` processed. Null while they are not known. */
  rates() {
    const last = this.looks.at(-1);
    const first = this.looks.find((look) => look.at >= last?.at - SMOOTH_SECONDS * 1000);
    const seconds = last && first ? (last.at - first.at) / 1000 : 0;
    const per = (name) => seconds < 1 || last[name] === null || first[name] === null ? null
      : Math.max(0, (last[name] - first[name]) / seconds);
    return { in: per("end"), out: per("done") };
  }
}

function sum(partitions, name) {
  let total = 0;
  for (const each of partitions) {
    const value = each[name];
    if (value === null) { if (name === "end") return null; continue; }
    if (!/^\d{1,15}$/.test(value)) return null;
    total += Number(value);
  }
  return total;
}
