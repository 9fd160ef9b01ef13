/** The conversation that is shown, and those whose answers are still being generated. */

import { memory, newId, text } from "./memory.js";
import { store } from "./store.js";
import { readMessage, Tree } from "./tree.js";
import { readSettings } from "./parameters.js";

/**
 * `title` was chosen by the reader; `first` is the beginning of the first message, so that a list needs no messages.
 * @typedef {{ id: string, title: string, first?: string, pinned: boolean, created: number, updated: number, leaf: string, settings: any }} Record
 */

/** Characters of a first message that stand for a title. */
const MAX_FIRST = 200;

/** A stored or imported record with the fields and types that the page expects.
 * @param {any} stored
 * @returns {Record} */
export const readRecord = stored => ({
  id: text(stored?.id), title: text(stored?.title).slice(0, 300),
  ...(typeof stored?.first === "string" && { first: stored.first.slice(0, MAX_FIRST) }), pinned: stored?.pinned === true,
  created: Number(stored?.created) || 0, updated: Number(stored?.updated) || 0, leaf: text(stored?.leaf),
  settings: readSettings(stored?.settings),
});

export class Chat {
  tree = new Tree();
  /** Whether it has a record in the store. */
  stored = false;
  /** The answer that is being generated here. @type {any} */
  run = null;
  /** The message that it is generated into. @type {any} */
  running = null;
  /** Settles when the last answer is stored. @type {Promise<void>} */
  ended = Promise.resolve();
  /** Saves happen one after the other. @type {Promise<any>} */
  #saving = Promise.resolve();

  /** @param {Record} record */
  constructor(record) {
    this.record = record;
  }

  get id() { return this.record.id; }
  get path() { return this.tree.path(this.record.leaf); }
  get last() { return this.tree.messages.get(this.record.leaf); }

  /** A message after the given one (by default the last), which is shown from now on.
   * @param {Partial<import("./tree.js").Message>} fields */
  add(fields) {
    const message = readMessage({ ...fields, id: newId(), conversation: this.id, parent: fields.parent ?? this.record.leaf, at: Date.now() });
    if (message.role === "assistant") message.end = text(fields.end);
    this.tree.add(message);
    this.record.leaf = message.id;
    return message;
  }

  /** Stores a message, with the conversation if this is its first one.
   * @param {import("./tree.js").Message} message
   * @returns {Promise<string>} why it could not be stored, or "" */
  save(message) {
    this.stored = true;
    this.record.updated = Date.now();
    this.record.first = beginning(this.path);
    this.#saving = this.#saving.then(async () => {
      const id = message.id;
      try {
        await store.putMessage(message, { ...this.record });
        if (message.id !== id) {
          if (this.record.leaf === id) this.record.leaf = message.id;
          for (const follower of this.tree.renamed(id, message)) await store.putMessage(follower, { ...this.record });
        }
        return "";
      } catch (error) {
        return String(/** @type {any} */ (error)?.message ?? error);
      }
    });
    return this.#saving;
  }

  /** Changes fields of the record, here and in the store.
   * @param {Partial<Record>} fields */
  async patch(fields) {
    Object.assign(this.record, fields);
    if (this.stored) await store.patch(this.id, fields).catch(() => {});
  }

  /** Shows the newest messages below this one.
   * @param {string} id */
  show(id) {
    return this.patch({ leaf: this.tree.newest(id) });
  }

  /** The title that was chosen, or the beginning of the first message. */
  get title() {
    return this.record.title || beginning(this.path);
  }
}

/** The first line of the first message, or the name of its file.
 * @param {import("./tree.js").Message[]} path */
export function beginning(path) {
  const first = path.find(({ role }) => role === "user");
  return (first?.content ?? "").trim().split("\n", 1)[0].slice(0, MAX_FIRST) || (first?.attachments?.[0]?.name ?? "");
}

/** Chats with an answer in progress: opened again, they are the same object. @type {Map<string, Chat>} */
export const running = new Map();

/** A new conversation, which is stored with its first message. */
export function startChat() {
  const now = Date.now();
  return new Chat(readRecord({ id: newId(), created: now, updated: now, settings: memory.read("tern.settings") }));
}

/** A stored conversation, or null if there is none.
 * @param {string} id
 * @returns {Promise<Chat | null>} */
export async function openChat(id) {
  const live = running.get(id);
  if (live) return live;
  const [record, messages] = await Promise.all([store.conversation(id), store.messages(id)]).catch(() => /** @type {[any, any[]]} */ ([null, []]));
  if (!record) return null;
  const chat = new Chat(readRecord(record));
  chat.stored = true;
  chat.tree = new Tree(messages.map(readMessage));
  if (!chat.last && chat.tree.messages.size) chat.record.leaf = chat.tree.newest("");
  return chat;
}

/** The conversations that earlier versions of this page kept in localStorage become records. */
export async function adoptOldChats() {
  const old = memory.read("tern.chat");
  const found = memory.names("tern.chat.").map(name => ({ name, ...memory.read(name) }));
  if (old) found.push({ name: "tern.chat", messages: old.previous }, { name: "tern.chat", messages: old.messages });
  for (const { name, messages, at } of found) {
    const list = Array.isArray(messages) ? messages : [];
    const begin = Number(at) || Date.now();
    const chat = new Chat(readRecord({ id: newId(), created: begin, updated: begin }));
    list.forEach((message, i) => { chat.add(message).at = begin + i; });
    const all = [...chat.tree.messages.values()];
    for (const message of all) if (message.role === "assistant") message.end ||= "stopped";
    if (all.length) await store.putAll(chat.record, all.map(message => ({ ...message, rev: newId() })));
    const draft = memory.read(`tern.draft.${name.slice("tern.chat.".length)}`);
    if (draft) { memory.write(`tern.draft.${chat.id}`, draft); memory.remove(`tern.draft.${name.slice("tern.chat.".length)}`); }
    memory.remove(name);
  }
}
