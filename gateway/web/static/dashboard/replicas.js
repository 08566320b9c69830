// A lane for each engine.
import { html } from "../common/ui.js";
import { whole, worded } from "./format.js";

const POINTS = 120; // of a lane's line
const TONES = { ready: "good", draining: "warn", starting: "warn", lost: "bad" };
const HEADS = ["Replica", "State", "Running", "Waiting", "KV cache", "Tokens out", "In", "Last step", "Restarts"];

/** The newest sample of each engine, and the tokens that it has written in the time that is shown. */
export function Replicas({ samples }) {
  const replicas = samples.last?.replicas ?? [];
  return html`<section class="panel lanes" aria-labelledby="lanes-title">
    <h2 id="lanes-title">Replicas</h2>
    <div class="scroll" role="group" aria-label="Table of replicas" tabindex="0">
      <table>
        <thead><tr>${HEADS.map((head) => html`<th key=${head} scope="col">${head}</th>`)}</tr></thead>
        <tbody>
          ${replicas.map((each) => html`<${Lane} key=${each.index} now=${each} list=${samples.list} />`)}
        </tbody>
      </table>
    </div>
  </section>`;
}

function Lane({ now, list }) {
  const state = now.state ?? "unknown";
  return html`<tr data-replica=${now.index}>
    <th scope="row">${now.index}</th>
    <td><span class="badge ${TONES[state] ?? ""}">${state}</span></td>
    <td>${whole(now.running)}</td>
    <td>${whole(now.waiting)}</td>
    <td><${Pages} now=${now} /></td>
    <td>
      <span class="beside">
        <${Line} values=${list.map((sample) => sample.replicas[now.index]?.generated_tokens_per_second ?? null)} />
        <b>${worded("perSecond", now.generated_tokens_per_second)}</b>
      </span>
    </td>
    <td>${worded("perSecond", now.prompt_tokens_per_second)}</td>
    <td>${worded("seconds", now.step_age_seconds)}</td>
    <td>${whole(now.restarts)}</td>
  </tr>`;
}

function Pages({ now }) {
  const share = (pages) => (now.pages_total ? pages / now.pages_total : 0);
  const [used, cached] = [share(now.pages_used), share(now.pages_cached)];
  return html`<span class="beside">
    <span class="gauge" aria-hidden="true" style=${{ "--used": used, "--cached": cached }}></span>
    <b>${worded("share", used)}</b>
  </span>`;
}

/** A small line of values, for the eye only: the charts and their tables say it in numbers. */
function Line({ values }) {
  const coarse = thinned(values);
  const most = Math.max(1, ...coarse);
  const points = coarse.map((value, index) => `${index} ${(22 - (20 * value) / most).toFixed(1)}`);
  const path = points.length > 1 ? `M${points.join("L")}` : "";
  return html`<svg class="line" viewBox="0 0 ${POINTS - 1} 24" preserveAspectRatio="none" aria-hidden="true">
    <path d=${path && `${path}V24H0Z`} class="under" /><path d=${path} />
  </svg>`;
}

/** As many points, the newest at the right: each the mean of its samples, 0 for none. */
function thinned(values) {
  const each = 5;
  const padded = [...Array(Math.max(0, POINTS * each - values.length)).fill(null), ...values.slice(-POINTS * each)];
  return Array.from({ length: POINTS }, (_, index) => {
    const some = padded.slice(index * each, (index + 1) * each);
    return some.reduce((sum, value) => sum + (value ?? 0), 0) / each;
  });
}
