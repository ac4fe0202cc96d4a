/** One message's value: its bytes, and what is shown of them.
 *
 *  A value is shown as its publisher meant it, as far as that shows: JSON with its structure, other text as it is,
 *  and what is no text in hex. It is set as text and never run. Nothing here asks the service.
 */

const LONG_LINES = 12;
const LONG_CHARACTERS = 1200;
const ROW = 16;

/** The bytes of a message (`ShownMessage` of the API): of a cut one its first. */
export function bytesOf({ value, value_base64: binary }) {
  if (binary === undefined) return new TextEncoder().encode(value);
  return Uint8Array.from(atob(binary), (letter) => letter.charCodeAt(0));
}

/** How many bytes of the message are not here. */
export const lacking = (message) => message.size_bytes - bytesOf(message).length;

/** The value as `text`, and what `kind` it is: "JSON", "text" or "binary". */
export function readable(message) {
  const { value, value_base64: binary } = message;
  if (binary !== undefined) return { text: hex(bytesOf(message)), kind: "binary" };
  if (/^\s*[[{]/.test(value) && !lacking(message)) {
    try {
      const read = JSON.parse(value);
      // Numbers beyond those of JavaScript and names that come twice would be changed: then as it is.
      const same = JSON.stringify(read) === value.replace(/("(?:[^"\\]|\\.)*")|\s+/g, "$1");
      return { text: same ? JSON.stringify(read, null, 2) : value, kind: "JSON" };
    } catch {
      // It only begins like JSON.
    }
  }
  return { text: value, kind: "text" };
}

/** Bytes in hex, 16 in a line: where it begins, the bytes, and those that are ASCII. */
export function hex(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += ROW) {
    const row = [...bytes.subarray(at, at + ROW)];
    const numbers = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const shown = row.map((byte) => byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·").join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${numbers.padEnd(3 * Math.min(ROW, bytes.length) - 1)}  ${shown}`);
  }
  return lines.join("\n");
}

/** Whether a text needs more room than a list has for one message. */
export const isLong = (text) => text.length > LONG_CHARACTERS || text.split("\n", LONG_LINES + 1).length > LONG_LINES;

/** The name of a file for the value. */
export function fileName(queue, partition, message) {
  const ending = { JSON: "json", text: "txt", binary: "bin" }[readable(message).kind];
  return `${queue}-${partition}-${message.position}.${ending}`;
}
