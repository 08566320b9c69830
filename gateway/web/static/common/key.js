// The API key: asked once, kept by this tab alone, sent as a header and never in a URL.
import { html, useEffect, useRef, useState } from "./ui.js";

const NAME = "api-key";
const SENDABLE = /^[\x21-\x7e]+$/; // what a header can carry
let memory = null; // where the browser refuses storage

/** The key of this tab; null without one. */
export function key() {
  try {
    return sessionStorage.getItem(NAME) ?? memory;
  } catch {
    return memory;
  }
}

function keep(value) {
  memory = value;
  try {
    sessionStorage.setItem(NAME, value);
  } catch {
    // it is in memory
  }
}

let question = null; // {answered, resolve, reject} while the key is asked for, so that many refused calls ask once
let open = () => {}; // the dialog, once it is there

/**
 * Ask the user for a key, because the server refused the one that was sent, or that there was none. Resolves when one is
 * given. Raises Error if the user closes the dialog.
 */
export function askForKey() {
  if (!question) {
    question = {};
    question.answered = new Promise((resolve, reject) => Object.assign(question, { resolve, reject }));
    open();
  }
  return question.answered;
}

function answer(value) {
  const asked = question;
  question = null;
  if (value === null) return asked?.reject(new Error("The server asks for an API key, and none was given"));
  keep(value);
  return asked?.resolve();
}

/** The dialog that `askForKey` opens. One a page. */
export function KeyDialog() {
  const dialog = useRef(null);
  const input = useRef(null);
  const [problem, setProblem] = useState(null);
  const given = useRef(false);
  useEffect(() => {
    open = () => {
      setProblem(given.current ? "The server refused that key." : null);
      given.current = false;
      dialog.current.showModal();
    };
    if (question) open(); // it was asked for before this was drawn
    return () => (open = () => {});
  }, []);
  const submit = (event) => {
    event.preventDefault();
    const value = input.current.value.trim();
    if (!SENDABLE.test(value)) return setProblem("A key has letters, digits and signs of ASCII only.");
    given.current = true;
    answer(value);
    return dialog.current.close();
  };
  const closed = () => {
    input.current.value = "";
    if (question && !given.current) answer(null);
  };
  return html`
    <dialog ref=${dialog} class="key" aria-labelledby="key-title" onClose=${closed}>
      <form onSubmit=${submit}>
        <h2 id="key-title">API key</h2>
        ${problem && html`<p class="error" role="alert">${problem}</p>`}
        <p>This server asks for a key. It stays in this tab until you close it.</p>
        <input ref=${input} type="password" aria-label="API key" autocomplete="off" spellcheck=${false} required />
        <div class="choices">
          <button class="primary">Continue</button>
          <button type="button" onClick=${() => dialog.current.close()}>Not now</button>
        </div>
      </form>
    </dialog>
  `;
}
