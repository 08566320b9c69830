// What the user chose, and the fields of a request that say so. What is not chosen is not sent: the server decides.

export const DEFAULTS = { values: { temperature: 0.7, max_tokens: 512 }, seed: null, stop: "", schema: "", tools: "", extra: "" };

/** `settings` as fields of a request of `kind` ("chat" or "text"). Raises Error naming a setting that can't be read. */
export function requestFields(settings, kind) {
  const fields = Object.fromEntries(Object.entries(settings.values).filter(([, value]) => value !== null));
  if (settings.seed !== null) fields.seed = settings.seed;
  const stops = settings.stop.split("\n").filter(Boolean);
  if (stops.length) fields.stop = stops.map((each) => each.replaceAll("\\n", "\n"));
  if (settings.schema.trim()) fields.response_format = schemaField(settings.schema);
  if (kind === "chat" && settings.tools.trim()) fields.tools = toolList(settings.tools);
  return { ...fields, ...(settings.extra.trim() ? objectOf(settings.extra, "Further fields") : {}) };
}

function schemaField(text) {
  return { type: "json_schema", json_schema: { name: "answer", schema: objectOf(text, "JSON schema") } };
}

/** Tools as the API lists them; a function alone will do. Raises Error. */
export function toolList(text) {
  const list = parsed(text, "Tools");
  if (!Array.isArray(list) || !list.every(isObject)) throw new Error("Tools: a JSON list of tools is needed");
  return list.map((each) => (each.function ? each : { type: "function", function: each }));
}

function objectOf(text, name) {
  const value = parsed(text, name);
  if (!isObject(value)) throw new Error(`${name}: a JSON object is needed`);
  return value;
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

function parsed(text, name) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: ${error.message}`);
  }
}

export const randomSeed = () => Math.floor(Math.random() * 2 ** 31);
