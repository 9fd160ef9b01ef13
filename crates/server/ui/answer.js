/** One answer: the request for it, its chunks, and its figures. */

import { completionChunks, countTokens, sentence } from "./api.js";
import { t, number, duration } from "./language.js";
import { text } from "./memory.js";
import { requestOptions } from "./parameters.js";

/** The default limit of a model without a template, which may never stop by itself. */
const CONTINUATION_TOKENS = 256;
/** At most this many tokens of an answer keep their log-probabilities: each has some hundred bytes. */
const MAX_TOKENS_KEPT = 20000;

/** Tokens that arrive within this time came together: they say nothing about the speed. */
const MIN_SECONDS = 0.02;

/** A fence that is longer than any in the text.
 * @param {string} content */
export const fence = content => "`".repeat(Math.max(3, ...[...content.matchAll(/`+/g)].map(([run]) => run.length + 1)));

/** The text of a user's message: its files, and then what was written.
 * @param {import("./tree.js").Message} message */
export const userText = ({ content, attachments }) => attachments.filter(({ kind }) => kind === "text")
  .map(({ name, text }) => `File ${name}:\n${fence(text)}\n${text.replace(/\n$/, "")}\n${fence(text)}\n\n`).join("") + content;

/** What a user's message is for the model: a text, or its pictures and the text.
 * @param {import("./tree.js").Message} message */
function userContent(message) {
  const images = message.attachments.filter(({ kind }) => kind === "image");
  if (!images.length) return userText(message);
  return [...images.map(({ url }) => ({ type: "image_url", image_url: { url } })), { type: "text", text: userText(message) }];
}

/** The request's messages: the roles alternate, because a question that got no answer is omitted with it.
 * @param {import("./tree.js").Message[]} path
 * @param {string} system */
export function requestMessages(path, system) {
  /** @type {any[]} */
  const turns = system.trim() ? [{ role: "system", content: system }] : [];
  for (const message of path) {
    if (message.role === "user") turns.push({ role: "user", content: userContent(message) });
    else if (message.role === "tool") {
      for (const { id, content } of message.results) turns.push({ role: "tool", tool_call_id: id, content });
    } else if (message.content || message.calls.length) {
      turns.push({
        role: "assistant", content: message.content || null,
        ...(message.calls.length && { tool_calls: message.calls.map(call => ({
          id: call.id, type: "function", function: { name: call.name, arguments: call.arguments },
        })) }),
      });
    } else if (turns.at(-1)?.role === "user") turns.pop();
  }
  return turns;
}

/** The request: a path and a body.
 * @param {import("./chat.js").Chat} chat
 * @param {import("./tree.js").Message} message
 * @param {any} model
 * @param {AbortSignal} signal
 * @returns {Promise<[string, any]>} */
async function answerRequest(chat, message, model, signal) {
  const { settings } = chat.record;
  const options = {
    ...(model.id && { model: model.id }), stream: true, stream_options: { include_usage: true }, ...requestOptions(settings),
  };
  const before = chat.tree.path(message.parent);
  const continued = Boolean(message.content);
  if (!model.continues) {
    const messages = requestMessages(continued ? [...before, message] : before, settings.system);
    return ["/v1/chat/completions", { ...options, messages, ...(continued && { continue_final_message: true, add_generation_prompt: false }) }];
  }
  for (const name of ["tools", "reasoning_effort", "top_logprobs", "logprobs"]) delete options[name];
  if (settings.logprobs) options.logprobs = 5;
  const last = before.at(-1);
  const prompt = (last ? userText(last) : "") + (continued ? message.content : "");
  if (!options.max_tokens) {
    const count = await countTokens(prompt, model.id, signal);
    options.max_tokens = Math.max(1, Math.min(CONTINUATION_TOKENS, (model.context || Infinity) - (count ?? 0)));
  }
  return ["/v1/completions", { ...options, prompt }];
}

/** Adds a chunk to the message; `seconds` is the time since the request was sent.
 * @param {import("./tree.js").Message} message
 * @param {any} chunk
 * @param {number} seconds */
export function absorb(message, chunk, seconds) {
  const { stats } = message;
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? { content: choice?.text }; // a continuation has a plain text
  message.content += text(delta.content);
  message.reasoning += text(delta.reasoning_content);
  for (const part of delta.tool_calls ?? []) {
    const call = message.calls[part.index] ?? message.calls[message.calls.push({ id: "", name: "", arguments: "" }) - 1];
    call.id ||= text(part.id);
    call.name += text(part.function?.name);
    call.arguments += text(part.function?.arguments);
  }
  if (delta.content || delta.reasoning_content || delta.tool_calls?.length) {
    stats.first ??= seconds;
    stats.last = seconds;
    stats.pieces = (stats.pieces ?? 0) + 1; // about one token each, until the usage has the exact count
    if (delta.content || delta.tool_calls) stats.thought ??= seconds - stats.first;
  }
  absorbProbabilities(message, choice?.logprobs);
  message.end = text(choice?.finish_reason) || message.end;
  if (chunk.usage) {
    stats.tokens = chunk.usage.completion_tokens;
    stats.prompt = chunk.usage.prompt_tokens;
    stats.cached = chunk.usage.prompt_tokens_details?.cached_tokens ?? 0;
  }
}

/** Log-probabilities in the format of chats, or in the older one of completions.
 * @param {import("./tree.js").Message} message
 * @param {any} logprobs */
function absorbProbabilities({ tokens }, logprobs) {
  if (!logprobs || tokens.length >= MAX_TOKENS_KEPT) return;
  for (const { token, logprob, top_logprobs } of logprobs.content ?? []) {
    tokens.push([text(token), Number(logprob), (top_logprobs ?? []).map((/** @type {any} */ top) => [text(top.token), Number(top.logprob)])]);
  }
  (logprobs.tokens ?? []).forEach((/** @type {any} */ token, /** @type {number} */ i) => {
    tokens.push([text(token), Number(logprobs.token_logprobs?.[i]), Object.entries(logprobs.top_logprobs?.[i] ?? {}).map(([token, logprob]) => [token, Number(logprob)])]);
  });
}

/**
 * Generates the answer into `message`, and calls `changed` after every chunk. It ends when the answer does, is aborted
 * or fails; a failure is part of the message.
 * @param {import("./chat.js").Chat} chat
 * @param {import("./tree.js").Message} message
 * @param {{ id: string, continues: boolean, context: number, refresh: () => Promise<void> }} model
 * @param {AbortSignal} signal
 * @param {() => void} changed
 */
export async function generate(chat, message, model, signal, changed) {
  const began = performance.now();
  const absorbAll = async () => {
    const [path, body] = await answerRequest(chat, message, model, signal);
    for await (const chunk of completionChunks(path, body, signal)) {
      absorb(message, chunk, (performance.now() - began) / 1000);
      changed();
    }
  };
  try {
    try {
      await absorbAll();
    } catch (error) {
      if (/** @type {any} */ (error).code !== "no_chat_template") throw error;
      await model.refresh(); // the server's model has changed since the page was opened
      model.continues = true;
      await absorbAll();
    }
    message.end ||= "stop";
  } catch (error) {
    message.end = signal.aborted ? "stopped" : "error";
    if (!signal.aborted) message.error = sentence(error);
  }
  changed();
}

/** The figures of an answer as a line of text.
 * @param {import("./tree.js").Message} message */
export function statsText({ end, stats: { first, last, pieces, tokens, prompt, cached } }) {
  const parts = [];
  if (first !== undefined) {
    const count = tokens ?? pieces ?? 0;
    parts.push(t(tokens === undefined ? "about_tokens" : "tokens", { n: number(count) }));
    const rate = (count - 1) / (last - first);
    if (rate > 0 && last - first > MIN_SECONDS) parts.push(t("per_second", { n: number(rate, rate < 100 ? 1 : 0) }));
    parts.push(t("first_after", { time: duration(first) }));
  }
  if (prompt) parts.push(t(cached ? "prompt_cached" : "prompt_tokens", { n: number(prompt), cached: number(cached ?? 0) }));
  if (end === "length") parts.push(t("cut_at_limit"));
  if (end === "stopped") parts.push(t("stopped"));
  return parts.join(" · ");
}
