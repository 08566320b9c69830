// What happened lately, found by comparing each sample with the one before.
import { html } from "../common/ui.js";
import { clock, whole } from "./format.js";

const SHOWN = 40;
const TOGETHER = 10; // seconds within which the same thing is one line

// [field, tone, words for one, words for several]
const COUNTERS = [
  ["restarts", "bad", "an engine was restarted", "restarts of engines"],
  ["failed", "bad", "a request failed", "requests failed"],
  ["rejected", "warn", "a request was rejected", "requests were rejected"],
  ["compiles", "warn", "a step function was compiled after the warm-up", "step functions were compiled after the warm-up"],
  ["moves", "", "a request went on on another engine", "requests went on on other engines"],
];

/** A list of what happened, the newest first. */
export function Happenings({ samples }) {
  const found = happenings(samples.list).slice(-SHOWN).reverse();
  return html`<section class="panel happenings" aria-labelledby="happenings-title">
    <h2 id="happenings-title">What happened</h2>
    ${found.length
      ? html`<ol tabindex="0" aria-labelledby="happenings-title">${found.map((each) => html`<${Line} key=${each.key} ...${each} />`)}</ol>`
      : html`<p>Nothing in the last ten minutes: no restart, no rejection, no failure.</p>`}
  </section>`;
}

function Line({ time, tone, text }) {
  return html`<li class=${tone}><time>${clock(time)}</time><span>${text}</span></li>`;
}

function happenings(list) {
  const found = [];
  const known = list.filter((sample) => sample.requests != null);
  for (let index = 1; index < known.length; index++) {
    const [before, after] = [known[index - 1], known[index]];
    if (after.requests < before.requests) note(found, after.time, "server", "bad", 1, () => "the server was started anew");
    else for (const counter of COUNTERS) noteGrowth(found, before, after, counter);
    for (const replica of after.replicas) noteState(found, before.replicas[replica.index], replica, after.time);
  }
  return found;
}

function noteGrowth(found, before, after, [field, tone, one, several]) {
  const grown = after[field] - before[field];
  if (grown > 0) note(found, after.time, field, tone, grown, (count) => (count === 1 ? one : `${whole(count)} ${several}`));
}

function noteState(found, before, after, time) {
  if (!after.state || before?.state === after.state) return;
  const tone = { ready: "good", lost: "bad" }[after.state] ?? "warn";
  note(found, time, `state ${after.index} ${after.state}`, tone, 1, () => `replica ${after.index} is ${after.state}`);
}

/** Add to the last line if it is of the same kind and not long ago, else a line. */
function note(found, time, kind, tone, count, wording) {
  const same = found.findLast((each) => each.kind === kind);
  if (same && time - same.last < TOGETHER) {
    same.count += count;
    same.last = time;
    same.text = wording(same.count);
  } else {
    found.push({ key: `${kind} ${time}`, time, last: time, kind, tone, count, text: wording(count) });
  }
}
