// A field for a number, which counts from each key on: it needs no leaving of the field.
import { html, useRef } from "../common/ui.js";

/** `value` is null while there is none, as in an empty field. A `whole` number loses what follows its point. */
export function NumberInput({ value, set, whole = false, ...attributes }) {
  const field = useRef(null);
  const read = ({ target }) => {
    if (whole && target.valueAsNumber % 1) target.value = Math.trunc(target.valueAsNumber);
    set(numberIn(target));
  };
  // what is being typed is left alone, however often it is drawn: "0.0" is a zero already, on its way to 0.05
  const typed = field.current && numberIn(field.current) === value;
  const text = typed ? field.current.value : (value ?? "");
  return html`<input ...${attributes} ref=${field} type="number" value=${text} onInput=${read} />`;
}

const numberIn = ({ valueAsNumber }) => (Number.isNaN(valueAsNumber) ? null : valueAsNumber);
