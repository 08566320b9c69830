// What a screen reader is told of a text that grows: whole sentences, each once.
import { html, useEffect, useRef, useState } from "../common/ui.js";

const MOST = 2000; // characters of one announcement: nobody listens longer
const PAUSE = 1500; // milliseconds between two announcements

/** Tells the sentences of `text` as they are finished, and the rest once it is `over`. */
export function Announcer({ text, over }) {
  const told = useRef(0);
  const latest = useRef("");
  const [words, setWords] = useState("");
  latest.current = text;
  useEffect(() => {
    if (text.length < told.current) told.current = 0;
    if (over) {
      setWords(text.slice(told.current, told.current + MOST));
      told.current = text.length;
      return;
    }
    const timer = setInterval(() => {
      const rest = latest.current.slice(told.current);
      const end = Math.max(...[". ", "! ", "? ", "\n"].map((mark) => rest.lastIndexOf(mark)));
      if (end < 0) return;
      setWords(rest.slice(0, Math.min(end + 1, MOST)));
      told.current += end + 1;
    }, PAUSE);
    return () => clearInterval(timer);
  }, [over, text === ""]);
  return html`<div class="unseen" aria-live="polite">${words}</div>`;
}
