// The API key: asked once, kept by this tab alone, sent as a header and never in a URL.
import { html, useEffect, useRef, useState } from "./ui.js";

const NAME = "api-key";
let memory = null; // where the browser refuses storage
const listeners = new Set();

/** The key of this tab; null without one. */
export function key() {
  try {
    return sessionStorage.getItem(NAME) ?? memory;
  } catch {
    return memory;
  }
}

export function keep(value) {
  memory = value;
  try {
    value === null ? sessionStorage.removeItem(NAME) : sessionStorage.setItem(NAME, value);
  } catch {
    // it is in memory
  }
}

let asked = null; // a promise while the dialog is open, so that many refused calls ask once
let pending = null; // what resolves it, for a dialog that is not there yet

/** Ask the user for a key, because the server refused the one that was sent; resolves when one is given. */
export function askForKey() {
  asked ??= new Promise((resolve) => {
    pending = resolve;
    for (const listener of listeners) listener(resolve);
  }).finally(() => (asked = pending = null));
  return asked;
}

/** The dialog that `askForKey` opens. One a page. */
export function KeyDialog() {
  const dialog = useRef(null);
  const input = useRef(null);
  const [answer, setAnswer] = useState(null);
  const [refused, setRefused] = useState(false);
  useEffect(() => {
    const open = (resolve) => setAnswer(() => resolve);
    listeners.add(open);
    if (pending) open(pending);
    return () => listeners.delete(open);
  }, []);
  useEffect(() => {
    if (answer && !dialog.current.open) dialog.current.showModal();
  }, [answer]);
  const submit = (event) => {
    event.preventDefault();
    keep(input.current.value.trim());
    input.current.value = "";
    setRefused(true); // if it is asked for again
    dialog.current.close();
    setAnswer(null);
    answer?.();
  };
  return html`
    <dialog ref=${dialog} class="key" aria-labelledby="key-title" onCancel=${(event) => event.preventDefault()}>
      <form onSubmit=${submit}>
        <h2 id="key-title">API key</h2>
        ${refused && html`<p class="error" role="alert">The server refused that key.</p>`}
        <p>This server asks for a key. It stays in this tab until you close it.</p>
        <input ref=${input} type="password" aria-label="API key" autocomplete="off" spellcheck=${false} required />
        <button class="primary">Continue</button>
      </form>
    </dialog>
  `;
}
