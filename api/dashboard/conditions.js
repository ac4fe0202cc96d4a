/** What is wrong with a queue, so that none looks well that falls behind: what consumers report of their
 *  work, and what the numbers show. */

import { get } from "./calls.js";
import { keyed, make, set } from "./dom.js";
import { OF_PARTITIONS, ORDER, OTHER, QUIET } from "./headline.js";
import { poisonOf } from "./quarantine.js";
import { clock, number, plural } from "./words.js";

const MOST_SHOWN = 8;
const word = (kind) => kind.replaceAll("_", " ");

/** The conditions of the queue of this path. */
export const conditionsOf = async (path) => (await get(path + "/conditions?limit=1000")).items;

const place = (kind) => ORDER.indexOf(ORDER.includes(kind) ? kind : OTHER);

/** A kind in words: with its number, or, if that is true, without. */
function words(kind, count) {
  if (count === true) return word(kind);
  return kind in OF_PARTITIONS ? `${plural(count, "partition")} ${OF_PARTITIONS[kind]}` : `${number(count)} ${word(kind)}`;
}

/** What is said of a queue first, as `counterpoise/headline.py` says: `told`, in words and the worst first, empty if
 *  nothing is amiss; and `alarming`, whether a person should look. `history`: its looks, if it is measured. `away`:
 *  whether the service has stopped answering, so that all else is old. */
export function headline(queue, history, away = false) {
  const look = history?.looks.at(-1), nobody = queue.active_flow_count === 0;
  // What is paused is nobody's work. Without a consumer no partition has an owner: that is said once.
  const waits = Boolean(look) && (look.lag === null || look.lag > look.held);
  const found = Object.entries({
    ...queue.conditions,
    service_away: away,
    nobody_consumes: nobody && waits,
    no_consumer: nobody && !waits,
    unowned: !nobody && queue.rebalance_status === "Ready" && look?.unowned,
    lag_grows: !nobody && Boolean(history?.grows()),
    paused: queue.paused ? true : queue.paused_partition_count,
  }).filter(([, count]) => count).sort(([one], [other]) => place(one) - place(other));
  return { told: found.map(([kind, count]) => words(kind, count)).join(", "), alarming: found.some(([kind]) => place(kind) < QUIET) };
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
    // A report of another message is another line: a button acts on what stands beside it. Those of
    // the service have no flow, and differ by their text.
    keyed(this.list, shown, (each) => `${each.kind} ${each.flow_id ?? each.text} ${each.partition} ${poisonOf(each)}`, create, (line, each) => {
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
