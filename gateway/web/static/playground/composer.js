// Where a message is written. Enter sends it, Shift+Enter is a line break, Escape stops an answer.
import { html, useLayoutEffect, useRef } from "../common/ui.js";

export function Composer({ draft, setDraft, busy, send, stop, children }) {
  const field = useRef(null);
  useLayoutEffect(() => {
    field.current.style.height = "auto";
    field.current.style.height = `${Math.min(field.current.scrollHeight + 2, 240)}px`;
  }, [draft]);
  const submit = () => {
    if (busy || !draft.trim()) return;
    send(draft);
    setDraft("");
  };
  const keys = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  };
  return html`
    <form class="composer" onSubmit=${(event) => (event.preventDefault(), submit())}>
      <textarea
        ref=${field}
        rows="1"
        aria-label="Message"
        placeholder="Ask something"
        dir="auto"
        value=${draft}
        onInput=${(event) => setDraft(event.target.value)}
        onKeyDown=${keys}
      ></textarea>
      <div class="row">
        ${children}
        ${busy
          ? html`<button type="button" class="primary stop" onClick=${(event) => event.detail < 2 && stop() /* the second click of two was meant for Send */}>Stop <kbd>Esc</kbd></button>`
          : html`<button class="primary" disabled=${!draft.trim()}>Send</button>`}
      </div>
    </form>
  `;
}
