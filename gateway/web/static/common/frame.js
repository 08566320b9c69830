// What both pages have around them: the bar with the way to the other page, and what is served.
import { html } from "./ui.js";
import { KeyDialog } from "./key.js";

const PAGES = [
  ["playground", "Playground"],
  ["dashboard", "Dashboard"],
  ["docs", "API"],
];

/** The page `name` of PAGES; `model` is what is served, `aside` what stands at the right of the bar. */
export function Frame({ name, model, aside, children }) {
  return html`
    <a class="skip" href="#main">Skip to the content</a>
    <header class="bar">
      <nav aria-label="Pages">
        ${PAGES.map(
          ([path, title]) =>
            html`<a key=${path} href=${path} aria-current=${path === name ? "page" : null}>${title}</a>`,
        )}
      </nav>
      <span class="model" title=${model ?? ""}>${model ?? ""}</span>
      <div class="aside">${aside}</div>
    </header>
    <main id="main" tabindex="-1">${children}</main>
    <${KeyDialog} />
  `;
}
