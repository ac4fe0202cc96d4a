/** What consumers say is wrong with their work, so that no queue looks well that falls behind. */

import { get } from "./calls.js";
import { make, set } from "./dom.js";
import { clock, number } from "./words.js";

const MOST_SHOWN = 8;
const KINDS = { quarantined: "quarantined", log_away: "log away", rows_dropped: "rows dropped", invalid_position: "invalid position", end_refused: "end refused", mirror_failed: "mirror failed" };
const word = (kind) => KINDS[kind] ?? kind.replaceAll("_", " ");

/** The conditions of the queue of this path. */
export const conditionsOf = async (path) => (await get(path + "/conditions?limit=1000")).items;

/** Their number by kind, in words: 2 quarantined, 1 log away. Empty if there are none. */
export const counted = (counts) =>
  Object.entries(counts ?? {}).sort().map(([kind, count]) => `${number(count)} ${word(kind)}`).join(", ");

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

/** The status of a queue in its badge: a Ready queue whose consumers report something is not well. */
export function badge(element, queue, status) {
  const told = counted(queue.conditions);
  set(element, "class", `status ${status}${told ? " troubled" : ""}`);
  set(element, "text", told ? `${status}, ${told}` : status);
}
