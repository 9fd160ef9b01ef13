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
 * @returns {Promise<any>} */
const result = request => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

/** The stores of one transaction, with the same few functions on a database and on maps.
 * @param {string[]} names
 * @param {IDBTransactionMode} mode
 * @param {(...stores: any[]) => Promise<any>} work
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
    return {
      all: () => result(store.getAll()),
      of: id => result(store.index("conversation").getAll(id)),
      get: id => result(store.get(id)),
      put: value => result(store.put(value)),
      delete: id => result(store.delete(id)),
      /** Visits every record in turn, without having all in memory; true from `visit` ends it. */
      each: visit => new Promise((resolve, reject) => {
        const request = store.openCursor();
        request.onerror = () => reject(request.error);
        request.onsuccess = () => {
          if (!request.result || visit(request.result.value)) return resolve(undefined);
          request.result.continue();
        };
      }),
    };
  }));
  await ended;
  return value;
}

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
  /** The records of all conversations. */
  conversations: () => transact(["conversations"], "readonly", stored => stored.all()),
  conversation: id => transact(["conversations"], "readonly", stored => stored.get(id)),
  messages: id => transact(["messages"], "readonly", stored => stored.of(id)),
  eachMessage: visit => transact(["messages"], "readonly", stored => stored.each(visit)),

  /** Changes fields of a conversation; one that another tab has deleted stays deleted. */
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

  /** Stores a whole conversation, as after an import or an undo. */
  async putAll(record, all) {
    await transact(["conversations", "messages"], "readwrite", async (conversations, messages) => {
      await Promise.all([conversations.put(record), ...all.map(messages.put)]);
    });
    changed(record.id);
  },

  async removeMessages(conversation, ids) {
    await transact(["messages"], "readwrite", async messages => {
      await Promise.all(ids.map(messages.delete));
    });
    changed(conversation);
  },

  /** Removes a conversation and returns its messages, for an undo. */
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
  putPreset: preset => transact(["presets"], "readwrite", stored => stored.put(preset)),
  removePreset: name => transact(["presets"], "readwrite", stored => stored.delete(name)),

  draft: id => transact(["drafts"], "readonly", stored => stored.get(id)),
  putDraft: draft => transact(["drafts"], "readwrite", stored => draft.files.length ? stored.put(draft) : stored.delete(draft.id)),
};
