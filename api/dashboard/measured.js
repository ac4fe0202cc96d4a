/** What a queue's partitions say in sum, and how fast they move: lag, age, and messages a second. The
 *  service measures it twice a minute and keeps an hour; the looks of the page are newer and finer.
 *
 *  Positions of the logs that the service knows are decimal numbers, so the difference between two
 *  looks at a queue is a number of messages. Other positions are not compared.
 */

import { get } from "./calls.js";
import { GROWS_AGE_SECONDS, GROWS_FROM, GROWS_LEAST_SECONDS, GROWS_SECONDS } from "./headline.js";

const KEPT_SECONDS = 3600;
const MEASURED_SECONDS = 30;
const SMOOTH_SECONDS = 10;
const DECIMAL = /^\d{1,15}$/;
/** What is shown until two looks can be compared. */
export const MEASURING = "measuring";

/** The sum of the known lags; null if none is known. */
export function lagOf(partitions) {
  const known = partitions.filter((each) => each.lag !== null);
  return known.length ? known.reduce((sum, each) => sum + each.lag, 0) : null;
}

/** The age in seconds of the oldest message that is not processed; null if none is known. */
export function ageOf(partitions) {
  const known = partitions.map((each) => each.lag_seconds).filter(Number.isFinite);
  return known.length ? Math.max(...known) : null;
}

/** The looks at one queue, newest last, and since when each position has stood. */
export class History {
  looks = [];
  /** The points (`chart.js`) that the service has measured. */
  measured = [];
  /** How long after they were published messages were committed; null: not known. */
  committedAfter = null;
  #readAt = 0;
  moved = new Map();

  /** Takes a look at all partitions. Times are of this machine's clock, in milliseconds. */
  add(partitions) {
    const at = Date.now();
    const look = {
      at, lag: lagOf(partitions), held: lagOf(partitions.filter((each) => each.paused)) ?? 0, age: ageOf(partitions), done: sum(partitions, "position"), end: sum(partitions, "end"),
      unowned: partitions.filter((each) => each.state === "unassigned").length,
      why: unknown(partitions),
    };
    for (const { partition, position } of partitions) {
      const before = this.moved.get(partition);
      // At the first look nobody knows since when.
      if (!before) this.moved.set(partition, { position, at: null });
      else if (before.position !== position) this.moved.set(partition, { position, at });
    }
    this.looks.push(look);
    const { in: published, out: processed } = this.rates();
    Object.assign(look, { published, processed });
    while (this.looks[0].at < at - KEPT_SECONDS * 1000) this.looks.shift();
  }

  /** Reads what the service has measured of the queue of this path, if that may be news. */
  async read(path) {
    if (Date.now() - this.#readAt < MEASURED_SECONDS * 1000) return;
    this.#readAt = Date.now();
    const { items, committed_after: committedAfter = null } = await get(path + "/measurements");
    this.measured = items.map((one) => ({ ...one, at: Date.parse(one.at) }));
    this.committedAfter = committedAfter;
  }

  /** The points of the last hour: those of the service, and before and after them those of the page. */
  points() {
    const [first, last] = [this.measured[0]?.at ?? Infinity, this.measured.at(-1)?.at ?? 0];
    return [...this.looks.filter((look) => look.at < first), ...this.measured,
      ...this.looks.filter((look) => look.at > last && look.at >= first)];
  }

  /** When this partition's position last moved, in milliseconds; null: not since the first look. */
  lastCommit(partition) {
    return this.moved.get(partition)?.at ?? null;
  }

  /** Whether many messages wait, and more than a while ago, as `counterpoise/headline.py` says. */
  grows() {
    const now = this.looks.at(-1), before = this.points().find((point) => point.at >= now?.at - GROWS_SECONDS * 1000);
    const lag = now ? now.lag - now.held : 0;
    if (now && now.age !== null && now.age < GROWS_AGE_SECONDS) return false;
    return Boolean(before) && now.at - before.at > GROWS_LEAST_SECONDS * 1000 && lag > GROWS_FROM && lag > before.lag;
  }

  /** Messages a second: `in` published, `out` processed. Null while they are not known; `why` says why. */
  rates() {
    const last = this.looks.at(-1);
    const first = this.looks.find((look) => look.at >= last?.at - SMOOTH_SECONDS * 1000);
    const seconds = last && first ? (last.at - first.at) / 1000 : 0;
    if (seconds < 1) {
      const { published, processed } = this.measured.at(-1) ?? { published: null, processed: null };
      return { in: published, out: processed, why: last?.why ?? MEASURING };
    }
    const per = (name) => last[name] === null || first[name] === null ? null
      : Math.max(0, (last[name] - first[name]) / seconds);
    return { in: per("end"), out: per("done"), why: last.why ?? MEASURING };
  }
}

/** Why the rates of these partitions cannot be known; null if they can. */
function unknown(partitions) {
  if (partitions.some((each) => each.end === null)) return "the log does not say";
  const number = (position) => position === null || DECIMAL.test(position);
  return partitions.every((each) => number(each.end) && number(each.position)) ? null : "positions are no numbers";
}

function sum(partitions, name) {
  let total = 0;
  for (const each of partitions) {
    const value = each[name];
    if (value === null) { if (name === "end") return null; continue; }
    if (!DECIMAL.test(value)) return null;
    total += Number(value);
  }
  return total;
}
