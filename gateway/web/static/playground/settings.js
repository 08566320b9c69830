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
  return { ...fields, ...(settings.extra.trim() ? parsed(settings.extra, "Further fields") : {}) };
}

function schemaField(text) {
  return { type: "json_schema", json_schema: { name: "answer", schema: parsed(text, "JSON schema") } };
}

function toolList(text) {
  const list = parsed(text, "Tools");
  if (!Array.isArray(list)) throw new Error("Tools: a JSON list of tools is needed");
  return list.map((each) => (each.function ? each : { type: "function", function: each }));
}

function parsed(text, name) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: ${error.message}`);
  }
}

export const randomSeed = () => Math.floor(Math.random() * 2 ** 31);
