// The chats that this browser keeps: search, open, delete, export and import.
import { html, useRef, useState } from "../common/ui.js";
import { fromMessages, messages, title } from "./tree.js";

export function HistoryView({ state, search }) {
  const [words, setWords] = useState("");
  const wanted = words.trim().toLowerCase();
  const found = state.chats.filter((chat) => !wanted || said(chat).includes(wanted));
  return html`
    <section class="history" aria-label="Chats">
      <button type="button" class="new" onClick=${state.create}>New chat</button>
      <input ref=${search} type="search" aria-label="Search chats" placeholder="Search" value=${words} onInput=${(event) => setWords(event.target.value)} />
      <ul>
        ${found.map(
          (chat) => html`
            <li key=${chat.id}>
              <button type="button" class="plain open" aria-current=${chat.id === state.chat.id ? "true" : null} onClick=${() => state.open(chat)}>${title(chat)}</button>
              <button type="button" class="plain" aria-label=${`Delete ${title(chat)}`} onClick=${() => state.remove(chat.id)}>×</button>
            </li>
          `,
        )}
      </ul>
      <${Files} state=${state} />
    </section>
  `;
}

const said = (chat) =>
  [title(chat), chat.system, ...Object.values(chat.nodes).map((node) => node.content)].join("\n").toLowerCase();

function Files({ state }) {
  const input = useRef(null);
  const read = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    try {
      await state.add(chatOf(JSON.parse(await file.text())));
    } catch (error) {
      state.setError(`${file.name} can't be imported: ${error.message}`);
    }
  };
  return html`
    <div class="row">
      <button type="button" class="small" onClick=${() => save(state.chat)}>Export</button>
      <button type="button" class="small" onClick=${() => input.current.click()}>Import</button>
      <input ref=${input} type="file" accept="application/json,.json" aria-label="File to import" hidden onChange=${read} />
    </div>
  `;
}

/** Save a chat: the shown messages as OpenAI's, and beside them all branches, which other programs pass over. */
function save(chat) {
  const content = JSON.stringify({ messages: messages(chat), branches: chat }, null, 2);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: "application/json" }));
  link.download = `${title(chat).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** The chat in a file: one of ours, a list of OpenAI's messages, or an object that has one. Raises Error. */
function chatOf(content) {
  const list = Array.isArray(content) ? content : content?.messages;
  if (!Array.isArray(list)) throw new Error("it holds no list of messages");
  const branches = content.branches;
  const fresh = fromMessages(list);
  return branches?.nodes && isTree(branches) ? { ...fresh, ...branches, id: fresh.id, updated: Date.now() } : fresh;
}

function isTree({ nodes, leaf }) {
  const whole = (node) => typeof node?.content === "string" && ["user", "assistant", "tool"].includes(node.role);
  const ordered = ([id, node]) => node.id === id && (node.parent === null || (node.parent in nodes && Number(node.parent) < Number(id)));
  return Object.values(nodes).every(whole) && Object.entries(nodes).every(ordered) && (leaf === null || leaf in nodes);
}
