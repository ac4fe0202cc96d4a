/** Calls of the service's API, with the browser's session. */

/** So long an answer is waited for that changes nothing: a machine that dies ends no connection. */
const PATIENCE_SECONDS = 30;
/** Seconds that the service's clock is ahead of this one, from the `Date` of its answers. */
let ahead = 0;

/** The service's time in milliseconds. */
const now = () => Date.now() + ahead * 1000;
export const secondsUntil = (text) => text ? (Date.parse(text) - now()) / 1000 : null;

/** One call; the document that it answers. Throws an Error with the `code` of the problem; without
 *  one, the service did not answer. */
export async function call(method, path, { content } = {}) {
  const headers = {};
  if (content !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch("/v1" + path, {
    method, headers, body: content === undefined ? undefined : JSON.stringify(content),
    signal: method === "GET" ? AbortSignal.timeout(PATIENCE_SECONDS * 1000) : undefined,
  }).catch((error) => { throw new TypeError(error.message); });
  // The header has whole seconds. Each of the two clocks may be set.
  const is = Date.parse(answer.headers.get("Date")) / 1000 + 0.5 - Date.now() / 1000;
  if (Math.abs(is - ahead) > 2) ahead = is;
  // A proxy without a service answers HTML.
  const body = answer.status === 204 ? null
    : await answer.json().catch(() => { throw new TypeError("no answer of the service"); });
  if (!answer.ok) throw Object.assign(new Error(body.detail), { code: body.code });
  return body;
}

export const get = (path) => call("GET", path);

/** The items of a list that comes in pages, up to about `most`. */
export async function all(path, most) {
  const items = [];
  let cursor = null;
  do {
    const query = "?limit=1000" + (cursor ? "&cursor=" + encodeURIComponent(cursor) : "");
    const page = await get(path + query);
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor && items.length < most);
  return items;
}

export const pathOf = (queue) => "/queues/" + encodeURIComponent(queue);
