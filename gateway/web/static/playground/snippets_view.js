// The dialog that shows a request as code. Pictures in it are shortened, unless it is copied.
import { html, useRef, useState } from "../common/ui.js";
import { CopyButton } from "../common/copy.js";
import { snippets } from "./snippets.js";

/** A button, and behind it the request that `body` makes, at once or later. It may raise Error, as for a setting that can't be read. */
export function SnippetsButton({ body, kind }) {
  const dialog = useRef(null);
  const [shown, setShown] = useState(null);
  const open = async () => {
    try {
      setShown({ texts: snippets(new URL(".", location.href).href.replace(/\/$/, ""), await body(), kind) });
    } catch (error) {
      setShown({ error: error.message });
    }
    dialog.current.showModal();
  };
  return html`
    <button type="button" class="small" onClick=${open}>As code</button>
    <dialog ref=${dialog} class="snippets" aria-label="This request as code">
      ${shown?.error && html`<p class="error">${shown.error}</p>`} ${shown?.texts && html`<${Texts} texts=${shown.texts} />`}
      <form method="dialog"><button>Close</button></form>
    </dialog>
  `;
}

function Texts({ texts }) {
  const [chosen, choose] = useState(Object.keys(texts)[0]);
  const short = shortened(texts[chosen]);
  return html`
    <div class="row">
      ${Object.keys(texts).map(
        (name) => html`<button type="button" key=${name} class="small" aria-pressed=${String(name === chosen)} onClick=${() => choose(name)}>${name}</button>`,
      )}
      <${CopyButton} text=${() => texts[chosen]} />
    </div>
    <pre tabindex="0" aria-label=${`The request with ${chosen}`}><code>${short}</code></pre>
    ${short !== texts[chosen] && html`<p class="hint">Pictures are shortened here. Copy has them whole.</p>`}
  `;
}

/** `text` with the beginning of each picture that stands in it, and how much is left out. */
function shortened(text) {
  return text.replace(/(data:image\/\w+;base64,\S{24})([A-Za-z0-9+/=]{64,})/g, (_, head, rest) => `${head}… ${rest.length.toLocaleString()} more`);
}
