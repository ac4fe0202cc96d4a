/** How numbers, times and states read. */

export const number = (value) => value === null || value === undefined ? "–" : value.toLocaleString("en");

/** A short number: 1,234 or 56 K or 7.8 M. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  const sizes = [[1e9, "G"], [1e6, "M"], [1e4, "K"]];
  for (const [size, letter] of sizes) {
    if (value >= size) {
      const shown = value / (size === 1e4 ? 1e3 : size);
      return (shown < 100 ? shown.toFixed(1) : Math.round(shown)) + " " + letter;
    }
  }
  return number(Math.round(value * 10) / 10);
}

/** A rate; without one, `why` there is none. */
export const rate = (value, why = "–") => value === null ? why : `${short(value)}/s`;
export const clock = (text) => text ? new Date(text).toLocaleTimeString() : "–";
export const plural = (count, one, many = one + "s") => `${number(count)} ${count === 1 ? one : many}`;

/** What a consumer does. */
export const doing = (flow) => flow.draining ? "draining" : flow.active ? "active" : flow.held_until ? "held back" : "standby";

/** A duration: 8 ms, 0.4 s, 12 s, 3 min, 2 h, 4 d. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  const left = Math.max(0, seconds);
  if (left < 0.0005) return "0 s";
  if (left < 0.1) return `${Math.round(left * 1000)} ms`;
  if (left < 10) return `${left.toFixed(1)} s`;
  if (left < 120) return `${Math.round(left)} s`;
  if (left < 7200) return `${Math.round(left / 60)} min`;
  if (left < 172800) return `${Math.round(left / 3600)} h`;
  return `${Math.round(left / 86400)} d`;
}

/** Seconds that are left, as minutes and seconds. */
export const countdown = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;

/** Compares texts as a reader does: billing-2 comes before billing-10. */
export const natural = new Intl.Collator("en", { numeric: true }).compare;

/** Numbers in ascending order, as ranges: 0–3, 7. Beyond the first `most` ranges, how many numbers more. */
export function ranges(numbers, most = Infinity) {
  const runs = [];
  for (const each of numbers) {
    const last = runs.at(-1);
    if (last && last[1] === each - 1) last[1] = each; else runs.push([each, each]);
  }
  const shown = runs.slice(0, most).map(([from, to]) => from === to ? `${from}` : `${from}–${to}`).join(", ");
  const more = runs.slice(most).reduce((sum, [from, to]) => sum + to - from + 1, 0);
  return more ? `${shown} and ${number(more)} more` : shown;
}

const TRIGGERS = {
  bind: "a consumer came",
  unbind: "a consumer left",
  lease_expired: "a consumer was silent for longer than its lease",
  resize: "the number of partitions changed",
  access_type: "the access type changed",
  drain: "a consumer is being drained",
  admin: "an administrator asked for it",
  replaced: "a consumer restarted",
  driver_lost: "the driver of a consumer was killed",
  pin: "a partition was pinned",
  unpin: "a partition was unpinned",
  lineage: "a partition's parents are finished",
};

/** What set a rebalance off, in words; a newer replica may name something else. */
export const trigger = (name) => TRIGGERS[name] ?? String(name).replaceAll("_", " ");

const STATES = {
  owned: "owned",
  revoking: "being handed off",
  warming: "its next owner warms up",
  retiring: "retiring: its owner reads it to the end",
  unassigned: "without an owner",
  waiting: "waits for its parents",
  finished: "finished",
};

export const state = (name) => STATES[name] ?? String(name).replaceAll("_", " ");

/** A name that may be written from right to left, so that what stands beside it is not turned with it. */
export const isolated = (name) => /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/.test(name) ? `\u2068${name}\u2069` : name;

/** The label of the n-th consumer: A … Z, AA, AB, … */
export function letters(place) {
  const head = place < 26 ? "" : letters(Math.floor(place / 26) - 1);
  return head + String.fromCharCode(65 + place % 26);
}
