// The dashboard: follows the feed, and renders at most once a frame. A hidden page gets no frames, so it renders nothing.
import { call } from "../common/api.js";
import { html, render } from "../common/ui.js";
import { App } from "./app.js";
import { follow } from "./follow.js";
import { Samples } from "./samples.js";

const root = document.querySelector("#app");
const samples = new Samples();
const view = { seconds: 600, tables: false, hovered: null, state: "connecting", problem: "", model: "" };
let frame = null;

/** Change what the page shows, such as `{ tables: true }`, in the next frame. */
function show(changes) {
  Object.assign(view, changes);
  frame ??= requestAnimationFrame(() => {
    frame = null;
    render(html`<${App} samples=${samples} view=${view} show=${show} />`, root);
  });
}

async function nameModel() {
  try {
    show({ model: (await call("info")).model_id });
  } catch {
    // the bar stays without a name
  }
}

show({});
follow({
  event: (event) => {
    samples.add(event);
    if (event.rows) nameModel();
    show({});
  },
  state: (state, problem = "") => show({ state, problem }),
});
