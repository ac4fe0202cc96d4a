/** What is wrong with a queue, so that none looks well that falls behind: what consumers report of their
 *  work, and what the numbers show. */

import { get } from "./calls.js";
import { make, set } from "./dom.js";
import { clock, number, plural } from "./words.js";

const MOST_SHOWN = 8;
// As the alerts are ordered (deploy/prometheus).
const KINDS = ["quarantined", "invalid_position", "rows_dropped", "state_lost", "end_refused", "log_away", "mirror_failed", "resize_paused"];
const place = (kind) => KINDS.includes(kind) ? KINDS.indexOf(kind) : KINDS.length;
const word = (kind) => kind.replaceAll("_", " ");

/** The conditions of the queue of this path. */
export const conditionsOf = async (path) => (await get(path + "/conditions?limit=1000")).items;

/** Their number by kind, in words: 2 quarantined, 1 log away. */
const counted = (counts) =>
  Object.entries(counts ?? {}).sort(([one], [other]) => place(one) - place(other)).map(([kind, count]) => `${number(count)} ${word(kind)}`);

/** What is wrong with a queue, in words, the worst first; empty if nothing is. `history`: its looks, if it is
 *  measured. `unowned`: how many partitions are without an owner, if that is known. */
export function wrong(queue, history, unowned = 0) {
  const said = [], look = history?.looks.at(-1);
  if (queue.active_flow_count === 0) {
    // Before the first look it is not known whether messages wait.
    if (look && look.lag !== 0) said.push("nobody consumes");
  } else if (unowned && queue.rebalance_status === "Ready") said.push(`${plural(unowned, "partition")} without an owner`);
  said.push(...counted(queue.conditions));
  if (queue.active_flow_count && history?.grows()) said.push("lag grows");
  return said.join(", ");
}

/** A function that says what is wrong with a partition, in words: of its own, or of its owner. */
export function troubles(conditions) {
  const own = new Map(), flows = new Map();
  for (const each of conditions) {
    if (each.flow_id === null) continue;
    if (each.partition === null) flows.set(each.flow_id, `${word(each.kind)}: ${each.text}`);
    else own.set(each.partition, `${word(each.kind)}: ${each.text}`);
  }
  return (partition) => own.get(partition.partition) ?? flows.get(partition.owner) ?? "";
}

/** The list of a queue's conditions; hidden without any. */
export class Conditions {
  constructor() {
    this.list = make("ul");
    this.element = make("section", { class: "conditions", "aria-label": "Conditions", hidden: "" },
      make("h3", {}, "What consumers report"), this.list);
  }

  show({ conditions, queue }) {
    this.element.hidden = conditions.length === 0;
    const lines = conditions.slice(0, MOST_SHOWN).map((each) => {
      const where = each.partition === null ? each.client_name : `partition ${each.partition} at ${each.client_name}`;
      return make("li", {}, make("b", {}, word(each.kind)), ` ${where}, since ${clock(each.since)}: ${each.text}`);
    });
    const all = Object.values(queue.conditions ?? {}).reduce((sum, count) => sum + count, 0);
    const more = Math.max(all, conditions.length) - lines.length;
    if (more > 0) lines.push(make("li", { class: "soft" }, `and ${number(more)} more`));
    this.list.replaceChildren(...lines);
  }
}

/** The badge of a queue: what is wrong with it, then its status. */
export function badge(element, status, told) {
  set(element, "class", `status ${status}${told ? " troubled" : ""}`);
  set(element, "text", told ? `${told} (${status})` : status);
}
