/** The partitions of a queue as cells: who owns each, how far behind it is, and where it goes.
 *
 *  A cell has its owner's letter and colour, stronger with more lag. While it moves it has the letter
 *  of its next owner too, and a bar that runs out at the deadline. The cells are a listbox: arrow
 *  keys move between them, and the chosen one is told in full beside it.
 */

import { secondsUntil } from "./calls.js";
import { plain, shaded, shadeOf } from "./colours.js";
import { fact, keyed, make, set } from "./dom.js";
import { duration, number, state } from "./words.js";

/** Up to so many partitions, cells have room for their number. */
const ROOMY = 130;

/** What a partition waits for, in words; empty if for nothing. */
export function waits(each) {
  if (each.waits_for?.length) return `at ${each.cut} for partition ${each.waits_for.join(", ")}`;
  return each.state === "waiting" ? `for ${each.parents.join(", ")}` : "";
}

export class Cells {
  chosen = null;

  constructor() {
    this.list = make("div", {
      class: "cells", role: "listbox", tabindex: "0", "aria-label": "Partitions",
      onkeydown: (event) => this.#key(event), onclick: (event) => this.#click(event),
    });
    this.detail = make("section", { class: "detail", "aria-label": "The chosen partition", hidden: "" });
    this.element = make("div", {}, this.list, this.detail);
  }

  /** Shows a picture of the queue (`queue.js`), of which only what `matches` stands out. */
  show(picture, matches) {
    this.picture = picture;
    const { partitions } = picture;
    const most = partitions.reduce((high, each) => Math.max(high, each.lag ?? 0), 0);
    set(this.list, "class", partitions.length > ROOMY ? "cells dense" : "cells");
    const create = (each) => make("div", {
      role: "option", id: `partition-${each.partition}`, "data-partition": each.partition,
      "aria-selected": "false",
    }, make("b", {}, make("span"), make("span", { class: "to" })), make("small"), make("i"));
    keyed(this.list, partitions, (each) => each.partition, create, (cell, each) => {
      this.#cell(cell, each, most, matches(each));
    });
    if (this.chosen !== null && !partitions.some((each) => each.partition === this.chosen)) this.chosen = null;
    this.#choose(this.chosen);
  }

  #cell(cell, each, most, stands) {
    const { placeOf } = this.picture;
    const [letter, small, bar] = cell.children;
    const owner = placeOf(each.owner);
    const { ground, ink } = shaded(owner, each.owner ? shadeOf(each.lag, most) : 0);
    const marks = waits(each);
    const trouble = this.picture.troubleOf(each);
    set(cell, "class", ["cell", each.state, each.owner ? "" : "nobody", marks ? "marked" : "", trouble ? "troubled" : "",
      stands ? "" : "dim"].filter(Boolean).join(" "));
    set(cell, "--ground", ground);
    set(cell, "--ink", ink);
    set(cell, "--to", each.successor ? plain(placeOf(each.successor)).ground : "transparent");
    set(letter.firstChild, "text", each.owner ? this.picture.letterOf(each.owner) : "·");
    set(letter.lastChild, "text", each.successor ? "›" + this.picture.letterOf(each.successor) : "");
    set(small, "text", each.partition);
    set(cell, "aria-label", this.#said(each, marks));
    set(cell, "title", this.#said(each, marks));
    const moving = each.state === "warming" || each.state === "revoking";
    if (bar.dataset.until !== (moving ? each.deadline ?? "" : "")) {
      // The animation starts once for each deadline, not at each look.
      bar.dataset.until = moving ? each.deadline ?? "" : "";
      bar.style.animation = "none";
      if (moving && each.deadline) {
        void bar.offsetWidth;
        bar.style.animation = `run-out ${Math.max(0, secondsUntil(each.deadline))}s linear forwards`;
      }
    }
  }

  #said(each, marks) {
    const { nameOf } = this.picture;
    const trouble = this.picture.troubleOf(each);
    return [`partition ${each.partition}`, each.owner ? `owner ${nameOf(each.owner)}` : "no owner",
      ...(each.state === "owned" || each.state === "unassigned" ? [] : [state(each.state)]),
      ...(each.successor ? [`next owner ${nameOf(each.successor)}`] : []),
      ...(each.lag === null ? [] : [`lag ${number(each.lag)}`]),
      ...(marks ? [`waits ${marks}`] : []), ...(trouble ? [trouble] : [])].join(", ");
  }

  #choose(partition) {
    this.chosen = partition;
    const each = this.picture.partitions.find((one) => one.partition === partition);
    for (const cell of this.list.querySelectorAll("[aria-selected=true]")) set(cell, "aria-selected", "false");
    this.detail.hidden = !each;
    if (!each) return this.list.removeAttribute("aria-activedescendant");
    const cell = this.list.known.get(partition);
    set(cell, "aria-selected", "true");
    set(this.list, "aria-activedescendant", cell.id);
    const { nameOf, measured } = this.picture;
    const commit = measured.lastCommit(partition);
    const marks = waits(each);
    this.detail.replaceChildren(make("h3", {}, `Partition ${each.partition}`), make("dl", {},
      ...(each.key ? [fact("key", each.key)] : []),
      fact("state", state(each.state)), fact("owner", nameOf(each.owner)),
      ...(each.successor ? [fact("next owner", nameOf(each.successor))] : []),
      ...(each.deadline ? [fact("deadline in", duration(secondsUntil(each.deadline)))] : []),
      fact("epoch", number(each.epoch)), fact("position", each.position ?? "none yet"),
      fact("end", each.end ?? "not known"), fact("lag", number(each.lag)),
      fact("last commit", commit === null ? "before this page was opened" : `${duration((Date.now() - commit) / 1000)} ago`),
      ...(marks ? [fact("waits", marks)] : []),
      ...(this.picture.troubleOf(each) ? [fact("reported", this.picture.troubleOf(each))] : [])));
  }

  #click(event) {
    const cell = event.target.closest("[data-partition]");
    if (cell) this.#choose(Number(cell.dataset.partition));
  }

  #key(event) {
    const { partitions } = this.picture;
    const place = partitions.findIndex((each) => each.partition === this.chosen);
    const row = this.#rowLength();
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row,
      Home: -partitions.length, End: partitions.length };
    if (event.key === "Escape") this.#choose(null);
    else if (event.key in steps && partitions.length) {
      const next = place < 0 ? 0 : Math.min(partitions.length - 1, Math.max(0, place + steps[event.key]));
      this.#choose(partitions[next].partition);
      this.list.known.get(this.chosen).scrollIntoView({ block: "nearest" });
    } else return;
    event.preventDefault();
  }

  #rowLength() {
    const [first, ...others] = this.list.children;
    const next = others.findIndex((cell) => cell.offsetTop > first.offsetTop);
    return next < 0 ? this.list.children.length : next + 1;
  }
}
