// The playground: which view is shown, and what all views know of the server.
import { html, render, useEffect, useRef, useState } from "../common/ui.js";
import { call } from "../common/api.js";
import { Frame } from "../common/frame.js";
import { ChatView } from "./chat_view.js";
import { CompareView } from "./compare_view.js";
import { CompletionView } from "./completion_view.js";
import { ranges } from "./fields.js";
import { sightOf } from "./pictures.js";
import { DEFAULTS } from "./settings.js";
import { recall, remember } from "./store.js";
import { TokenizerView } from "./tokenizer_view.js";

const VIEWS = [
  ["chat", "Chat", ChatView],
  ["completion", "Completion", CompletionView],
  ["compare", "Compare", CompareView],
  ["tokens", "Tokens", TokenizerView],
];

function Playground() {
  const server = useServer();
  const [view, setView] = useState(() => viewOf(location.hash));
  const [settings, setSettings] = useRemembered("settings", DEFAULTS);
  useEffect(() => {
    const follow = () => setView(viewOf(location.hash));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  const seen = useRef(new Set()); // views stay as they were left: drafts, and answers that are being made
  seen.current.add(view);
  const tabs = VIEWS.map(
    ([name, title]) => html`<a key=${name} href=${`#${name}`} aria-current=${name === view ? "true" : null}>${title}</a>`,
  );
  return html`
    <${Frame} name="playground" model=${modelChoice(server)}>
      <nav class="tabs" aria-label="Views">${tabs}</nav>
      ${server.error && html`<p class="error" role="alert">${server.error} <button type="button" class="small" onClick=${server.learn}>Ask again</button></p>`}
      ${VIEWS.filter(([name]) => seen.current.has(name)).map(
        ([name, , View]) => html`
          <div key=${name} class="view" hidden=${name !== view}>
            <${View} server=${server} settings=${settings} setSettings=${setSettings} active=${name === view} />
          </div>
        `,
      )}
    <//>
  `;
}

const viewOf = (hash) => (VIEWS.some(([name]) => `#${name}` === hash) ? hash.slice(1) : "chat");

const AGAIN_AFTER = 3000; // milliseconds behind a failure, as while the model loads

/** What is known of the server: {models, model, choose, context, ranges, sight, error, learn}. A server that loads is asked again. */
function useServer() {
  const [found, setFound] = useState({ models: [], ranges: { chat: {}, text: {} }, sight: null, error: null });
  const [chosen, choose] = useState(null);
  const tell = (part) => setFound((before) => ({ ...before, ...part }));
  const learn = async () => {
    try {
      tell({ models: (await call("v1/models")).data });
      tell({ sight: sightOf(await call("info")) });
      tell({ ranges: await ranges(), error: null });
    } catch (error) {
      tell({ error: error.message });
      if (error.status === 503 || error instanceof TypeError) setTimeout(learn, AGAIN_AFTER);
    }
  };
  useEffect(() => void learn(), []);
  const card = found.models.find((each) => each.id === chosen) ?? found.models[0];
  return { ...found, model: card?.id, context: card?.max_model_len, choose, learn };
}

function modelChoice({ models, model, choose }) {
  if (models.length < 2) return model;
  const options = models.map(({ id }) => html`<option key=${id} value=${id}>${id}</option>`);
  return html`<select aria-label="Model" value=${model} onChange=${(event) => choose(event.target.value)}>${options}</select>`;
}

function useRemembered(name, otherwise) {
  const [value, setValue] = useState(() => ({ ...otherwise, ...recall(name, {}) }));
  useEffect(() => remember(name, value), [value]);
  return [value, setValue];
}

render(html`<${Playground} />`, document.querySelector("#app"));
