/** What is shown, and the actions on conversations. Views listen to `app.on(...)`; only this file changes the state. */

import { announce, toast } from "./dom.js";
import { generate } from "./answer.js";
import { openChat, running, startChat } from "./chat.js";
import { t } from "./language.js";
import { memory, newId } from "./memory.js";
import { models } from "./models.js";
import { store } from "./store.js";

/** Time between two saves of an answer that is being generated. */
const SAVE_MS = 2000;

/** @type {Record<string, ((value: any) => void)[]>} */
const listeners = {};

export const app = {
  chat: startChat(),
  /** The message that is being edited in its place. @type {string} */
  edited: "",

  /** Events: `chat` (another conversation or branch), `message` (one has changed), `state` (an answer begins or ends,
   * a title changes), `ended` (an answer is stored), `removed` (a conversation is deleted), `list` (conversations come and go).
   * @param {string} name
   * @param {(value: any) => void} listen */
  on(name, listen) { (listeners[name] ??= []).push(listen); },
  /** @param {string} name */
  emit(name, value = /** @type {any} */ (undefined)) { for (const listen of listeners[name] ?? []) listen(value); },
};

/** The last announcement of a failing store: one is enough. */
let complained = false;

/** Saves a message and says so if that fails.
 * @param {import("./chat.js").Chat} chat
 * @param {any} message */
async function save(chat, message) {
  const why = await chat.save(message);
  if (why && !complained) toast(t("not_stored", { why }));
  complained = Boolean(why);
}

/** Shows a conversation by its id; "" is a new one. An answer that is being generated elsewhere continues.
 * @param {string} id */
export async function show(id) {
  if (id && id === app.chat.id && app.chat.stored) return;
  const chat = id ? await openChat(id) : null;
  if (id && !chat) toast(t("no_such_chat"));
  app.chat = chat ?? startChat();
  app.edited = "";
  setAddress();
  app.emit("chat", { end: true });
  app.emit("state");
}

/** The address has the id of a stored conversation, so that a reload, a bookmark and "back" lead to it. */
export function setAddress() {
  const hash = app.chat.stored ? `#${app.chat.id}` : "";
  if (location.hash !== hash) history.pushState(null, "", hash || location.pathname + location.search);
}

/** Generates the answer after the last message.
 * @param {any} [continued] the message that is continued, if it is not a new one */
export async function answer(continued, chat = app.chat) {
  if (chat.run) return;
  const model = models.of(chat.record.settings.model);
  const message = continued ?? chat.add({ role: "assistant", model: model.id });
  message.end = message.error = "";
  const run = new AbortController();
  chat.run = run;
  chat.running = message;
  running.set(chat.id, chat);
  let ended = () => {};
  chat.ended = new Promise(resolve => { ended = resolve; });
  if (app.chat === chat) app.emit("chat", { end: true });
  app.emit("state");
  save(chat, message).then(() => app.chat === chat && setAddress());
  announce(t("answering"));
  const saving = setInterval(() => save(chat, message), SAVE_MS);
  await generate(chat, message, model, run.signal, () => app.emit("message", message));
  clearInterval(saving);
  chat.run = chat.running = null;
  running.delete(chat.id);
  app.emit("message", message);
  app.emit("state");
  await save(chat, message);
  ended();
  app.emit("list");
  if (app.chat === chat) announce(message.error || (message.end === "stopped" ? t("stopped") : t("complete")));
  if (models.list.length > 1) models.refresh(); // which ones are loaded has changed
  app.emit("ended", { chat, message });
}

export function stop() {
  app.chat.run?.abort();
}

/** Sends a message after the last one.
 * @param {string} content
 * @param {any[]} attachments */
export async function send(content, attachments, chat = app.chat) {
  if (chat.run) return;
  const message = chat.add({ role: "user", content, attachments });
  save(chat, message).then(() => app.emit("list"));
  await answer(undefined, chat);
}

/** Replaces a message by an edited one, as a branch beside it. A question is answered again.
 * @param {any} message
 * @param {string} content */
export async function edit(message, content) {
  const { chat } = app;
  if (chat.run) return;
  const { id, rev, stats, tokens, error, ...same } = message;
  const edited = chat.add({ ...same, content, end: message.role === "assistant" ? "edited" : "" });
  app.edited = "";
  save(chat, edited);
  if (message.role === "user") return answer();
  app.emit("chat", {});
  app.emit("state");
}

