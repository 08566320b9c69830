// One message: its text, what was thought before it, calls of tools, figures, and what can be done to it.
import { html, useEffect, useRef, useState } from "../common/ui.js";
import { CopyButton } from "../common/copy.js";
import { Announcer } from "./announcer.js";
import { Figures } from "./figures.js";
import { Markdown } from "./markdown.js";
import { PictureRow } from "./picture_view.js";
import { Reasoning } from "./reasoning.js";

const NAMES = { user: "You", assistant: "Model", tool: "Tool's result" };

/** `alternatives` are the messages in its place, itself among them; `last` whether it is shown last. */
export function MessageView({ node, alternatives, grows, last, busy, actions }) {
  const [editing, setEditing] = useState(false);
  const article = useRef(null);
  const close = () => {
    setEditing(false);
    article.current.focus(); // what had the focus is gone
  };
  const edited = (content, pictures) => {
    close();
    actions.edit(node.id, content, pictures);
  };
  const body = editing
    ? html`<${Editor} node=${node} busy=${busy} save=${edited} cancel=${close} />`
    : html`<${Body} node=${node} grows=${grows} />`;
  return html`
    <article ref=${article} tabindex="-1" class=${`message ${node.role}`} aria-label=${NAMES[node.role]}>
      <h3 class="role">${NAMES[node.role]}</h3>
      ${body}
      ${node.calls?.length > 0 && html`<${Calls} calls=${node.calls} open=${last && !busy} actions=${actions} />`}
      ${node.role === "assistant" && html`<${Announcer} text=${node.content} over=${!grows} />`}
      <footer>
        <${Branches} node=${node} alternatives=${alternatives} busy=${busy} branch=${(id) => actions.branch(id)} />
        ${!editing && html`<${Actions} node=${node} last=${last} busy=${busy} actions=${actions} edit=${() => setEditing(true)} />`}
        ${node.role === "assistant" && html`<${Figures} stats=${node.stats} />`}
      </footer>
    </article>
  `;
}

function Body({ node, grows }) {
  const waits = grows && !node.content && !node.reasoning && !node.calls?.length;
  return html`
    <${Reasoning} text=${node.reasoning} grows=${grows && !node.content} />
    ${waits && html`<p class="waiting" role="status">Waiting for the first token…</p>`}
    <${PictureRow} pictures=${node.pictures} label="Pictures" />
    ${node.role === "assistant" && html`<${Markdown} text=${node.content} />`}
    ${node.role !== "assistant" && (node.content || !node.pictures?.length) && html`<div class="written" dir="auto">${node.content}</div>`}
  `;
}

function Editor({ node, busy, save, cancel }) {
  const field = useRef(null);
  const [pictures, setPictures] = useState(node.pictures ?? []);
  useEffect(() => field.current.focus(), []);
  const done = () => save(field.current.value, pictures);
  const remove = (id) => setPictures(pictures.filter((each) => each.id !== id));
  const keys = (event) => {
    if (event.key === "Escape") cancel();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !busy) done();
    else return;
    event.stopPropagation(); // Escape elsewhere stops the answer
  };
  return html`
    <div class="editor">
      <${PictureRow} pictures=${pictures} label="Pictures to send again" remove=${remove} emptied=${() => field.current} />
      <textarea ref=${field} aria-label="Edited message" rows="4" defaultValue=${node.content} onKeyDown=${keys}></textarea>
      <button type="button" class="primary" disabled=${busy} onClick=${done}>
        ${node.role === "user" ? "Send as a new branch" : "Keep as a new branch"}
      </button>
      <button type="button" onClick=${cancel}>Cancel</button>
    </div>
  `;
}

function Branches({ node, alternatives, busy, branch }) {
  if (alternatives.length < 2) return null;
  const at = alternatives.findIndex((each) => each.id === node.id);
  const go = (step) => branch(alternatives[at + step].id);
  return html`
    <span class="branches" role="group" aria-label="Branches">
      <button type="button" class="plain" aria-label="Earlier branch" disabled=${busy || at === 0} onClick=${() => go(-1)}>‹</button>
      <span>${at + 1} / ${alternatives.length}</span>
      <button type="button" class="plain" aria-label="Later branch" disabled=${busy || at + 1 === alternatives.length} onClick=${() => go(1)}>›</button>
    </span>
  `;
}

function Actions({ node, last, busy, actions, edit }) {
  const assistant = node.role === "assistant";
  const then = (act) => () => (act(), document.querySelector(".composer textarea").focus()); // the button goes
  const remove = then(() => (last || confirm("Delete this message and all that follows it?")) && actions.remove(node.id));
  const goesOn = assistant && last && node.content && !node.calls?.length;
  return html`
    <span class="actions">
      <${CopyButton} text=${() => node.content} plain=${true} />
      <button type="button" class="plain" disabled=${busy} onClick=${edit}>Edit</button>
      ${assistant && html`<button type="button" class="plain" disabled=${busy} onClick=${then(() => actions.regenerate(node.id))}>Regenerate</button>`}
      ${goesOn && html`<button type="button" class="plain" disabled=${busy} onClick=${then(() => actions.resume(node.id))}>Continue</button>`}
      ${!assistant && last && html`<button type="button" class="plain" disabled=${busy} onClick=${then(() => actions.answer(node.id))}>Answer</button>`}
      <button type="button" class="plain" disabled=${busy} onClick=${remove}>Delete</button>
    </span>
  `;
}

/** Calls of tools. Those of the last message take results, with which the model goes on. */
function Calls({ calls, open, actions }) {
  const results = useRef({});
  const submit = (event) => {
    event.preventDefault();
    let id = null;
    for (const call of calls) id = actions.reply(call.id, results.current[call.id] ?? "");
    actions.answer(id);
  };
  return html`
    <form class="calls" onSubmit=${submit}>
      ${calls.map(
        (call) => html`
          <div key=${call.id} class="call">
            <code>${call.function.name}(${call.function.arguments})</code>
            ${open && html`<textarea rows="2" aria-label=${`Result of ${call.function.name}`} placeholder="its result" onInput=${(event) => (results.current[call.id] = event.target.value)}></textarea>`}
          </div>
        `,
      )}
      ${open && html`<button class="primary">Send results</button>`}
    </form>
  `;
}
