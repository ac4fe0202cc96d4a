/** Whether the session of this page may change something: for some minutes after it has shown its key once more.
 *
 *  The key is sent once and kept nowhere; the service remembers until when this session is unlocked. Another page
 *  of the browser shares the session and may lock it, so the service has the last word: what it refuses is asked
 *  for again (`learn`).
 */

import { call, get, secondsUntil } from "./calls.js";

let until = null;

/** Takes over what the service says of the session; null: there is none. */
export function told(session) {
  until = session?.unlocked_until ?? null;
}

/** The seconds for which the session is still unlocked; 0: it only reads. */
export const unlockedFor = () => until === null ? 0 : Math.max(0, secondsUntil(until));

/** Asks the service until when the session is unlocked. */
export const learn = async () => told(await get("/session"));

/** Unlocks the session with its key. Throws what the call throws. */
export const unlock = async (key) => told(await call("POST", "/session/unlock", { content: { key } }));

/** Lets the session only read again. */
export const lock = async () => told(await call("POST", "/session/lock"));
