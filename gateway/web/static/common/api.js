// Calls to the server that serves this page. Paths are relative, so that they work below any prefix.
import { askForKey, key } from "./key.js";
import { events } from "./sse.js";

/** The server refused or failed a call; `message` is its own wording. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.name = "ApiError";
    this.status = status;
  }
}

/** The JSON that `path` answers: to GET, or to POST if there is a body. Raises ApiError. */
export async function call(path, body, signal) {
  return (await send(path, body, signal)).json();
}

/**
 * Each JSON event of a stream, until it ends or `signal` aborts it. `sent` is called when the request goes out, again if
 * a key had to be asked for. Raises ApiError, also for an error within, and for an end without a last event.
 */
export async function* stream(path, body, signal, sent) {
  const response = await send(path, body, signal, sent);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(event.error.code ?? 500, wording(event));
    yield event;
  }
  throw new ApiError(502, "The answer broke off: the connection ended before it did");
}

async function send(path, body, signal, sent) {
  for (;;) {
    const used = key();
    sent?.();
    const response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers: headers(body),
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      credentials: "same-origin", // of a proxy that asks for a login; the server itself sets no cookies
      cache: "no-store",
    });
    if (response.ok) return response;
    if (response.status !== 401) throw await refusal(response);
    if (used === key()) await askForKey(); // else another call has asked meanwhile
    if (signal?.aborted) throw signal.reason;
  }
}

function headers(body) {
  const found = key() ? { authorization: `Bearer ${key()}` } : {};
  return body === undefined ? found : { ...found, "content-type": "application/json" };
}

async function refusal(response) {
  const answer = await response.text();
  try {
    return new ApiError(response.status, wording(JSON.parse(answer)));
  } catch {
    return new ApiError(response.status, answer.slice(0, 500) || `the server answered ${response.status}`);
  }
}

function wording(answer) {
  return answer.error?.message ?? answer.message ?? answer.error ?? JSON.stringify(answer);
}
