// What is now, in large numbers.
import { html } from "../common/ui.js";
import { NONE, UNITS, several, whole, worded } from "./format.js";

const CALM = 5; // seconds that a rate is the mean of, so that it can be read
const LONG_STEP = 10; // seconds without a sign of a step loop that look wrong
const FULL = 0.95; // share of pages that is nearly all

/** The tiles of the newest sample. */
export function Tiles({ samples }) {
  const last = samples.last ?? { replicas: [] };
  const recent = samples.recent(CALM);
  return html`<dl class="tiles">${tiles(last, recent).map((tile) => html`<${Tile} key=${tile.title} ...${tile} />`)}</dl>`;
}

function Tile({ title, unit, value, more, tone }) {
  const [number, name] = value == null ? [NONE, ""] : UNITS[unit](value);
  return html`<div class="panel tile ${tone ?? ""}" data-title=${title}>
    <dt>${title}</dt>
    <dd><span class="number">${number}<small>${name}</small></span><span class="more">${more}</span></dd>
  </div>`;
}

function tiles(last, recent) {
  const used = last.pages_total ? last.pages_used / last.pages_total : null;
  const age = last.step_age_seconds;
  return [
    rate("Requests", last.requests, recent, "requests_per_second"),
    rate("Tokens out", last.generated_tokens, recent, "generated_tokens_per_second"),
    rate("Tokens in", last.prompt_tokens, recent, "prompt_tokens_per_second"),
    { title: "Running", unit: "count", value: last.running, more: `${whole(last.answered)} answered` },
    { title: "Waiting", unit: "count", value: last.waiting, more: `queue p95 ${second(last.queue_seconds?.[1])}` },
    {
      title: "Rejected",
      unit: "count",
      value: last.rejected,
      more: `${whole(last.failed)} failed · ${whole(last.invalid)} invalid`,
      tone: grown(recent, "rejected") ? "warn" : "",
    },
    latency("First token", last.first_token_seconds),
    latency("Between tokens", last.inter_token_seconds),
    latency("Step", last.step_seconds),
    {
      title: "KV cache",
      unit: "share",
      value: used,
      more: `${whole(last.pages_used)} + ${whole(last.pages_cached)} cached of ${whole(last.pages_total)}`,
      tone: used > FULL ? "warn" : "",
    },
    { title: "Prefix hits", unit: "share", value: last.prefix_hits, more: several(last.cached_tokens, "token") },
    {
      title: "Last step",
      unit: "seconds",
      value: age,
      more: `${several(last.restarts, "restart")} · ${several(last.compiles, "compile")}`,
      tone: age > LONG_STEP ? "bad" : "",
    },
  ];
}

function rate(title, total, recent, field) {
  const known = recent.map((sample) => sample[field]).filter((value) => value != null);
  const value = known.length ? known.reduce((sum, each) => sum + each, 0) / known.length : null;
  return { title, unit: "perSecond", value, more: `${whole(total)} in all` };
}

function latency(title, percentiles) {
  const [median, high, highest] = percentiles ?? [];
  return { title, unit: "seconds", value: median, more: `p95\u00a0${second(high)} · p99\u00a0${second(highest)}` };
}

function second(value) {
  return worded("seconds", value);
}

function grown(recent, field) {
  return recent.length > 1 && recent[recent.length - 1][field] > recent[0][field];
}
