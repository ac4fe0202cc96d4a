/** What is wrong with a queue, so that none looks well that falls behind: what consumers report of their
 *  work, and what the numbers show. */

import { get } from "./calls.js";
import { keyed, make, set } from "./dom.js";
import { poisonOf } from "./quarantine.js";
import { clock, number, plural } from "./words.js";

const MOST_SHOWN = 8;
// As the alerts are ordered (deploy/prometheus).
const KINDS = ["quarantined", "invalid_position", "rows_dropped", "state_lost", "end_refused", "log_away", "mirror_failed", "resize_paused", "over_capacity", "pin_unmet"];
const place = (kind) => KINDS.includes(kind) ? KINDS.indexOf(kind) : KINDS.length;
const word = (kind) => kind.replaceAll("_", " ");

/** The conditions of the queue of this path. */
export const conditionsOf = async (path) => (await get(path + "/conditions?limit=1000")).items;

/** Their number by kind, in words: 2 quarantined, 1 log away. */
const counted = (counts) =>
  Object.entries(counts ?? {}).sort(([one], [other]) => place(one) - place(other)).map(([kind, count]) => `${number(count)} ${word(kind)}`);

/** What is said of a queue first: `told`, in words, the worst first and in the order of the alerts, empty if nothing
 *  is amiss; and `alarming`, whether a person should look. `history`: its looks, if it is measured. `away`: whether
 *  the service has stopped answering, so that all else is old. */
export function headline(queue, history, away = false) {
  const alarms = [], look = history?.looks.at(-1), nobody = queue.active_flow_count === 0;
  if (away) alarms.push("service away");
  // What is paused is nobody's work. Without a consumer no partition has an owner: that is said once.
  if (nobody && look && (look.lag === null || look.lag > look.held)) alarms.push("nobody consumes");
  if (!nobody && look?.unowned && queue.rebalance_status === "Ready") alarms.push(`${plural(look.unowned, "partition")} without an owner`);
  alarms.push(...counted(queue.conditions));
  if (!nobody && history?.grows()) alarms.push("lag grows");
  const quiet = [];
  // Before the first look it is not known whether messages wait.
  if (nobody && !look) quiet.push("no consumer");
  if (queue.paused) quiet.push("paused");
  else if (queue.paused_partition_count) quiet.push(`${plural(queue.paused_partition_count, "partition")} paused`);
  return { told: [...alarms, ...quiet].join(", "), alarming: alarms.length > 0 };
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
  /** `tools`: what may be done about a message in quarantine, by the title of its button. */
  constructor(tools) {
    this.tools = tools;
    this.list = make("ul");
    this.more = make("p", { class: "soft" });
    this.element = make("section", { class: "conditions", "aria-label": "Conditions", hidden: "" },
      make("h3", {}, "What consumers report"), this.list, this.more);
  }

  show({ conditions, queue }) {
    this.element.hidden = conditions.length === 0;
    const shown = conditions.slice(0, MOST_SHOWN);
    const create = (each) => {
      const line = make("li", {}, make("b", {}, word(each.kind)), make("span"));
      line.append(make("span", { class: "tools" }, poisonOf(each) === null ? [] : this.tools.map(({ title, act }) =>
        make("button", { class: "small", onclick: () => act(line.condition) }, title))));
      return line;
    };
    // A report of another message is another line: a button acts on what stands beside it.
    keyed(this.list, shown, (each) => `${each.kind} ${each.flow_id} ${each.partition} ${poisonOf(each)}`, create, (line, each) => {
      line.condition = each;
      const where = each.partition === null ? each.client_name : `partition ${each.partition} at ${each.client_name}`;
      set(line.children[1], "text", ` ${where}, since ${clock(each.since)}: ${each.text} `);
    });
    const all = Object.values(queue.conditions ?? {}).reduce((sum, count) => sum + count, 0);
    const more = Math.max(all, conditions.length) - shown.length;
    set(this.more, "text", more > 0 ? `and ${number(more)} more` : "");
  }
}

/** The badge of a queue: its headline, then its status. */
export function badge(element, status, { told, alarming }) {
  set(element, "class", `status ${status}${alarming ? " troubled" : told ? " quiet" : ""}`);
  set(element, "text", told ? `${told} (${status})` : status);
}
