// The panel of settings: a row for each parameter that the server takes, with the range that its description gives.
import { html } from "../common/ui.js";
import { FIELDS } from "./fields.js";
import { NumberInput } from "./number_input.js";
import { DEFAULTS, randomSeed } from "./settings.js";

/** `id` is what the panel's ids begin with, `kind` is "chat" or "text"; `only`, if given, names the parameters that are shown. */
export function SettingsView({ id: prefix, server, settings, setSettings, kind, only, title = "Settings" }) {
  const change = (part) => setSettings((before) => ({ ...before, ...part }));
  const known = server.ranges[kind];
  const shown = FIELDS.filter(({ name }) => known[name] && (!only || only.includes(name)));
  const set = (name) => (value) =>
    setSettings((before) => ({ ...before, values: { ...before.values, [name]: value } }));
  return html`
    <form class=${`settings ${only ? "dense" : ""}`} aria-label=${title} onSubmit=${(event) => event.preventDefault()}>
      ${!only &&
      html`<div class="row head">
        <h2>${title}</h2>
        <button type="button" class="plain" onClick=${() => setSettings(() => DEFAULTS)}>Reset</button>
      </div>`}
      ${shown.map(
        (field) => html`
          <${NumberField}
            key=${field.name}
            id=${`${prefix}-${field.name}`}
            field=${field}
            range=${known[field.name]}
            most=${field.name === "max_tokens" ? server.context : undefined}
            value=${settings.values[field.name] ?? null}
            set=${set(field.name)}
          />
        `,
      )}
      ${!only && html`<${SeedField} id=${`${prefix}-seed`} seed=${settings.seed} set=${(seed) => change({ seed })} />`}
      ${!only && html`<${TextFields} settings=${settings} change=${change} known=${known} />`}
    </form>
  `;
}

/** A slider and a number of one value. Empty is the server's own default, and then nothing is sent. */
function NumberField({ id, field, range, most, value, set }) {
  const least = range.above === undefined ? Math.max(range.minimum ?? 0, field.name === "max_tokens" ? 1 : -Infinity) : range.above + field.step;
  const limit = most ?? range.maximum ?? field.most ?? 1;
  const shown = { least: Math.max(least, field.least ?? least), most: Math.min(limit, field.most ?? limit) };
  return html`
    <div class="field">
      <label for=${id} title=${range.description ?? field.hint ?? null}>${field.title}</label>
      <${NumberInput} id=${id} min=${least} max=${limit} step="any" placeholder="default" value=${value} set=${set} />
      <input
        type="range"
        aria-label=${`${field.title}, slider`}
        class=${value === null ? "unset" : ""}
        min=${shown.least}
        max=${shown.most}
        step=${field.step}
        value=${value ?? field.none}
        onInput=${(event) => set(event.target.valueAsNumber)}
      />
    </div>
  `;
}

function SeedField({ id, seed, set }) {
  return html`
    <div class="field">
      <label for=${id}>Seed</label>
      <${NumberInput} id=${id} whole step="1" placeholder="random" value=${seed} set=${set} />
      <button type="button" class="small" aria-pressed=${String(seed !== null)} onClick=${() => set(seed === null ? randomSeed() : null)}>
        ${seed === null ? "Lock a seed" : "Seed locked"}
      </button>
    </div>
  `;
}

const TEXTS = [
  { name: "stop", title: "Stop texts", rows: 2, hint: "one a line; \\n is a line break" },
  { name: "schema", title: "JSON schema of the answer", rows: 4, needs: "response_format", hint: '{"type": "object", …}' },
  { name: "tools", title: "Tools", rows: 4, needs: "tools", hint: '[{"name": …, "parameters": {…}}]' },
  { name: "extra", title: "Further fields", rows: 2, hint: '{"logit_bias": {…}}' },
];

function TextFields({ settings, change, known }) {
  return TEXTS.filter(({ needs }) => !needs || known[needs]).map(
    ({ name, title, rows, hint }) => html`
      <details key=${name} class="field wide" open=${Boolean(settings[name])}>
        <summary>${title}</summary>
        <textarea
          aria-label=${title}
          rows=${rows}
          placeholder=${hint}
          spellcheck=${false}
          value=${settings[name]}
          onInput=${(event) => change({ [name]: event.target.value })}
        ></textarea>
      </details>
    `,
  );
}
