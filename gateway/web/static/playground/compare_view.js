// Two columns: one prompt, one seed, two settings.
import { html, useEffect, useRef, useState } from "../common/ui.js";
import { Announcer } from "./announcer.js";
import { Figures } from "./figures.js";
import { oncePerFrame } from "./frames.js";
import { generateChat } from "./generation.js";
import { Markdown } from "./markdown.js";
import { NumberInput } from "./number_input.js";
import { Reasoning } from "./reasoning.js";
import { randomSeed, requestFields } from "./settings.js";
import { SettingsView } from "./settings_view.js";
import { recall, remember } from "./store.js";

const COMPARED = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens"];
const SIDES = ["A", "B"];

export function CompareView({ server, settings }) {
  const [prompt, setPrompt] = useState(() => recall("compared", "Name a colour, and say why."));
  const [system, setSystem] = useState("");
  const [seed, setSeed] = useState(randomSeed);
  const [started, start] = useState(null); // what both sides answer: {seed, messages, round}
  const [stops, stop] = useState(0);
  useEffect(() => remember("compared", prompt), [prompt]);
  const listed = [...(system.trim() ? [{ role: "system", content: system }] : []), { role: "user", content: prompt }];
  const run = () => start((before) => ({ seed: seed ?? 0, messages: listed, round: (before?.round ?? 0) + 1 }));
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && prompt.trim()) run();
    if (event.key === "Escape") stop(stops + 1);
  };
  return html`
    <div class="compare" onKeyDown=${keys}>
      <div class="asked">
        <label class="field wide">System prompt<textarea rows="2" value=${system} placeholder="none" onInput=${(event) => setSystem(event.target.value)}></textarea></label>
        <label class="field wide">Message<textarea rows="2" value=${prompt} onInput=${(event) => setPrompt(event.target.value)}></textarea></label>
        <div class="row">
          <button type="button" class="primary" disabled=${!prompt.trim()} onClick=${run}>Run both <kbd>Ctrl ⏎</kbd></button>
          <button type="button" onClick=${() => stop(stops + 1)}>Stop</button>
          <label>Seed <${NumberInput} whole class="seed" placeholder="0" value=${seed} set=${setSeed} /></label>
          <button type="button" class="small" onClick=${() => setSeed(randomSeed())}>Another seed</button>
        </div>
      </div>
      <div class="sides">${SIDES.map((side) => html`<${Side} key=${side} side=${side} server=${server} shared=${settings} started=${started} stops=${stops} />`)}</div>
    </div>
  `;
}

/** One column: values of its own over the `shared` settings, and its answer to what is `started`. */
function Side({ side, server, shared, started, stops }) {
  const name = `side${side}`;
  const [own, setOwn] = useState(() => recall(name, { values: { temperature: side === "A" ? 0 : 1 } }));
  const [answer, setAnswer] = useState(null);
  const [running, setRunning] = useState(false);
  const [error, setError] = useState(null);
  const controller = useRef(null);
  useEffect(() => remember(name, own), [own]);
  useEffect(() => () => controller.current?.abort(), []);
  useEffect(() => controller.current?.abort(), [stops]);
  useEffect(() => {
    if (!started) return;
    controller.current?.abort();
    const aborting = (controller.current = new AbortController());
    const update = oncePerFrame((made) => controller.current === aborting && setAnswer(made));
    setAnswer({ content: "", reasoning: "", stats: {} });
    setError(null);
    setRunning(true);
    const fields = () => ({ ...requestFields({ ...shared, values: { ...shared.values, ...own.values } }, "chat"), seed: started.seed });
    Promise.resolve()
      .then(() => generateChat({ model: server.model, messages: started.messages, ...fields() }, aborting.signal, update.later))
      .catch((problem) => controller.current === aborting && setError(problem.message))
      .then(() => (update.flush(), controller.current === aborting && setRunning(false)));
  }, [started]);
  return html`
    <section class="side" aria-label=${`Side ${side}`}>
      <details open><summary>Settings ${side}</summary>
        <${SettingsView} id=${name} server=${server} settings=${own} setSettings=${setOwn} kind="chat" only=${COMPARED} title=${`Settings ${side}`} />
      </details>
      <div class="answer">
        ${error && html`<p class="error" role="alert">${error}</p>`}
        <${Reasoning} text=${answer?.reasoning} grows=${running && !answer?.content} />
        ${answer && html`<${Markdown} text=${answer.content} /><${Announcer} text=${answer.content} over=${!running} /><${Figures} stats=${answer.stats} />`}
        ${!answer && html`<p class="hint">The answer comes here.</p>`}
      </div>
    </section>
  `;
}
