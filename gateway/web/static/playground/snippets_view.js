// The dialog that shows a request as code.
import { html, useRef, useState } from "../common/ui.js";
import { CopyButton } from "../common/copy.js";
import { snippets } from "./snippets.js";

/** A button, and behind it the request that `body` makes. `body` may raise Error for a setting that can't be read. */
export function SnippetsButton({ body, kind }) {
  const dialog = useRef(null);
  const [shown, setShown] = useState(null);
  const open = () => {
    try {
      setShown({ texts: snippets(new URL(".", location.href).href.replace(/\/$/, ""), body(), kind) });
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
  return html`
    <div class="row">
      ${Object.keys(texts).map(
        (name) => html`<button type="button" key=${name} class="small" aria-pressed=${String(name === chosen)} onClick=${() => choose(name)}>${name}</button>`,
      )}
      <${CopyButton} text=${() => texts[chosen]} />
    </div>
    <pre tabindex="0" aria-label=${`The request with ${chosen}`}><code>${texts[chosen]}</code></pre>
  `;
}
