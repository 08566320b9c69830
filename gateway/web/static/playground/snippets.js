// A request as programs would send it. The key is never in it: it is read from the environment.

/** The request `body` for `kind` ("chat" or "text") to the server at `base`, a text for each way to send it. */
export function snippets(base, body, kind) {
  return {
    curl: curl(base, body, kind),
    openai: openai(base, body, kind),
    huggingface_hub: hub(base, body, kind),
    LangChain: langChain(base, body, kind),
  };
}

const MOST_ARGUMENT = 100_000; // characters: of an argument, Linux takes 131072 bytes

function curl(base, body, kind) {
  const path = kind === "chat" ? "chat/completions" : "completions";
  const head = `curl ${base}/v1/${path} \\\n  -H "Authorization: Bearer $API_KEY" -H 'Content-Type: application/json' \\\n  -d`;
  const json = JSON.stringify(body, null, 2);
  if (json.length > MOST_ARGUMENT) return `${head} @- << 'END'\n${json}\nEND`;
  return `${head} '${json.replaceAll("'", "'\\''")}'`;
}

// What the methods of the SDK take by name; the rest goes into `extra_body`.
const BOTH = `model temperature top_p max_tokens seed stop frequency_penalty presence_penalty logprobs logit_bias n`.split(" ");
const OPENAI = { chat: new Set([...BOTH, "messages", "response_format", "tools"]), text: new Set([...BOTH, "prompt", "echo"]) };

function openai(base, body, kind) {
  const known = entries(body, (name) => OPENAI[kind].has(name));
  const others = entries(body, (name) => !OPENAI[kind].has(name));
  const call = kind === "chat" ? "client.chat.completions.create" : "client.completions.create";
  const shown = kind === "chat" ? "answer.choices[0].message.content" : "answer.choices[0].text";
  const extra = others.length ? [["extra_body", Object.fromEntries(others)]] : [];
  return `import os
from openai import OpenAI

client = OpenAI(base_url=${python(`${base}/v1`)}, api_key=os.environ.get("API_KEY", "none"))
answer = ${call}(${keywords([...known, ...extra])}
)
print(${shown})`;
}

const TGI = { max_tokens: "max_new_tokens" };
const HUB_CHAT = new Set(
  `model messages temperature top_p max_tokens seed stop frequency_penalty presence_penalty response_format tools logprobs logit_bias`.split(" "),
);
const HUB_TEXT = new Set(
  `max_new_tokens temperature top_p top_k typical_p repetition_penalty frequency_penalty seed stop`.split(" "),
);

function hub(base, body, kind) {
  const chat = kind === "chat";
  const renamed = chat ? Object.entries(body) : Object.entries(body).map(([name, value]) => [TGI[name] ?? name, value]);
  const taken = renamed.filter(([name]) => (chat ? HUB_CHAT : HUB_TEXT).has(name));
  const rest = renamed.filter(([name]) => !(chat ? HUB_CHAT : HUB_TEXT).has(name) && !["model", "prompt", "logprobs"].includes(name));
  const extra = chat && rest.length ? [["extra_body", Object.fromEntries(rest)]] : [];
  const lost = !chat && rest.length ? `# text_generation takes no ${rest.map(([name]) => name).join(", ")}\n` : "";
  const call = chat ? "client.chat_completion(" : `client.text_generation(\n    ${python(body.prompt)},`;
  return `import os
from huggingface_hub import InferenceClient

${lost}client = InferenceClient(${python(base)}, api_key=os.environ.get("API_KEY"))
answer = ${call}${keywords([...taken, ...extra])}
)
print(${chat ? "answer.choices[0].message.content" : "answer"})`;
}

function langChain(base, body, kind) {
  const chat = kind === "chat";
  const first = ["model", "temperature", "top_p", "max_tokens", "seed", "stop", "frequency_penalty", "presence_penalty"];
  const known = entries(body, (name) => first.includes(name));
  const others = entries(body, (name) => !first.includes(name) && !["messages", "prompt"].includes(name));
  const extra = others.length ? [["extra_body", Object.fromEntries(others)]] : [];
  const name = chat ? "ChatOpenAI" : "OpenAI";
  const asked = chat ? python(body.messages, 1) : python(body.prompt);
  return `import os
from langchain_openai import ${name}

model = ${name}(
    base_url=${python(`${base}/v1`)},
    api_key=os.environ.get("API_KEY", "none"),${keywords([...known, ...extra])}
)
print(model.invoke(${asked})${chat ? ".content" : ""})`;
}

const entries = (body, wanted) => Object.entries(body).filter(([name]) => wanted(name));
const keywords = (list) => list.map(([name, value]) => `\n    ${name}=${python(value, 1)},`).join("");

/** A JSON value as Python writes it, at a depth of so many indents. */
function python(value, depth = 0) {
  const space = "    ".repeat(depth + 1);
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const list = Array.isArray(value);
  const inner = list
    ? value.map((each) => python(each, depth + 1))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${python(each, depth + 1)}`);
  const [open, close] = list ? ["[", "]"] : ["{", "}"];
  const line = open + inner.join(", ") + close;
  return line.length < 80 && !line.includes("\n") ? line : `${open}\n${space}${inner.join(`,\n${space}`)},\n${space.slice(4)}${close}`;
}
