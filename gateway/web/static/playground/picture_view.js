// Pictures as they are shown: small, in a row, and each with a button that takes it away where it can be.
import { html, useEffect, useRef, useState } from "../common/ui.js";
import { urlOf } from "./pictures.js";
import { heldUrl } from "./picture_urls.js";

/** `remove`, if given, is called with a picture's id; `emptied` is what gets the focus once the last one is gone. */
export function PictureRow({ pictures, label, remove, emptied }) {
  const list = useRef(null);
  if (!pictures?.length) return null;
  const take = (index) => {
    const buttons = [...list.current.querySelectorAll("button")];
    (buttons[index + 1] ?? buttons[index - 1] ?? emptied?.())?.focus(); // the button goes
    remove(pictures[index].id);
  };
  return html`
    <ul class="pictures" ref=${list} aria-label=${label}>
      ${pictures.map(
        (picture, index) => html`
          <li key=${picture.id}>
            <${Picture} picture=${picture} />
            ${remove && html`<button type="button" class="small" aria-label=${`Remove ${picture.name}`} title="Remove" onClick=${() => take(index)}>×</button>`}
          </li>
        `,
      )}
    </ul>
  `;
}

function Picture({ picture }) {
  const [url, setUrl] = useState(() => heldUrl(picture.id)); // null: it is gone
  useEffect(() => void (url ?? urlOf(picture).then(setUrl)), [picture.id]);
  if (url === null) return html`<span class="gone">${picture.name} was not kept</span>`;
  return html`<img src=${url} alt=${picture.name} title=${picture.name} />`;
}
