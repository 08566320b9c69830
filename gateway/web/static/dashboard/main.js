// The dashboard: being built.
import { html, render } from "../common/ui.js";
import { Frame } from "../common/frame.js";

render(html`<${Frame} name="dashboard" />`, document.querySelector("#app"));
