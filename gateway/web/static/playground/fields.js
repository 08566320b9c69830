// The parameters of a request: which are shown, and what the server's own description says of each.
import { call } from "../common/api.js";

// `none` is the value that changes nothing; `least` and `most` narrow a slider whose range is wide.
export const FIELDS = [
  { name: "temperature", title: "Temperature", step: 0.05, none: 1, hint: "0 takes the likeliest token" },
  { name: "top_p", title: "Top p", step: 0.01, none: 1 },
  { name: "top_k", title: "Top k", step: 1, none: 0, least: 0, most: 200 },
  { name: "min_p", title: "Min p", step: 0.01, none: 0 },
  { name: "typical_p", title: "Typical p", step: 0.01, none: 1 },
  { name: "repetition_penalty", title: "Repetition penalty", step: 0.01, none: 1, least: 0.5, most: 2 },
  { name: "frequency_penalty", title: "Frequency penalty", step: 0.05, none: 0 },
  { name: "presence_penalty", title: "Presence penalty", step: 0.05, none: 0 },
  { name: "max_tokens", title: "Max tokens", step: 1, none: 1, least: 1 },
];
const ROUTES = { chat: "/v1/chat/completions", text: "/v1/completions" };

let loaded = null;

/**
 * Of each route of ROUTES, its fields: {minimum, maximum, above, description} by name; `above` is a limit that is itself
 * too low. Read from the OpenAPI document once. Raises as `call`.
 */
export function ranges() {
  loaded ??= call("openapi.json").then((api) =>
    Object.fromEntries(Object.entries(ROUTES).map(([name, path]) => [name, fieldsOf(api, path)])),
  );
  loaded.catch(() => (loaded = null)); // the next call asks again
  return loaded;
}

function fieldsOf(api, path) {
  const schema = resolved(api, api.paths[path]?.post?.requestBody?.content?.["application/json"]?.schema ?? {});
  return Object.fromEntries(Object.entries(schema.properties ?? {}).map(([name, each]) => [name, range(resolved(api, each))]));
}

function resolved(api, schema) {
  const found = schema.$ref ? schema.$ref.slice(2).split("/").reduce((at, name) => at?.[name], api) : schema;
  return found ?? {};
}

function range(schema) {
  const kind = (schema.anyOf ?? [schema]).find((each) => each.type === "number" || each.type === "integer") ?? schema;
  return {
    minimum: kind.minimum,
    above: kind.exclusiveMinimum,
    maximum: kind.maximum ?? kind.exclusiveMaximum,
    description: schema.description,
  };
}
