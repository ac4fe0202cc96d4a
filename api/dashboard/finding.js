/** Which messages a person looks for, and where they begin.
 *
 *  A filter is words that all must match: `key:NAME` is the whole key, `header:NAME=TEXT` the whole text of a header
 *  (without `=TEXT`: that there is one), and any other word is looked for in key, value and headers, in any case. A
 *  word with blanks stands in quotes. Values that are no text match no word.
 */

const WORDS = /(?:[^\s"]|"[^"]*")+/g;

/** A function that says whether a message (`ShownMessage` of the API) matches this filter; null for an empty one. */
export function filterOf(text) {
  const tests = (text.match(WORDS) ?? []).map((word) => test(word.replaceAll('"', "")));
  return tests.length ? (message) => tests.every((matches) => matches(message)) : null;
}

function test(word) {
  const [, kind, rest] = /^(key|header):(.+)$/s.exec(word) ?? [];
  if (kind === "key") return ({ key }) => key === rest;
  if (kind === "header") {
    const [, name, , wanted] = /^(.*?)(=(.*))?$/s.exec(rest);
    return ({ headers }) => headers !== null && Object.hasOwn(headers, name) && (wanted === undefined || headers[name] === wanted);
  }
  const part = word.toLowerCase();
  return ({ key, value, headers }) => [key ?? "", value ?? "", ...Object.entries(headers ?? {}).flat()]
    .some((one) => one.toLowerCase().includes(part));
}

/** The position of the first message that was published at `time` (milliseconds) or later, as far as times rise
 *  with positions: their end without one. A message without a time counts as late enough. Halves what is left, so it
 *  asks about as often as the number of messages has bits. `ask(position)`: the first message from there on, or null,
 *  with `start` and `end` of the partition. */
export async function firstSince(time, ask) {
  const { start, end } = await ask(null);
  // Before `low` all are older; at `high` and behind it none is.
  let low = Number(start), high = Number(end);
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    const { message } = await ask(String(middle));
    if (message === null || Number(message.position) >= high) high = middle;
    else if (message.published_at === null || Date.parse(message.published_at) >= time) high = middle;
    else low = Number(message.position) + 1;
  }
  return String(low);
}
