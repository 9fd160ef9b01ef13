/**
 * Conversations in IndexedDB. Every message is a record, so that tabs which continue the same conversation add branches
 * to it and never overwrite each other; the record of a conversation is changed field by field.
 */

import { newId } from "./memory.js";

const NAME = "tern";

/** What each version adds, from 1. A database of any older version is brought up to the last one.
 * @type {((db: IDBDatabase) => void)[]} */
const MIGRATIONS = [
  db => {
    db.createObjectStore("conversations", { keyPath: "id" });
    db.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
  },
  db => {
    db.createObjectStore("presets", { keyPath: "name" });
    db.createObjectStore("drafts", { keyPath: "id" }); // attachments that are not sent yet
  },
];

/** @type {IDBDatabase | null} */
let db = null;
/** What replaces the database if the browser refuses one: it lasts as long as the page. */
const volatile = new Map(["conversations", "messages", "presets", "drafts"].map(name => [name, new Map()]));
/** @type {((id: string) => void)[]} */
const listeners = [];
const channel = typeof BroadcastChannel === "function" ? new BroadcastChannel("tern") : null;

/** Opens the database. Returns whether conversations will survive the page; a newer page may close it later.
 * @param {() => void} outdated */
export function openStore(outdated) {
  if (channel) channel.onmessage = ({ data }) => listeners.forEach(listen => listen(String(data)));
  return new Promise(resolve => {
    let request;
    try { request = indexedDB.open(NAME, MIGRATIONS.length); } catch { return resolve(false); }
    request.onupgradeneeded = ({ oldVersion }) => MIGRATIONS.slice(oldVersion).forEach(step => step(request.result));
    request.onerror = () => resolve(false);
    request.onsuccess = () => {
      const opened = db = request.result;
      opened.onversionchange = () => { opened.close(); db = null; outdated(); };
      resolve(true);
    };
  });
}

/** Calls back with the id of a conversation that another tab has changed.
 * @param {(id: string) => void} listen */
export const onChange = listen => listeners.push(listen);

/** @param {string} id */
const changed = id => channel?.postMessage(id);

/** The result of a request.
 * @param {IDBRequest} request
 * @returns {Promise<any>} */
const result = request => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

/**
 * A store of a transaction. `of` has the messages of a conversation; `each` visits every record in turn,
 * without having all in memory, and true from `visit` ends it.
 * @typedef {{ all: () => Promise<any[]>, of: (id: string) => Promise<any[]>,
 *   get: (id: string) => Promise<any>, put: (value: any) => Promise<any>, delete: (id: string) => Promise<any>,
 *   each: (visit: (value: any) => any) => Promise<void> }} Stored
 */

/** The stores of one transaction, with the same few functions on a database and on maps.
 * @param {string[]} names
 * @param {IDBTransactionMode} mode
 * @param {(...stores: Stored[]) => Promise<any>} work
 */
async function transact(names, mode, work) {
  if (!db) return work(...names.map(volatileStore));
  const transaction = db.transaction(names, mode);
  const ended = new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error ?? new Error("aborted"));
  });
  ended.catch(() => {}); // reported below
  const value = await work(...names.map(name => {
    const store = transaction.objectStore(name);
    /** @type {Stored} */
    const stored = {
      all: () => result(store.getAll()),
      of: id => result(store.index("conversation").getAll(id)),
      get: id => result(store.get(id)),
      put: value => result(store.put(value)),
      delete: id => result(store.delete(id)),
      each: visit => new Promise((resolve, reject) => {
        const request = store.openCursor();
        request.onerror = () => reject(request.error);
        request.onsuccess = () => {
          if (!request.result || visit(request.result.value)) return resolve(undefined);
          request.result.continue();
        };
      }),
    };
    return stored;
  }));
  await ended;
  return value;
}

/** @param {string} name
 * @returns {Stored} */
function volatileStore(name) {
  const map = /** @type {Map<string, any>} */ (volatile.get(name));
  return {
    all: async () => [...map.values()],
    of: async id => [...map.values()].filter(value => value.conversation === id),
    get: async id => map.get(id),
    put: async value => void map.set(name === "presets" ? value.name : value.id, value),
    delete: async id => void map.delete(id),
    each: async visit => { for (const value of map.values()) if (visit(value)) return; },
  };
}

export const store = {
  /** The records of all conversations. @returns {Promise<any[]>} */
  conversations: () => transact(["conversations"], "readonly", stored => stored.all()),
  /** @param {string} id */
  conversation: id => transact(["conversations"], "readonly", stored => stored.get(id)),
  /** @param {string} id
   * @returns {Promise<any[]>} */
  messages: id => transact(["messages"], "readonly", stored => stored.of(id)),
  /** @param {(message: any) => any} visit */
  eachMessage: visit => transact(["messages"], "readonly", stored => stored.each(visit)),

  /** Changes fields of a conversation; one that another tab has deleted stays deleted.
   * @param {string} id
   * @param {any} fields */
  async patch(id, fields) {
    await transact(["conversations"], "readwrite", async stored => {
      const record = await stored.get(id);
      if (record) await stored.put({ ...record, ...fields });
    });
    changed(id);
  },

  /**
   * Stores a message and, if it is missing, its conversation: nothing of an answer is lost if another tab has deleted
   * it. A message that another tab has changed since it was read is kept beside this one, which gets a new id.
   * @param {any} message
   * @param {any} record
   */
  async putMessage(message, record) {
    await transact(["conversations", "messages"], "readwrite", async (conversations, messages) => {
      const stored = await messages.get(message.id);
      if (stored && stored.rev !== message.rev) message.id = newId();
      message.rev = newId();
      await messages.put(message);
      const now = await conversations.get(record.id);
      await conversations.put({ ...record, ...now, updated: record.updated, first: record.first, leaf: message.id });
    });
    changed(record.id);
  },

  /** Stores a whole conversation, as after an import or an undo.
   * @param {any} record
   * @param {any[]} all */
  async putAll(record, all) {
    await transact(["conversations", "messages"], "readwrite", async (conversations, messages) => {
      await Promise.all([conversations.put(record), ...all.map(messages.put)]);
    });
    changed(record.id);
  },

  /** @param {string} conversation
   * @param {string[]} ids */
  async removeMessages(conversation, ids) {
    await transact(["messages"], "readwrite", async messages => {
      await Promise.all(ids.map(messages.delete));
    });
    changed(conversation);
  },

  /** Removes a conversation and returns its messages, for an undo.
   * @param {string} id */
  async remove(id) {
    const all = await transact(["conversations", "messages", "drafts"], "readwrite", async (conversations, messages, drafts) => {
      const all = await messages.of(id);
      await Promise.all([conversations.delete(id), drafts.delete(id), ...all.map(message => messages.delete(message.id))]);
      return all;
    });
    changed(id);
    return all;
  },

  presets: () => transact(["presets"], "readonly", stored => stored.all()),
  /** @param {{ name: string, settings?: any }} preset */
  putPreset: preset => transact(["presets"], "readwrite", stored => stored.put(preset)),
  /** @param {string} name */
  removePreset: name => transact(["presets"], "readwrite", stored => stored.delete(name)),

  /** @param {string} id */
  draft: id => transact(["drafts"], "readonly", stored => stored.get(id)),
  /** @param {{ id: string, files: any[] }} draft */
  putDraft: draft => transact(["drafts"], "readwrite", stored => draft.files.length ? stored.put(draft) : stored.delete(draft.id)),
};
