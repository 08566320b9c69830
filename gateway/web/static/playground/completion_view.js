// Raw text, with no template around it: a prompt, and the tokens that follow with their probabilities.
import { html, useEffect, useRef, useState } from "../common/ui.js";
import { call } from "../common/api.js";
import { ContextMeter, Figures } from "./figures.js";
import { oncePerFrame } from "./frames.js";
import { generateText } from "./generation.js";
import { requestFields } from "./settings.js";
import { SettingsView } from "./settings_view.js";
import { SnippetsButton } from "./snippets_view.js";
import { recall, remember } from "./store.js";
import { TokenMap } from "./token_map.js";

const ALTERNATIVES = 5;
const EMPTY = { kept: [], tokens: [], stats: null, before: [] };

export function CompletionView({ server, settings, setSettings }) {
  const [prompt, setPrompt] = useState(() => recall("prompt", "The three laws of robotics are"));
  const run = useCompletion(server, settings);
  useEffect(() => remember("prompt", prompt), [prompt]);
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run.start(prompt, []);
    if (event.key === "Escape") run.stop();
  };
  const tokens = [...run.shown.kept, ...run.shown.tokens];
  const choose = run.running ? undefined : (index, text) => run.start(run.prompt, [...tokens.slice(0, index), other(tokens[index], text)]);
  const goOn = () => run.start(run.prompt, tokens);
  return html`
    <div class="columns" onKeyDown=${keys}>
      <section class="work" aria-label="Completion">
        <label class="field wide">Text to continue
          <textarea class="document" rows="7" spellcheck=${false} value=${prompt} onInput=${(event) => setPrompt(event.target.value)}></textarea>
        </label>
        <div class="row">
          ${run.running
            ? html`<button type="button" class="primary stop" onClick=${run.stop}>Stop <kbd>Esc</kbd></button>`
            : html`<button type="button" class="primary" disabled=${!prompt} onClick=${() => run.start(prompt, [])}>Complete <kbd>Ctrl ⏎</kbd></button>`}
          <button type="button" disabled=${run.running || !tokens.length} onClick=${goOn}>Continue</button>
          <button type="button" disabled=${run.running || !tokens.length} onClick=${() => (setPrompt(run.prompt + joined(tokens)), run.clear())}>Take into the text</button>
          <${SnippetsButton} body=${() => textBody(server, settings, prompt)} kind="text" />
          <${ContextMeter} used=${run.shown.stats?.total ?? null} context=${server.context} />
        </div>
        ${run.error && html`<p class="error" role="alert">${run.error}</p>`}
        ${(tokens.length > 0 || run.shown.before.length > 0) && html`<${TokenMap} before=${run.shown.before} tokens=${tokens} choose=${choose} />`}
        <${Figures} stats=${run.shown.stats} />
        ${tokens.length > 0 && html`<p class="hint">Warm tokens were unlikely. Point at one, or go there with the arrow keys, to see what else it might have been; choose one to go on from there. Shaded is what the prefix cache had.</p>`}
      </section>
      <aside class="pane right"><${SettingsView} server=${server} settings=${settings} setSettings=${setSettings} kind="text" /></aside>
    </div>
  `;
}

const joined = (tokens) => tokens.map(({ text }) => text).join("");
const other = (token, text) => ({ ...token, token: text, text, logprob: token.alternatives.find(([each]) => each === text)[1] });
const textBody = (server, settings, prompt) => ({ model: server.model, prompt, ...requestFields(settings, "text"), logprobs: ALTERNATIVES });

/** A completion: `start` asks for what follows `prompt` and the tokens that are kept; `shown` is what there is so far. */
function useCompletion(server, settings) {
  const [shown, setShown] = useState(EMPTY);
  const [running, setRunning] = useState(false);
  const [error, setError] = useState(null);
  const [asked, setAsked] = useState("");
  const controller = useRef(null);
  useEffect(() => () => controller.current?.abort(), []);
  const start = async (prompt, kept) => {
    controller.current?.abort();
    const aborting = (controller.current = new AbortController());
    const own = (change) => controller.current === aborting && change();
    const update = oncePerFrame(({ tokens, stats }) => own(() => setShown((before) => ({ ...before, kept, tokens, stats }))));
    setAsked(prompt);
    setRunning(true);
    setError(null);
    setShown((before) => ({ ...EMPTY, kept, before: kept.length ? before.before : [] }));
    try {
      const { stats } = await generateText(textBody(server, settings, prompt + joined(kept)), aborting.signal, update.later);
      update.flush();
      const before = await promptTokens(server, prompt, stats.cached ?? 0, aborting.signal);
      own(() => setShown((now) => ({ ...now, before })));
    } catch (problem) {
      update.flush();
      own(() => aborting.signal.aborted || setError(problem.message));
    }
    own(() => setRunning(false));
  };
  return { shown, running, error, prompt: asked, start, stop: () => controller.current?.abort(), clear: () => setShown(EMPTY) };
}

/** The prompt's tokens, the first `cached` of which were in the prefix cache. */
async function promptTokens(server, prompt, cached, signal) {
  const spans = await call("tokenize", { inputs: prompt }, signal);
  return spans.map(({ text }, index) => ({ text, cached: index < cached }));
}
