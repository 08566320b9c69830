// Text as the model reads it: its tokens, and what the chat template makes of a message.
import { html, useEffect, useState } from "../common/ui.js";
import { call } from "../common/api.js";

const AFTER = 250; // milliseconds without a change
const COLOURS = 6; // classes of the style sheet

export function TokenizerView({ server }) {
  const [text, setText] = useState("Hello, world! Größe 日本語 👋");
  const [templated, setTemplated] = useState(false);
  const { spans, whole, error } = useTokens(server, text, templated);
  const words = `${spans.length} tokens, ${[...text].length} characters, ${new TextEncoder().encode(text).length} bytes`;
  return html`
    <section class="work" aria-label="Tokens">
      <label class="field wide">${templated ? "A user's message" : "Text"}
        <textarea class="document" rows="6" spellcheck=${false} value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
      </label>
      <div class="row">
        <button type="button" class="small" aria-pressed=${String(!templated)} onClick=${() => setTemplated(false)}>Text</button>
        <button type="button" class="small" aria-pressed=${String(templated)} onClick=${() => setTemplated(true)}>Chat template</button>
        <span role="status">${words}</span>
      </div>
      ${error && html`<p class="error" role="alert">${error}</p>`}
      <ol class="pieces" aria-label="Tokens">
        ${spans.map(
          (span, index) => html`<li key=${index} class=${`piece c${index % COLOURS}`} title=${`id ${span.id}, bytes ${span.start} to ${span.stop}`}><span>${visible(span.text)}</span><small>${span.id}</small></li>`,
        )}
      </ol>
      ${whole && html`<h2>What the model is given</h2><pre class="templated" tabindex="0" aria-label="The prompt"><code>${whole}</code></pre>`}
    </section>
  `;
}

const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "·");

function useTokens(server, text, templated) {
  const [found, setFound] = useState({ spans: [], whole: "", error: null });
  useEffect(() => {
    if (!server.model) return undefined;
    if (!text) return setFound({ spans: [], whole: "", error: null });
    const aborting = new AbortController();
    const ask = templated ? ofChat : ofText;
    const timer = setTimeout(
      () => ask(server.model, text, aborting.signal).then(setFound, (problem) => aborting.signal.aborted || setFound({ spans: [], whole: "", error: problem.message })),
      AFTER,
    );
    return () => (clearTimeout(timer), aborting.abort());
  }, [server.model, text, templated]);
  return found;
}

async function ofText(_, text, signal) {
  return { spans: await call("tokenize", { inputs: text }, signal), whole: "", error: null };
}

async function ofChat(model, text, signal) {
  const answer = await call("chat_tokenize", { model, messages: [{ role: "user", content: text }] }, signal);
  return { spans: answer.tokenize_response, whole: answer.templated_text, error: null };
}
