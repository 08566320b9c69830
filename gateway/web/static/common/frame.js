// What both pages have around them: the bar with the way to the other page, and what is served.
import { html } from "./ui.js";
import { key, KeyDialog } from "./key.js";

const PAGES = [
  ["playground", "Playground"],
  ["dashboard", "Dashboard"],
  ["docs", "API"],
];

/** The page `name` of PAGES; `model` is what is served, `aside` what stands at the right of the bar. */
export function Frame({ name, model, aside, children }) {
  const shown = PAGES.filter(([path]) => path !== "docs" || key() === null); // a link carries no key
  return html`
    <a class="skip" href="#main">Skip to the content</a>
    <header class="bar">
      <nav aria-label="Pages">
        ${shown.map(
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
