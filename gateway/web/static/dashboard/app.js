// The page as a whole.
import { Frame } from "../common/frame.js";
import { html } from "../common/ui.js";
import { Chart } from "./chart.js";
import { Happenings } from "./happenings.js";
import { PANELS } from "./panels.js";
import { Replicas } from "./replicas.js";
import { Tiles } from "./tiles.js";
import { clock } from "./format.js";

const SPANS = [
  [60, "1 min"],
  [180, "3 min"],
  [600, "10 min"],
];
const STATES = {
  connecting: ["", "Connecting"],
  live: ["good", "Live"],
  late: ["warn", "No news"],
  broken: ["bad", "Reconnecting"],
};

/** What `view` says of `samples`; `show` changes it. */
export function App({ samples, view, show }) {
  const old = view.state === "broken" || view.state === "late";
  return html`<${Frame} name="dashboard" model=${view.model} aside=${html`<${State} view=${view} />`}>
    <div class="board ${old ? "old" : ""}">
      <h1 class="unseen">Dashboard</h1>
      <${Tiles} samples=${samples} />
      <${Tools} samples=${samples} view=${view} show=${show} />
      <section class="charts" aria-labelledby="charts-title">
        <h2 id="charts-title" class="unseen">Charts</h2>
        ${PANELS.map(
          (panel) => html`<${Chart}
            key=${panel.title}
            panel=${panel}
            samples=${samples.list}
            version=${samples.version}
            seconds=${view.seconds}
            hovered=${view.hovered}
            tables=${view.tables}
            show=${show}
          />`,
        )}
      </section>
      <div class="below">
        <${Replicas} samples=${samples} />
        <${Happenings} samples=${samples} />
      </div>
    </div>
  <//>`;
}

/** The state of the connection; read aloud when it changes, which samples do not. */
function State({ view }) {
  const [tone, word] = STATES[view.state];
  return html`<span class="badge state ${tone}" role="status" title=${view.problem}>
    ${word}<span class="unseen">${view.problem && `: ${view.problem}`}</span>
  </span>`;
}

function Tools({ samples, view, show }) {
  const hovered = samples.list[view.hovered];
  const time = hovered ? clock(hovered.time) : samples.last ? clock(samples.last.time) : "";
  return html`<div class="tools">
    <div role="group" aria-label="Time shown" class="spans">
      ${SPANS.map(
        ([seconds, word]) => html`<button
          key=${seconds}
          aria-pressed=${view.seconds === seconds}
          onClick=${() => show({ seconds })}
        >${word}</button>`,
      )}
    </div>
    <button aria-pressed=${view.tables} onClick=${() => show({ tables: !view.tables })}>Tables</button>
    <span class="problem">${view.problem}</span>
    <span class="time">${hovered ? "at " : ""}${time}</span>
  </div>`;
}
