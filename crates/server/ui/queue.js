/** Messages that were written during an answer: each is sent after the answer before it, or taken back. */

import { app, send } from "./app.js";
import { announce, button, byId, el, iconButton } from "./dom.js";
import { t } from "./language.js";
import { memory, text } from "./memory.js";
import { store } from "./store.js";

/** Ends of answers that the next message follows: after a stop, a failure or a tool call it waits. */
const COMPLETE = ["stop", "length"];

/**
 * @typedef {{ content: string, attachments: any[] }} Queued
 * @typedef {import("./chat.js").Chat} Chat
 */

/** The queues by conversation, whose object may be replaced. @type {Map<string, Queued[]>} */
const queues = new Map();

/** The messages that wait in the conversation that is shown. */
export const queued = () => queues.get(app.chat.id) ?? [];

/** Adds a message to the conversation that is shown.
 * @param {Queued} message */
export function enqueue(message) {
  queues.set(app.chat.id, [...queued(), message]);
  draw();
  announce(t("queued_after"));
}

/** Sends the first message of a queue.
 * @param {Chat} chat */
export function sendNext(chat) {
  const now = chat.id === app.chat.id ? app.chat : chat; // another tab may have changed it
  const [first, ...rest] = queues.get(now.id) ?? [];
  if (!first || now.run) return;
  queues.set(now.id, rest);
  draw();
  send(first.content, first.attachments, now);
}

/** @param {Queued} message */
function remove(message) {
  queues.set(app.chat.id, queued().filter(one => one !== message));
  draw();
  byId("input").focus();
}

/** What `takeBack` does with a message that is to be edited. @type {(message: Queued) => void} */
let takeBack = () => {};

function draw() {
  const list = queued();
  byId("queued").hidden = !list.length;
  byId("queued-list").replaceChildren(...list.map(message => {
    const name = message.content || message.attachments[0]?.name || "";
    return el("li", {}, el("span", { dir: "auto" }, name),
      message.attachments.length ? el("small", {}, t("files", { n: message.attachments.length })) : null,
      iconButton("small edit", "edit", t("edit"), () => { remove(message); takeBack(message); }),
      iconButton("small remove", "close", t("remove_file", { name: name.slice(0, 60) }), () => remove(message)));
  }));
  byId("queued-note").textContent = t(app.chat.run ? "queued_after" : "queued_waits");
  byId("queued-send").hidden = Boolean(app.chat.run);
}

/** Queues that are not sent become drafts when the page is left.
 * @param {string} prefix of the drafts' names */
function keep(prefix) {
  for (const [id, list] of queues) {
    if (!list.length) continue;
    const words = [...list.map(({ content }) => content), text(memory.read(prefix + id))].filter(Boolean);
    if (words.length) memory.write(prefix + id, words.join("\n\n"));
    const files = list.flatMap(({ attachments }) => attachments);
    if (files.length) store.draft(id).then(draft => store.putDraft({ id, files: [...files, ...draft?.files ?? []] })).catch(() => {});
  }
  queues.clear();
}

/** @param {string} prefix of the names of drafts
 * @param {(message: Queued) => void} edit takes a message back into the message field */
export function startQueue(prefix, edit) {
  takeBack = edit;
  byId("queued-send").append(button("plain", t("send_now"), () => sendNext(app.chat)));
  app.on("chat", draw);
  app.on("state", draw);
  app.on("ended", ({ chat, message }) => { if (COMPLETE.includes(message.end)) sendNext(chat); });
  app.on("removed", id => { queues.delete(id); });
  addEventListener("pagehide", () => keep(prefix));
}
