/** Handoffs under way: a row each, with a dot that travels from the owner to the next owner and
 *  arrives at the deadline at the latest. */

import { secondsUntil } from "./calls.js";
import { plain } from "./colours.js";
import { keyed, make, set } from "./dom.js";
import { duration, number, plural } from "./words.js";

const MOST_ROWS = 12;

export class Moving {
  constructor() {
    this.title = make("h3");
    this.done = make("span", { class: "soft" });
    this.list = make("ul", { class: "moving" });
    this.more = make("p", { class: "soft" });
    this.element = make("section", { "aria-label": "Handoffs", hidden: "" },
      make("div", { class: "bar" }, this.title, this.done), this.list, this.more);
  }

  /** Shows the handoffs of a status. */
  show({ status, progress, letterOf, nameOf, placeOf }) {
    const { handoffs } = status;
    this.element.hidden = handoffs.length === 0;
    set(this.title, "text", `On their way (${number(handoffs.length)})`);
    set(this.done, "text", progress);
    const shown = handoffs.slice(0, MOST_ROWS);
    const badge = () => make("b", { class: "badge" });
    const create = () => make("li", {}, make("span", { class: "which" }), badge(),
      make("span", { class: "track" }, make("i")), badge(),
      make("span", { class: "soft" }, make("span", { class: "wide-only" }), make("span")));
    keyed(this.list, shown, (each) => `${each.partition} ${each.phase} ${each.deadline}`, create, (item, each) => {
      const [which, from, track, to, said] = item.children;
      set(which, "text", each.partition);
      for (const [element, flow] of [[from, each.from], [to, each.to]]) {
        const { ground, ink } = plain(placeOf(flow));
        set(element, "text", flow ? letterOf(flow) : "?");
        set(element, "title", nameOf(flow));
        set(element, "--ground", ground);
        set(element, "--ink", ink);
      }
      set(item, "class", each.phase);
      const left = secondsUntil(each.deadline);
      if (!track.dataset.runs) {
        track.dataset.runs = "yes";
        track.firstChild.style.animation = `travel ${Math.max(0.2, left ?? 3)}s linear forwards`;
      }
      const [who, limit] = said.children;
      set(who, "text", each.phase === "warming" ? `${nameOf(each.to)} warms up, ` : `${nameOf(each.from)} finishes its work, `);
      set(limit, "text", left === null ? "without a limit" : `at most ${duration(left)}`);
    });
    set(this.more, "text", handoffs.length > shown.length ? `and ${plural(handoffs.length - shown.length, "more handoff")}` : "");
  }
}
