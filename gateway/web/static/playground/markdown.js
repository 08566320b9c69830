// Markdown of an answer, safely and as it grows.
//
// HTML in an answer is shown as the text it is. What marked makes of the rest is cleaned by DOMPurify, to a short list of
// tags; images are links, since to load one would tell its server what was said.
import { Marked } from "../vendor/marked.js";
import createPurifier from "../vendor/purify.js";
import { copy, COPIED } from "../common/copy.js";
import { html, useEffect, useLayoutEffect, useRef } from "../common/ui.js";

const TAGS = `a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre strong table tbody td th thead tr ul`.split(" ");
const WINDOW = 32768; // characters that are read at once: a longer block is shown as it is written
const PART = 4096; // characters that are cleaned at once: cleaning has a price of its own
const LONG = 100_000; // characters from which on blocks out of sight are not laid out
const BUDGET = 6; // milliseconds of a frame
const TOO_DEEP = /(?:^|\n)[ \t]*(?:(?:>|[*+-][ \t]|\d{1,9}[.)][ \t])[ \t]*){100}/; // a line on which marked takes seconds, or gives up

const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
const marked = new Marked({
  gfm: true,
  breaks: true,
  tokenizer: { def: () => undefined }, // a definition changes links before it, which are shown already
  renderer: {
    html: ({ raw, block }) => (block ? `<pre><code>${escaped(raw.trimEnd())}</code></pre>` : escaped(raw)),
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
  if (tokens[0]?.type === "plain") return plain(tokens[0].text);
  const made = purifier.sanitize(marked.parser(tokens), {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ["href", "start", "align", "class"],
    ALLOWED_URI_REGEXP: /^(https?|mailto):/i,
    ADD_URI_SAFE_ATTR: ["align", "start"],
    RETURN_DOM_FRAGMENT: true,
  });
  for (const block of made.querySelectorAll("pre")) addCopyButton(block);
  return made;
}

/** A text as it is written. */
function plain(text) {
  const element = document.createElement("div");
  element.className = "raw";
  element.textContent = text;
  return element;
}

function addCopyButton(block) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "small", textContent: "Copy" });
  const tell = (words) => (button.textContent = words);
  const copied = () => (tell("Copied"), setTimeout(tell, COPIED, "Copy"));
  button.addEventListener("click", () => copy(block.textContent).then(copied, () => {}));
  const box = document.createElement("div");
  box.className = "code";
  block.replaceWith(box);
  box.append(block, button);
}

/** Fills an element with markdown that grows. Blocks that are complete are made once; a frame does little. */
class Growing {
  constructor(element) {
    this.element = element;
    this.text = "";
    this.done = 0; // characters of complete blocks, in the queue too
    this.queue = []; // tokens of complete blocks that are not yet shown
    this.fence = null; // what ends a block of code that is longer than a window
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
    this.queue = [];
    this.fence = null;
    this.tail = null;
  }

  stop() {
    cancelAnimationFrame(this.frame);
  }

  work() {
    this.frame = 0;
    const end = performance.now() + BUDGET;
    while (this.part()) {
      if (performance.now() > end) {
        this.frame = requestAnimationFrame(() => this.work());
        return;
      }
    }
  }

  /** Make a part of what is not yet shown, of complete blocks if there are any; whether there may be more. */
  part() {
    if (!this.queue.length && !this.read()) return false;
    const tokens = [];
    for (let length = 0; this.queue.length && length < PART; length += tokens.at(-1).raw.length) tokens.push(this.queue.shift());
    this.finish(fragment(Object.assign(tokens, { links: {} })));
    return true;
  }

  /** Read on: complete blocks go into the queue, the one that may still grow is shown as it is. Whether any is complete. */
  read() {
    const rest = this.text.slice(this.done, this.done + WINDOW);
    if (this.fence) return this.readCode(rest);
    const deep = rest.search(TOO_DEEP);
    if (deep === 0) return this.readDeep(rest);
    const tokens = marked.lexer(deep < 0 ? rest : rest.slice(0, deep + 1));
    const last = deep < 0 ? tokens.findLastIndex((token) => token.type !== "space") : tokens.length;
    this.queue = tokens.slice(0, Math.max(last, 0));
    if (!this.queue.length && rest.length === WINDOW) this.readLong(rest);
    this.done += this.queue.reduce((length, token) => length + token.raw.length, 0);
    if (!this.queue.length) this.setTail(fragment(tokens));
    return this.queue.length > 0;
  }

  /** Show the beginning of a block that is longer than a window as it is written. */
  readLong(rest) {
    const mark = rest.match(/^ {0,3}(`{3,}|~{3,})/)?.[1];
    if (mark) this.fence = new RegExp(`(^|\\n) {0,3}${mark[0]}{${mark.length},} *(\\n|$)`);
    this.queue = [{ type: "plain", raw: rest, text: rest }];
  }

  /** Read on in a long block of code, to its end if it is there. */
  readCode(rest) {
    const close = rest.match(this.fence);
    if (close) this.fence = null;
    return this.readPlain(rest, close && close.index + close[0].length, rest.lastIndexOf("\n") + 1);
  }

  /** Read on in what begins with a line that nests too deep, to an empty line. */
  readDeep(rest) {
    const end = rest.indexOf("\n\n", 1);
    return this.readPlain(rest, end < 0 ? null : end + 1, 0);
  }

  /** Show `rest` as it is written up to `end`, or, if it is longer than a window, to `otherwise`. Whether that is complete. */
  readPlain(rest, end, otherwise) {
    if (!end && rest.length < WINDOW) {
      this.setTail(plain(rest));
      return false;
    }
    const text = rest.slice(0, end || otherwise || rest.length);
    this.queue = [{ type: "plain", raw: text, text }];
    this.done += text.length;
    return true;
  }

  finish(content) {
    this.setTail(content);
    this.tail = null;
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
  return html`<div class="markdown" dir="auto" ref=${element}></div>`;
}
