/** The dashboard: which page is shown, who looks, and when the service is asked again. */

import { Audit } from "./audit.js";
import { call, get, pathOf } from "./calls.js";
import { onScheme } from "./colours.js";
import { make, narrow, set } from "./dom.js";
import { Overview } from "./overview.js";
import { QueuePage } from "./queue.js";
import { lock, told, unlockedFor } from "./unlocking.js";
import { countdown } from "./words.js";

/** Positions, leases and other queues raise no event. */
const LOOK_SECONDS = 5;
/** The page of the audit. No queue has a name with a slash. */
const AUDIT = "/audit";
const $ = (id) => document.getElementById(id);

let session = null, page = null, events = null, pending = null, asking = null, again = false;

/** What the address names. One that was typed may be none that a browser makes. */
function named() {
  const text = location.hash.slice(1);
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Shows the page that the address names: a queue's, or that of all queues. */
function show() {
  const name = named();
  events?.close();
  events = null;
  const isQueue = name !== "" && name !== AUDIT;
  page = isQueue ? new QueuePage(name, session) : name === AUDIT ? new Audit() : new Overview(session);
  document.title = isQueue ? `${name} · Counterpoise` : name === AUDIT ? "Audit · Counterpoise" : "Counterpoise";
  $("home").toggleAttribute("aria-current", !name);
  $("main").replaceChildren(page.element);
  follow();
}

/** Follows the changes of the queue that is shown, while somebody sees it: a browser has six connections
 *  for all of its pages, and without one a page waits for ever. A stream that was refused once, by a proxy
 *  without a service for one, the browser has given up. */
function follow() {
  if (document.hidden || !(page instanceof QueuePage) || (events && events.readyState !== EventSource.CLOSED)) return;
  events = new EventSource(`/v1${pathOf(page.name)}/events`);
  for (const kind of ["change", "open"]) events.addEventListener(kind, soon);
}

/** All pages of a browser have one session: another one has begun or ended it. */
const pages = new BroadcastChannel("counterpoise session");
pages.onmessage = () => {
  leave();
  if (!document.hidden) refresh();
};

/** Asks who looks; without a session the page asks for a key, and shows nothing else. */
async function enter() {
  session = await get("/session");
  told(session);
  $("who").textContent = session.key_id === null ? "" : `${session.name || session.key_id} (${session.role})`;
  $("leave").hidden = session.key_id === null;
  $("audit").hidden = session.role !== "admin";
  $("login").hidden = true;
  show();
}

function leave() {
  session = page = null;
  told(null);
  events?.close();
  document.querySelector("dialog")?.close();
  $("main").replaceChildren();
  $("who").textContent = "";
  $("leave").hidden = $("audit").hidden = true;
  $("login").hidden = false;
}

/** One refresh at a time; one that is wanted meanwhile comes after it. */
function refresh() {
  if (asking) { again = true; return asking; }
  asking = look().finally(() => {
    asking = null;
    if (again) { again = false; refresh(); }
  });
  return asking;
}

/** Tells a page whether the service has stopped answering: what it shows is old then. */
function tell(shown, away) {
  if (!shown || (shown.away ?? false) === away) return;
  shown.away = away;
  shown.draw();
}

async function look() {
  let looked = page;
  try {
    if (session === null) await enter();
    looked = page;
    await looked.refresh();
    tell(looked, false);
    $("notice").textContent = "";
    // The queue was gone, and there is one of this name again.
    if (!page.element.isConnected) { show(); refresh(); }
    else follow();
  } catch (error) {
    if (error.code === "unauthorized") {
      $("notice").textContent = "";
      leave();
    } else if (looked !== page) {
      // Another page is shown meanwhile, and asks next.
    } else if (error.code === "queue_not_found") {
      $("main").replaceChildren(make("section", {}, make("h2", {}, `The queue ${page.name} does not exist.`),
        make("p", {}, make("a", { href: "#" }, "All queues"))));
      events?.close();
    } else {
      if (!error.code && !(error instanceof TypeError)) throw error;
      tell(looked, !error.code || error.code === "unavailable");
      $("notice").textContent = error.code ? error.message : "The service does not answer; trying again.";
    }
  }
}

/** However many changes arrive together, one refresh. */
function soon() {
  pending ??= setTimeout(() => { pending = null; refresh(); }, 150);
}

$("login").addEventListener("submit", async (submitted) => {
  submitted.preventDefault();
  const key = $("key").value;
  $("key").value = "";
  try {
    await call("POST", "/session", { content: { key } });
    pages.postMessage("");
    await refresh();
  } catch (error) {
    $("notice").textContent = error.code ? error.message : "The service does not answer.";
  }
});
$("leave").addEventListener("click", async () => {
  try {
    await call("DELETE", "/session");
    pages.postMessage("");
  } finally {
    await refresh();
  }
});
$("lock").addEventListener("click", async () => {
  try {
    await lock();
  } catch (error) {
    $("notice").textContent = error.code ? error.message : "The service does not answer.";
  }
});
/** How long the session may still change something. */
function tellUnlocked() {
  const seconds = unlockedFor();
  $("unlocked").hidden = seconds === 0;
  set($("left"), "text", `unlocked for ${countdown(seconds)}`);
}
$("address").textContent = location.host;
onScheme(() => page?.draw());
narrow.addEventListener("change", () => page?.draw());
addEventListener("hashchange", () => {
  if (session === null) return;
  show();
  refresh();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) events?.close(); else refresh();
});
setInterval(() => document.hidden || refresh(), LOOK_SECONDS * 1000);
setInterval(() => {
  tellUnlocked();
  if (!document.hidden) page?.tick?.();
}, 250);
refresh();
