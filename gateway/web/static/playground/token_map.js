// Tokens as a heat map: the less likely a token was, the warmer it is. Each shows what else it might have been.
import { html, useEffect, useRef, useState } from "../common/ui.js";

const LINGER = 250; // milliseconds in which the pointer may go from a token to its alternatives

/**
 * @param before tokens of the prompt: {text, cached}
 * @param tokens of the answer: {token, logprob, alternatives}
 * @param choose called with the index of a token and the text to put in its place; absent while an answer grows
 */
export function TokenMap({ before, tokens, choose }) {
  const [shown, setShown] = useState(null); // {index, left, top} of the token whose alternatives are shown
  const timer = useRef(0);
  const map = useRef(null);
  const keepOpen = () => clearTimeout(timer.current);
  const closeSoon = () => (keepOpen(), (timer.current = setTimeout(() => setShown(null), LINGER)));
  useEffect(() => keepOpen, []);
  useEffect(() => setShown(null), [choose]);
  const show = (index) => (event) => (keepOpen(), setShown({ index, ...below(event.currentTarget, map.current) }));
  const keys = (event) => moved(event, map.current, () => setShown(null));
  return html`
    <div class="tokens" ref=${map} role="group" aria-label="Tokens of the text" onKeyDown=${keys}>
      ${before.map((token, index) => html`<span key=${`b${index}`} class=${`token prompt ${token.cached ? "cached" : ""}`} title=${token.cached ? "in the prefix cache" : null}>${visible(token.text)}</span>`)}
      ${tokens.map(
        (token, index) => html`
          <span
            key=${index}
            role="button"
            class="token made"
            tabindex=${index ? -1 : 0}
            style=${{ "--p": Math.exp(token.logprob) }}
            aria-label=${`${token.token}, ${percent(token.logprob)}`}
            onMouseEnter=${show(index)}
            onMouseLeave=${closeSoon}
            onFocus=${show(index)}
          >${visible(token.token)}</span>
        `,
      )}
      ${shown && tokens[shown.index] && html`<${Alternatives} token=${tokens[shown.index]} place=${shown} enter=${keepOpen} leave=${closeSoon} choose=${choose && ((text) => choose(shown.index, text))} />`}
    </div>
  `;
}

function Alternatives({ token, place, enter, leave, choose }) {
  const listed = token.alternatives.length ? token.alternatives : [[token.token, token.logprob]];
  return html`
    <div class="alternatives" style=${{ left: `${place.left}px`, top: `${place.top}px` }} onMouseEnter=${enter} onMouseLeave=${leave}>
      ${listed.map(
        ([text, logprob]) => html`
          <button key=${text} type="button" class=${`plain ${text === token.token ? "chosen" : ""}`} disabled=${!choose || isPart(text)} onClick=${() => choose(text)}>
            <code>${visible(text)}</code><span>${percent(logprob)}</span><small>${logprob.toFixed(3)}</small>
          </button>
        `,
      )}
    </div>
  `;
}

const isPart = (text) => text.startsWith("bytes:") || text.includes("\uFFFD"); // of a character: no text can name it
const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;
const visible = (text) => text.replaceAll("\n", "⏎\n").replaceAll("\t", "⇥\t");

function below(token, map) {
  const at = token.getBoundingClientRect();
  const within = map.getBoundingClientRect();
  return { left: Math.max(0, Math.min(at.left - within.left, within.width - 220)), top: at.bottom - within.top + map.scrollTop };
}

/** Arrow keys go from token to token, Enter into the alternatives, Escape back. */
function moved(event, map, close) {
  const tokens = [...map.querySelectorAll(".token.made")];
  const at = tokens.indexOf(document.activeElement);
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (event.key === "Escape") close();
  else if (at >= 0 && event.key === "Enter") map.querySelector(".alternatives button:not(:disabled)")?.focus();
  else if (at < 0 && step && document.activeElement.closest(".alternatives"))
    (step > 0 ? document.activeElement.nextElementSibling : document.activeElement.previousElementSibling)?.focus();
  else if (at >= 0 && step) tokens[at + step]?.focus();
  else return;
  event.preventDefault();
  event.stopPropagation();
}
