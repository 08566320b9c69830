// One request to the server, told as it goes: text, reasoning, calls, tokens with their probabilities, figures.
import { stream } from "../common/api.js";

/**
 * Generate a chat's answer.
 * @param body the request's fields
 * @param signal aborts the request, and with it the work in the engine
 * @param changed called with the whole answer so far: {content, reasoning, calls, stats}
 */
export async function generateChat(body, signal, changed) {
  const answer = { content: "", reasoning: "", calls: [], stats: {} };
  await run("v1/chat/completions", body, signal, answer, changed, ({ delta }) => {
    answer.content += delta?.content ?? "";
    answer.reasoning += delta?.reasoning ?? delta?.reasoning_content ?? "";
    for (const part of delta?.tool_calls ?? []) answer.calls = withPart(answer.calls, part);
    return Boolean(delta?.content || delta?.reasoning || delta?.reasoning_content || delta?.tool_calls);
  });
  return answer;
}

/** Generate a text's continuation: as `generateChat`, with {text, tokens, stats}, a token with its alternatives each. */
export async function generateText(body, signal, changed) {
  const answer = { text: "", tokens: [], stats: {} };
  await run("v1/completions", body, signal, answer, changed, (choice) => {
    answer.text += choice.text ?? "";
    answer.tokens = [...answer.tokens, ...tokensOf(choice)];
    return Boolean(choice.text || choice.logprobs);
  });
  return answer;
}

async function run(path, body, signal, answer, changed, take) {
  const stats = answer.stats;
  const began = performance.now();
  let first = null;
  const whole = { ...body, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
  try {
    for await (const event of stream(path, whole, signal)) {
      const choice = event.choices?.[0];
      if (choice && take(choice)) first ??= performance.now();
      if (choice?.finish_reason) stats.finish = choice.finish_reason;
      Object.assign(stats, counted(event.usage), timed(began, first, event.usage?.completion_tokens));
      changed({ ...answer, stats: { ...stats } });
    }
  } catch (error) {
    if (!signal.aborted) throw error;
    stats.finish = "stopped";
    changed({ ...answer, stats: { ...stats } });
  }
}

function counted(usage) {
  if (!usage) return {};
  return {
    prompt: usage.prompt_tokens,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
    tokens: usage.completion_tokens,
    total: usage.total_tokens,
  };
}

const LEAST = 0.02; // seconds: tokens that come together tell no speed

/** Milliseconds to the first token, and tokens a second behind it. */
function timed(began, first, tokens) {
  if (first === null) return {};
  const seconds = (performance.now() - first) / 1000;
  return { ttft: first - began, rate: tokens > 1 && seconds > LEAST ? (tokens - 1) / seconds : null };
}

function withPart(calls, part) {
  const old = calls[part.index] ?? { id: part.id, type: "function", function: { name: "", arguments: "" } };
  const name = old.function.name + (part.function?.name ?? "");
  const written = old.function.arguments + (part.function?.arguments ?? "");
  const found = [...calls];
  found[part.index] = { ...old, id: old.id ?? part.id, function: { name, arguments: written } };
  return found;
}

/** The tokens of an event: `token` as it is listed, `text` what it adds, which is nothing for a part of a character. */
function tokensOf({ text, logprobs }) {
  const characters = [...(text ?? "")];
  const offset = (index) => (logprobs.text_offset[index] ?? Infinity) - logprobs.text_offset[0];
  return (logprobs?.tokens ?? []).map((token, index) => ({
    token,
    text: characters.slice(offset(index), offset(index + 1)).join(""),
    logprob: logprobs.token_logprobs[index],
    alternatives: Object.entries(logprobs.top_logprobs?.[index] ?? {}).sort((a, b) => b[1] - a[1]),
  }));
}
