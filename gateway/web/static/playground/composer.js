// Where a message is written. Enter sends it, Shift+Enter is a line break, Escape stops an answer.
import { html, useLayoutEffect, useRef } from "../common/ui.js";
import { AttachButton, Attachments } from "./attachments.js";

/** `attached` are the draft's pictures, `sent` those of the chat; `sight` is what the server takes, null if none. */
export function Composer({ draft, setDraft, busy, send, stop, attached, sent, sight, children }) {
  const field = useRef(null);
  useLayoutEffect(() => {
    field.current.style.height = "auto";
    field.current.style.height = `${Math.min(field.current.scrollHeight + 2, 240)}px`;
  }, [draft]);
  const ready = !busy && !attached.reading && (draft.trim() || attached.list.length > 0);
  const submit = () => {
    if (!ready) return;
    send(draft, attached.list);
    setDraft("");
    attached.clear();
  };
  const keys = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  };
  return html`
    <form class="composer" onSubmit=${(event) => (event.preventDefault(), submit())}>
      ${sight && html`<${Attachments} attached=${attached} sight=${sight} sent=${sent} field=${() => field.current} />`}
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
        ${sight && html`<${AttachButton} attached=${attached} sight=${sight} />`}
        ${children}
        ${busy
          ? html`<button type="button" class="primary stop" onClick=${(event) => event.detail < 2 && stop() /* the second click of two was meant for Send */}>Stop <kbd>Esc</kbd></button>`
          : html`<button class="primary" disabled=${!ready}>Send</button>`}
      </div>
    </form>
  `;
}
