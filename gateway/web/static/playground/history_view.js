// The chats that this browser keeps: search, open, delete, export and import.
import { html, useRef, useState } from "../common/ui.js";
import { read, save } from "./chat_file.js";
import { title } from "./tree.js";

/** `close` hides the list where the window is too narrow for both. */
export function HistoryView({ state, search, close }) {
  const [words, setWords] = useState("");
  const wanted = words.trim().toLowerCase();
  const found = state.list.filter((chat) => !wanted || said(chat).includes(wanted));
  return html`
    <section class="history" aria-label="Chats">
      <button type="button" class="new" onClick=${() => (state.create(), close())}>New chat</button>
      <input ref=${search} type="search" aria-label="Search chats" placeholder="Search" value=${words} onInput=${(event) => setWords(event.target.value)} />
      <ul>
        ${found.map(
          (chat) => html`
            <li key=${chat.id}>
              <button type="button" class="plain open" aria-current=${chat.id === state.chat.id ? "true" : null} onClick=${() => (state.open(chat), close())}>${title(chat)}</button>
              <button type="button" class="plain" aria-label=${`Delete ${title(chat)}`} onClick=${() => confirm(`Delete "${title(chat)}"?`) && state.removeChat(chat.id)}>×</button>
            </li>
          `,
        )}
      </ul>
      ${!state.keeps && html`<p class="hint" role="status">This browser keeps no chats: they go when the page does.</p>`}
      ${state.keeps && !state.keepsPictures && html`<p class="hint" role="status">This browser has no room for more pictures: the latest go when the page does.</p>`}
      <${Files} state=${state} />
    </section>
  `;
}

const said = (chat) =>
  [title(chat), chat.system, ...Object.values(chat.nodes).map((node) => node.content)].join("\n").toLowerCase();

function Files({ state }) {
  const input = useRef(null);
  const load = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    try {
      state.insert(read(await file.text()));
    } catch (error) {
      state.fail(`${file.name} can't be imported: ${error.message}`);
    }
  };
  return html`
    <div class="row">
      <button type="button" class="small" onClick=${() => save(state.chat).catch((error) => state.fail(error.message))}>Export</button>
      <button type="button" class="small" onClick=${() => input.current.click()}>Import</button>
      <input ref=${input} type="file" accept="application/json,.json" aria-label="File to import" hidden onChange=${load} />
    </div>
  `;
}
