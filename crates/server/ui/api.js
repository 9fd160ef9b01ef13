/** Requests to this page's own server, and errors as sentences. */

import { t } from "./language.js";
import { text } from "./memory.js";

/** The folder of the page, without a name and password in it: a page opened as http://user:key@host may not fetch such
 * an address. Behind a proxy it may have a path.
 * @param {string} path */
export const route = path => location.origin + location.pathname.replace(/[^/]*$/, "") + path.replace(/^\//, "");

/** An error whose message is shown; `code` is the API's error code. */
export class ApiError extends Error {
  code = "";
  status = 0;
}

/** @param {Response} response */
export async function refusal(response) {
  let message = "", code = "";
  try {
    const { error } = JSON.parse(await response.text());
    [message, code] = typeof error === "string" ? [error, ""] : [text(error?.message), text(error?.code)];
  } catch { /* no JSON: the status is shown */ }
  const after = Number(response.headers.get("retry-after"));
  if (response.status === 401) message = t("key_required");
  if (response.status === 429 && after) message = `${message || t("busy")} ${t("try_in", { seconds: after })}`;
  const error = new ApiError(message || t("responded", { status: `${response.status} ${response.statusText}` }));
  return Object.assign(error, { code, status: response.status });
}

/** @param {string} path
 * @param {any} body
 * @param {AbortSignal} [signal] */
export async function post(path, body, signal, method = "POST") {
  const response = await fetch(route(path), {
    method, headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal,
  });
  if (!response.ok) throw await refusal(response);
  return response;
}

/** @param {string} path
 * @param {AbortSignal} [signal] */
export async function get(path, signal) {
  const response = await fetch(route(path), { signal });
  if (!response.ok) throw await refusal(response);
  return response;
}

/** Characters of one line of a stream: a longer one is refused, before it fills the memory. */
const MAX_LINE = 64 << 20;

/** The lines of a response while they arrive; the last one may lack its line break.
 * @param {Response} response
 * @returns {AsyncGenerator<string>} */
export async function* lines(response) {
  const reader = /** @type {ReadableStream} */ (response.body).pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let rest = "";;) {
      const { value, done } = await reader.read();
      if (done) {
        if (rest) yield rest;
        return;
      }
      const all = (rest + value).split("\n");
      rest = all.pop() ?? "";
      if (rest.length > MAX_LINE) throw new ApiError(t("no_completion"));
      yield* all;
    }
  } finally {
    reader.cancel().catch(() => {}); // the rest of the stream is not needed
  }
}

/** The chunks of one streamed completion.
 * @param {string} path
 * @param {any} body
 * @param {AbortSignal} signal */
export async function* completionChunks(path, body, signal) {
  for await (const line of lines(await post(path, body, signal))) {
    if (!line.startsWith("data:")) continue;
    const data = line.slice(5).trim();
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(text(chunk.error.message) || t("ended_with_error"));
    yield chunk;
  }
  throw new ApiError(t("closed_early"));
}

/** @param {any} error */
export function sentence(error) {
  if (error instanceof ApiError) return error.message;
  if (error instanceof SyntaxError) return t("no_completion");
  return t("unreachable");
}

/** The number of tokens of a text, or null if the server cannot count them.
 * @param {string} prompt
 * @param {string} model
 * @param {AbortSignal} [signal]
 * @returns {Promise<number | null>} */
export async function countTokens(prompt, model, signal) {
  try {
    const { count } = await (await post("/tokenize", { ...(model && { model }), prompt }, signal)).json();
    return Number.isFinite(count) ? count : null;
  } catch {
    return null;
  }
}
