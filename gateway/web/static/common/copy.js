// A button that copies. Pages served over plain HTTP from another host have no clipboard API, so there is an older way.
import { html, useEffect, useState } from "./ui.js";

export const COPIED = 1500; // milliseconds that a button says so

/** Put `text` into the clipboard. */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  const before = document.activeElement;
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  before?.focus();
  return done ? undefined : Promise.reject(new Error("this browser lets no page copy"));
}

/** `text` gives what is copied. */
export function CopyButton({ text, plain }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    const timer = copied && setTimeout(() => setCopied(false), COPIED);
    return () => clearTimeout(timer);
  }, [copied]);
  const click = () => copy(text()).then(() => setCopied(true), () => {});
  return html`<button type="button" class=${plain ? "plain" : "small copy"} onClick=${click}>${copied ? "Copied" : "Copy"}</button>`;
}
