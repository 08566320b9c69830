// Markdown of an answer, safely and as it grows.
//
// HTML in an answer is shown as the text it is. What marked makes of the rest is cleaned by DOMPurify, to a short list of
// tags; images are links, since to load one would tell its server what was said.
import { Marked } from "../vendor/marked.js";
import createPurifier from "../vendor/purify.js";
import { copy } from "../common/copy.js";
import { html, useEffect, useLayoutEffect, useRef } from "../common/ui.js";

const TAGS = `a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre strong table tbody td th thead tr ul`.split(" ");
const WINDOW = 32768; // characters that are read at once: a longer block is shown as it is written
const LONG = 100_000; // characters from which on blocks out of sight are not laid out
const BUDGET = 6; // milliseconds of a frame

const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ raw }) => escaped(raw),
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
  },
});

const purifier = createPurifier(window);
purifier.addHook("afterSanitizeAttributes", (node) => {
  if (node.nodeName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

/** Markdown as nodes that are safe to show. */
function fragment(tokens) {
  const made = purifier.sanitize(marked.parser(tokens), {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ["href", "start", "align", "class"],
    ALLOWED_URI_REGEXP: /^(https?|mailto):/i,
    RETURN_DOM_FRAGMENT: true,
  });
  for (const block of made.querySelectorAll("pre")) block.before(copyButton(block.textContent));
  return made;
}

function copyButton(text) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "plain copy-code", textContent: "Copy" });
  button.addEventListener("click", () => copy(text).then(() => (button.textContent = "Copied")));
  return button;
}

/** Fills an element with markdown that grows. Blocks that are complete are made once; a frame does little. */
class Growing {
  constructor(element) {
    this.element = element;
    this.text = "";
    this.done = 0; // characters that are in blocks of their own
    this.tail = null; // the element of what follows
    this.frame = 0;
  }

  show(written) {
    const text = written.replaceAll("\r\n", "\n"); // as marked counts
    if (!text.startsWith(this.text)) this.clear();
    this.text = text;
    this.element.classList.toggle("long", text.length > LONG);
    this.frame ||= requestAnimationFrame(() => this.work());
  }

  clear() {
    this.element.replaceChildren();
    this.done = 0;
    this.tail = null;
  }

  stop() {
    cancelAnimationFrame(this.frame);
  }

  work() {
    this.frame = 0;
    const end = performance.now() + BUDGET;
    while (this.block()) {
      if (performance.now() > end) {
        this.frame = requestAnimationFrame(() => this.work());
        return;
      }
    }
  }

  /** Make complete blocks of the text that follows; whether there may be more. */
  block() {
    const rest = this.text.slice(this.done, this.done + WINDOW);
    const tokens = marked.lexer(rest);
    const last = tokens.findLastIndex((token) => token.type !== "space");
    const complete = Object.assign(tokens.slice(0, Math.max(last, 0)), { links: tokens.links });
    if (complete.length) {
      this.append(complete);
      return true;
    }
    if (rest.length === WINDOW) {
      this.plain(rest);
      return true;
    }
    this.setTail(fragment(tokens));
    return false;
  }

  append(tokens) {
    const end = performance.now() + BUDGET;
    for (const token of tokens) {
      this.finish(fragment(Object.assign([token], { links: tokens.links })), token.raw.length);
      if (performance.now() > end) return;
    }
  }

  plain(text) {
    const element = document.createElement("div");
    element.className = "raw";
    element.textContent = text;
    this.finish(element, text.length);
  }

  finish(content, length) {
    this.setTail(content);
    this.tail = null;
    this.done += length;
  }

  setTail(content) {
    if (!this.tail) {
      this.tail = document.createElement("div");
      this.tail.className = "block";
      this.element.append(this.tail);
    }
    this.tail.replaceChildren(content);
  }
}

/** `text` as markdown. */
export function Markdown({ text }) {
  const element = useRef(null);
  const growing = useRef(null);
  useEffect(() => () => growing.current?.stop(), []);
  useLayoutEffect(() => {
    growing.current ??= new Growing(element.current);
    growing.current.show(text);
  }, [text]);
  return html`<div class="markdown" ref=${element}></div>`;
}
