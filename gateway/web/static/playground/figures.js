// The figures of an answer, and how much of the context is used.
import { html } from "../common/ui.js";

const ENDS = {
  stop: "ended by itself",
  length: "reached max tokens",
  tool_calls: "calls a tool",
  stopped: "stopped by you",
  broke: "broke off",
};

/** What an answer took: `stats` as `generation.js` counts. */
export function Figures({ stats }) {
  if (!stats?.tokens && !stats?.finish) return null;
  const parts = [
    stats.ttft !== undefined && ["first token", `${Math.round(stats.ttft)} ms`],
    stats.rate && ["speed", `${stats.rate.toFixed(stats.rate < 10 ? 1 : 0)} tok/s`],
    stats.tokens !== undefined && ["answer", `${stats.tokens} tokens`],
    stats.prompt !== undefined && ["prompt", `${stats.prompt} tokens${stats.cached ? `, ${stats.cached} cached` : ""}`],
    stats.finish && ["end", ENDS[stats.finish] ?? stats.finish],
  ].filter(Boolean);
  return html`<dl class="figures">${parts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** `used` of `context` tokens; nothing while either is unknown. */
export function ContextMeter({ used, context }) {
  if (!context || used === null) return null;
  const words = `${used.toLocaleString()} of ${context.toLocaleString()} tokens of context`;
  return html`
    <div class="context" title=${words}>
      <meter min="0" max=${context} high=${context * 0.8} value=${used} aria-label="Context used">${words}</meter>
      <span>${used.toLocaleString()} / ${context.toLocaleString()}</span>
    </div>
  `;
}
