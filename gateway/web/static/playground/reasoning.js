// What a model thought before its answer, folded.
import { html } from "../common/ui.js";

/** `text` is shown as it is written; `grows` while the answer has not begun. */
export function Reasoning({ text, grows }) {
  if (!text) return null;
  return html`
    <details class="reasoning">
      <summary>${grows ? "Thinking…" : "Thoughts"}</summary>
      <div class="thought" dir="auto">${text}</div>
    </details>
  `;
}