/** A new answer beside an earlier one, by another model if one is named.
 * @param {any} message */
export async function regenerate(message, model = "") {
  const { chat } = app;
  if (chat.run) return;
  if (model) chat.patch({ settings: { ...chat.record.settings, model } });
  chat.record.leaf = message.parent;
  if (model) app.emit("settings");
  await answer();
}

/** Sends the results of an answer's tool calls.
 * @param {any} message
 * @param {any[]} results */
export async function sendResults(message, results) {
  const { chat } = app;
  if (chat.run) return;
  save(chat, chat.add({ role: "tool", parent: message.id, results }));
  await answer();
}

/** Shows the branch before or after the one that is shown at a message.
 * @param {any} message
 * @param {number} step */
export async function showBranch(message, step) {
  const branches = app.chat.tree.branches(message);
  const to = branches[branches.indexOf(message) + step];
  if (!to || app.chat.run) return;
  await app.chat.show(to.id);
  app.emit("chat", { keep: to.id });
}

/** Deletes a message with what follows it; the branch before it is shown instead. Can be undone.
 * @param {any} message */
export async function removeMessage(message) {
  const { chat } = app;
  if (chat.run) return;
  const removed = chat.tree.remove(message);
  const leaf = chat.tree.messages.has(message.parent) || !message.parent ? chat.tree.newest(message.parent) : "";
  await chat.patch({ leaf });
  await store.removeMessages(chat.id, removed.map(({ id }) => id)).catch(() => {});
  app.emit("chat", {});
  app.emit("list");
  toast(t("messages_deleted", { n: removed.length }), { label: t("undo"), run: async () => {
    for (const one of removed) chat.tree.add(one);
    await chat.patch({ leaf: chat.tree.newest(message.id) });
    await store.putAll({ ...chat.record }, removed).catch(() => {});
    app.emit("chat", {});
    app.emit("list");
  } });
}

/** Deletes conversations. Can be undone.
 * @param {any[]} records */
export async function removeChats(records) {
  /** @type {{ record: any, messages: any[], draft: any, files: any }[]} */
  const removed = [];
  let shown = "";
  for (let record of records) {
    const live = running.get(record.id);
    if (live) { // its answer would store the conversation again
      live.run?.abort();
      await live.ended;
      record = { ...live.record };
    }
    const draft = memory.read(`tern.draft.${record.id}`);
    const files = await store.draft(record.id).catch(() => null);
    removed.push({ record, messages: await store.remove(record.id), draft, files });
    memory.remove(`tern.draft.${record.id}`);
    app.emit("removed", record.id);
    if (app.chat.id === record.id) { shown = record.id; await show(""); }
  }
  app.emit("list");
  toast(removed.length === 1 ? t("chat_deleted") : t("chats_deleted", { n: removed.length }), { label: t("undo"), run: async () => {
    for (const { record, messages, draft, files } of removed) {
      await store.putAll(record, messages);
      if (draft) memory.write(`tern.draft.${record.id}`, draft);
      if (files) await store.putDraft(files).catch(() => {});
    }
    app.emit("list");
    if (removed.length === 1 || shown) await show(shown || removed[0].record.id);
  } });
}

/** A copy of the conversation up to a message.
 * @param {any} message */
export async function fork(message) {
  const { chat } = app;
  const copy = startChat();
  copy.record = { ...copy.record, title: t("copy_of", { title: chat.title }), settings: structuredClone(chat.record.settings) };
  for (const { id, rev, conversation, parent, ...same } of chat.tree.path(message.id)) copy.add(same);
  copy.stored = true;
  await store.putAll({ ...copy.record }, [...copy.tree.messages.values()].map(one => Object.assign(one, { rev: newId() })));
  app.emit("list");
  await show(copy.id);
}

/** Another tab has changed a conversation: the one that is shown here takes up its messages.
 * @param {string} id */
export async function takeUp(id) {
  app.emit("list");
  const { chat } = app;
  if (id !== chat.id || chat.run) return;
  const now = await openChat(id);
  if (chat !== app.chat || chat.run) return;
  if (!now) {
    if (chat.stored) await show("");
    return;
  }
  const follows = now.tree.path(now.record.leaf).some(({ id }) => id === chat.record.leaf) || !now.tree.messages.has(chat.record.leaf);
  if (!follows) now.record.leaf = chat.record.leaf; // this tab stays on its own branch
  app.chat = now;
  app.emit("chat", {});
  app.emit("state");
}
