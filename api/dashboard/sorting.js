/** The order of a table: by the column that was clicked, the other way round at the second click. A
 *  narrow window has no heads, and a choice instead. Names come in their natural order; rows without
 *  a value come last, and rows with equal values by their first column.
 */

import { make, set } from "./dom.js";
import { natural } from "./words.js";

export class Sorting {
  #name;
  #down = false;

  /** `columns`: the name of each, and the value by which it sorts an item; null: it does not sort.
   *  `id` is that of the choice. `changed` is called when another order is wanted. */
  constructor(columns, id, changed) {
    this.columns = columns;
    this.changed = changed;
    this.#name = columns[0][0];
    const sorting = columns.filter(([, value]) => value).map(([name]) => name);
    this.choice = make("select", { id, onchange: () => this.#by(this.choice.value, false) },
      sorting.map((name) => make("option", { value: name }, name)));
    this.field = make("span", { class: "field narrow-only" }, make("label", { for: id }, "Sort by"), this.choice);
    this.heads = columns.map(([name, value]) => make("th", { scope: "col" }, value
      ? make("button", { class: "sort", onclick: () => this.#by(name, this.#name === name && !this.#down) }, name)
      : make("span", { class: name ? "" : "hidden" }, name || "action")));
  }

  /** The items in order. */
  sorted(items) {
    this.heads.forEach((head, place) => set(head, "aria-sort",
      this.columns[place][0] === this.#name && (this.#down ? "descending" : "ascending")));
    const first = this.columns[0][1];
    const value = this.columns.find(([name]) => name === this.#name)[1];
    const order = (one, other) => typeof one === "string" ? natural(one, other) : one - other;
    return [...items].sort((one, other) => {
      const [mine, its] = [value(one), value(other)];
      if (mine === null || its === null) return (mine === null) - (its === null) || natural(first(one), first(other));
      return (this.#down ? -1 : 1) * order(mine, its) || natural(first(one), first(other));
    });
  }

  #by(name, down) {
    this.#name = this.choice.value = name;
    this.#down = down;
    this.changed();
  }
}
