/** The messages of a conversation as a tree: an edited or regenerated message is a branch beside the first one. */

import { text } from "./memory.js";

/**
 * @typedef {{ id: string, name: string, arguments: string }} Call
 * @typedef {{ name: string, kind: "text" | "image", type: string, text: string, url: string, bytes: number, tokens: number }} Attachment
 * @typedef {{ id: string, conversation: string, parent: string, role: "user" | "assistant" | "tool", content: string,
 *   reasoning: string, calls: Call[], results: { id: string, name: string, content: string }[], attachments: Attachment[],
 *   error: string, end: string, stats: Record<string, number>, model: string, tokens: any[], at: number, rev: string }} Message
 */

/** A stored or imported message, reduced to the fields and types that the views expect.
 * @param {any} stored
 * @returns {Message} */
export function readMessage(stored) {
  const list = (/** @type {any} */ value) => Array.isArray(value) ? value : [];
  const role = ["user", "assistant", "tool"].includes(stored?.role) ? stored.role : "user";
  return {
    id: text(stored?.id), conversation: text(stored?.conversation), parent: text(stored?.parent), role,
    content: text(stored?.content), reasoning: text(stored?.reasoning),
    calls: list(stored?.calls).map(c => ({ id: text(c?.id), name: text(c?.name), arguments: text(c?.arguments) })),
    results: list(stored?.results).map(r => ({ id: text(r?.id), name: text(r?.name), content: text(r?.content) })),
    attachments: list(stored?.attachments).map(a => ({
      name: text(a?.name), kind: a?.kind === "image" ? "image" : "text", type: text(a?.type), text: text(a?.text),
      url: /^data:image\/(png|jpeg|webp|gif);base64,/.test(text(a?.url)) ? a.url : "",
      bytes: Number(a?.bytes) || 0, tokens: Number(a?.tokens) || 0,
    })),
    error: text(stored?.error),
    end: text(stored?.end) || (role === "assistant" ? "stopped" : ""), // the page was left while it streamed
    stats: Object.fromEntries(Object.entries(stored?.stats ?? {}).filter(([, value]) => Number.isFinite(value))),
    model: text(stored?.model),
    tokens: list(stored?.tokens).filter(Array.isArray).map(([token, logprob, top]) =>
      [text(token), Number(logprob) || 0, list(top).filter(Array.isArray).map(([token, logprob]) => [text(token), Number(logprob) || 0])]),
    at: Number(stored?.at) || 0, rev: text(stored?.rev),
  };
}

export class Tree {
  /** @type {Map<string, Message>} */
  messages = new Map();
  /** @type {Map<string, Message[]>} the messages after each one, oldest first; those of "" are the first messages */
  after = new Map();

  /** @param {Message[]} messages */
  constructor(messages = []) {
    for (const message of messages) this.messages.set(message.id, message);
    this.#arrange();
  }

  #arrange() {
    this.after = new Map();
    for (const message of this.messages.values()) {
      const parent = this.messages.has(message.parent) ? message.parent : "";
      const list = this.after.get(parent);
      if (list) list.push(message); else this.after.set(parent, [message]);
    }
    for (const list of this.after.values()) list.sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1));
  }

  /** @param {Message} message */
  add(message) {
    this.messages.set(message.id, message);
    const parent = this.messages.has(message.parent) ? message.parent : "";
    this.after.set(parent, [...this.after.get(parent) ?? [], message]);
  }

  /** A message that was stored under a new id takes its followers with it.
   * @param {string} old
   * @param {Message} message */
  renamed(old, message) {
    this.messages.delete(old);
    this.messages.set(message.id, message);
    const followers = this.after.get(old) ?? [];
    for (const follower of followers) follower.parent = message.id;
    this.#arrange();
    return followers;
  }

  /** The messages from the first one to `leaf`.
   * @param {string} leaf */
  path(leaf) {
    const path = [], seen = new Set(); // an imported file may have a cycle
    for (let message = this.messages.get(leaf); message && !seen.has(message.id); message = this.messages.get(message.parent)) {
      seen.add(message.id);
      path.push(message);
    }
    return path.reverse();
  }

  /** The branches at a message: itself and the others after the same message.
   * @param {Message} message */
  branches(message) {
    return this.after.get(this.messages.has(message.parent) ? message.parent : "") ?? [message];
  }

  /** The last message of the newest branch below this one.
   * @param {string} id */
  newest(id) {
    for (let next; (next = this.after.get(id)?.at(-1)); ) id = next.id;
    return id;
  }

  /** Removes a message with everything after it, and returns what was removed.
   * @param {Message} message */
  remove(message) {
    const removed = [message];
    for (let i = 0; i < removed.length; i++) removed.push(...this.after.get(removed[i].id) ?? []);
    for (const { id } of removed) this.messages.delete(id);
    this.#arrange();
    return removed;
  }
}
