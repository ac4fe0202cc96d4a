/** Making and updating elements. Everything that comes from the service is set as text. */

/** An element. Attributes: `class`, `text`, `on…` handlers, `--…` style properties, others as they are;
 *  null and false leave an attribute out. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) set(element, name, value);
  element.append(...children.flat().filter((child) => child !== null && child !== false)
    .map((child) => child instanceof Node ? child : String(child)));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element, as `make`. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Sets one attribute as `make` does, and leaves it alone if it is so already. */
export function set(element, name, value) {
  if (name === "class") { if (element.className !== value) element.className = value; }
  else if (name === "text") { if (element.textContent !== String(value)) element.textContent = value; }
  else if (name.startsWith("on")) element[name] = value;
  else if (name.startsWith("--")) {
    if (element.style.getPropertyValue(name) !== value) element.style.setProperty(name, value);
  } else if (value === null || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Makes the children of an element those of `items`, and keeps the elements of items that stay, so
 *  that focus, selection and animations survive. `key` names an item, `create` makes its element,
 *  `update` brings it up to date. */
export function keyed(parent, items, key, create, update) {
  const known = parent.known ??= new Map();
  const present = new Set();
  let before = null;
  for (const item of items) {
    const name = key(item);
    present.add(name);
    let element = known.get(name);
    if (!element) known.set(name, element = create(item));
    update(element, item);
    const place = before ? before.nextSibling : parent.firstChild;
    if (element !== place) parent.insertBefore(element, place);
    before = element;
  }
  for (const [name, element] of known) {
    if (present.has(name)) continue;
    element.remove();
    known.delete(name);
  }
}

/** A table row of these cells; on narrow screens each cell shows the name of its column. */
export function cells(row, columns, values) {
  while (row.children.length < values.length) row.append(document.createElement("td"));
  values.forEach((value, place) => {
    const cell = row.children[place];
    set(cell, "data-label", columns[place]);
    if (value instanceof Node) {
      if (cell.firstChild !== value || cell.childNodes.length > 1) cell.replaceChildren(value);
    } else set(cell, "text", value);
  });
  return row;
}

/** Whether the window is narrow, as in `style.css`. */
export const narrow = matchMedia("(max-width: 46rem)");

/** A name and its value, for a `dl`. */
export function fact(name, value) {
  return make("div", {}, make("dt", {}, name), make("dd", {}, value));
}
