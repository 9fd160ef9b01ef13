/** The list of conversations: search, folders by date, and what can be done with each. */

import { app, removeChats, show } from "./app.js";
import { beginning, openChat, running } from "./chat.js";
import { ask, button, byId, download, el, iconButton, openMenu, toast } from "./dom.js";
import { month, t } from "./language.js";
import { text } from "./memory.js";
import { store } from "./store.js";
import { fileName, fromFile, toJson, toMarkdown } from "./transfer.js";
import { scrollToMessage } from "./thread.js";
import { readMessage } from "./tree.js";

const DAY = 86400000;
/** Found messages per conversation that are listed. */
const MAX_FOUND = 3;
const MAX_IMPORT = 100 << 20; // bytes of a file

/** @typedef {import("./chat.js").Record} Record */

/** @type {Record[]} */
let records = [];
/** Counts searches, so that the result of an earlier one is dropped. */
let searches = 0;

/** The folder of a conversation: the day, the week, or the month of its last message.
 * @param {Record} record */
function folder({ pinned, updated }) {
  if (pinned) return t("pinned");
  const today = new Date().setHours(0, 0, 0, 0);
  if (updated >= today) return t("today");
  if (updated >= today - DAY) return t("yesterday");
  if (updated >= today - 7 * DAY) return t("last_week");
  if (updated >= today - 30 * DAY) return t("last_month");
  return month(updated);
}

/** @param {any} record */
export const titleOf = record => text(record.title) || text(record.first) || t("untitled");

/** A message with the words of a search.
 * @typedef {{ id: string, before: string, match: string, after: string }} Found */

/** Reads the list again. Conversations that were imported or stored by an earlier page get the title they lack. */
export async function refreshList() {
  const all = await store.conversations().catch(() => []);
  for (const record of all.filter(({ first }) => first === undefined)) {
    record.first = beginning((await store.messages(record.id).catch(() => [])).map(readMessage).sort((a, b) => a.at - b.at));
    await store.patch(record.id, { first: record.first }).catch(() => {});
  }
  records = all.sort((a, b) => Number(b.pinned) - Number(a.pinned) || b.updated - a.updated);
  await draw();
}

/** One conversation. The link's address works in a new tab as well.
 * @param {Record} record
 * @param {Found[]} [found] */
function row(record, found = []) {
  const title = titleOf(record);
  const link = el("a", { class: "open-chat", href: `#${record.id}`, title, "aria-current": app.chat.id === record.id ? "page" : null, dir: "auto" }, title);
  if (running.has(record.id)) link.append(el("span", { class: "dot", role: "img", "aria-label": t("answering") }));
  return el("li", { class: "chat" }, link,
    iconButton("small more", "more", t("actions_of", { title }), event => openMenu(event.currentTarget, actions(record)), { "aria-haspopup": "menu", "aria-expanded": "false" }),
    ...found.map(({ id, before, match, after }) => button("found", el("span", {}, before, el("mark", {}, match), after), async () => {
      await show(record.id);
      const message = app.chat.tree.messages.get(id);
      if (message && !app.chat.path.includes(message)) { await app.chat.show(id); app.emit("chat", {}); }
      scrollToMessage(id);
    })));
}

/** @param {Record} record */
function actions(record) {
  const patch = async (/** @type {Partial<Record>} */ fields) => {
    if (app.chat.id === record.id) await app.chat.patch(fields);
    else await store.patch(record.id, fields);
    await refreshList();
    app.emit("state");
  };
  return [
    { label: t("rename"), run: async () => {
      const title = await ask(t("rename"), titleOf(record));
      if (title !== null) await patch({ title });
    } },
    { label: t(record.pinned ? "unpin" : "pin"), run: () => patch({ pinned: !record.pinned }) },
    null,
    { label: t("export_markdown"), run: async () => {
      const chat = await openChat(record.id);
      if (chat) download(fileName(titleOf(record), "md"), toMarkdown({ record: chat.record, tree: chat.tree, title: titleOf(record) }), "text/markdown");
    } },
    { label: t("export_page"), run: async () => {
      const chat = await openChat(record.id);
      const { toPage } = await import("./share.js");
      if (chat) download(fileName(titleOf(record), "html"), await toPage(chat, titleOf(record)), "text/html");
    } },
    { label: t("export_json"), run: async () => download(fileName(titleOf(record), "json"), await oneJson(record), "application/json") },
    ...(navigator.canShare?.({ files: [new File([""], "a.json", { type: "application/json" })] }) ? [{ label: t("share"), run: () => shareFile(record) }] : []),
    null,
    { label: t("delete"), run: () => removeChats([record]) },
  ];
}

const oneJson = async (/** @type {Record} */ record) => toJson([{ record, messages: await store.messages(record.id) }]);

/** Hands the conversation as a file to another program.
 * @param {Record} record */
async function shareFile(record) {
  const file = new File([await oneJson(record)], fileName(titleOf(record), "json"), { type: "application/json" });
  await navigator.share({ files: [file], title: titleOf(record) }).catch(() => {}); // cancelled
}

/** Messages and titles with the words of the search.
 * @param {string} words */
async function search(words) {
  const needle = words.toLowerCase();
  /** @type {Map<string, Found[]>} */
  const found = new Map();
  for (const record of records) if (titleOf(record).toLowerCase().includes(needle)) found.set(record.id, []);
  await store.eachMessage(({ id, conversation, content }) => {
    const at = typeof content === "string" ? content.toLowerCase().indexOf(needle) : -1;
    if (at < 0) return;
    const list = found.get(conversation) ?? [];
    found.set(conversation, list);
    if (list.length < MAX_FOUND) list.push({ id, before: (at > 24 ? "…" : "") + content.slice(Math.max(0, at - 24), at), match: content.slice(at, at + words.length), after: content.slice(at + words.length, at + words.length + 80) });
  });
  return found;
}

async function draw() {
  const words = byId("search").value.trim();
  const mine = ++searches;
  const found = words ? await search(words).catch(() => new Map()) : null;
  if (mine !== searches) return; // a later search is on its way
  const shown = found ? records.filter(({ id }) => found.has(id)) : records;
  /** @type {Map<string, Record[]>} */
  const groups = Map.groupBy ? Map.groupBy(shown, folder) : grouped(shown);
  const closed = new Set([...byId("chats").querySelectorAll("details:not([open])")].map(node => node.dataset.folder));
  byId("chats").replaceChildren(...[...groups].map(([name, list]) => {
    const node = el("details", { "data-folder": name }, el("summary", {}, name), el("ul", {}, ...list.map(record => row(record, found?.get(record.id)))));
    node.open = Boolean(found) || !closed.has(name);
    return node;
  }));
  byId("no-chats").hidden = shown.length > 0;
  byId("no-chats").textContent = t(found ? "nothing_found" : "no_chats");
}

/** @param {Record[]} list */
function grouped(list) {
  const groups = new Map();
  for (const one of list) groups.set(folder(one), [...groups.get(folder(one)) ?? [], one]);
  return groups;
}

/** Reads exported conversations and adds them.
 * @param {File} file */
async function importFile(file) {
  try {
    if (file.size > MAX_IMPORT) throw new Error("import_too_large");
    const conversations = await fromFile(await file.text(), file.lastModified);
    for (const { record, messages } of conversations) await store.putAll(record, messages);
    await refreshList();
    toast(t("imported", { n: conversations.length }));
    if (conversations.length === 1) await show(conversations[0].record.id);
  } catch (error) {
    toast(t(/** @type {any} */ (error).message));
  }
}

async function exportAll() {
  const all = [];
  for (const record of records) all.push({ record, messages: await store.messages(record.id) });
  download(`tern-${new Date().toISOString().slice(0, 10)}.json`, toJson(all), "application/json");
}

/** All conversations to read, one after the other, each with a line above it. */
async function exportAllMarkdown() {
  const parts = [];
  for (const record of records) {
    const chat = await openChat(record.id);
    if (chat) parts.push(toMarkdown({ record: chat.record, tree: chat.tree, title: titleOf(record) }));
  }
  download(`tern-${new Date().toISOString().slice(0, 10)}.md`, parts.join("\n---\n\n"), "text/markdown");
}

async function removeAll() {
  const sure = await ask(t("delete_all_question", { n: records.length }), null, t("delete"));
  if (sure !== null) await removeChats(records);
}

/** Opens or closes the sidebar; on a narrow screen it lies over the conversation. */
export function toggleSidebar(open = !document.body.classList.contains("with-sidebar")) {
  document.body.classList.toggle("with-sidebar", open);
  byId("toggle-sidebar").setAttribute("aria-expanded", String(open));
  if (matchMedia("(max-width: 56rem)").matches) {
    byId("content").inert = open;
    // on a touch screen a keyboard would open over the list
    if (open) byId(matchMedia("(pointer: coarse)").matches ? "new-chat" : "search").focus(); else byId("toggle-sidebar").focus();
  }
}

export function startSidebar() {
  const narrow = matchMedia("(max-width: 56rem)");
  const closeIfNarrow = () => { if (narrow.matches) toggleSidebar(false); };
  byId("search").addEventListener("input", draw);
  byId("search").addEventListener("keydown", (/** @type {any} */ event) => {
    if (event.key !== "Escape" || !event.target.value) return;
    event.stopPropagation();
    event.target.value = "";
    draw();
  });
  byId("toggle-sidebar").addEventListener("click", () => toggleSidebar());
  byId("shade").addEventListener("click", () => toggleSidebar(false));
  byId("new-chat").addEventListener("click", async () => { await show(""); closeIfNarrow(); });
  byId("new-chat-here").addEventListener("click", () => show(""));
  byId("chats").addEventListener("click", (/** @type {any} */ event) => { if (event.target.closest("a, .found")) closeIfNarrow(); });
  byId("list-menu").addEventListener("click", (/** @type {Event} */ event) => openMenu(event.currentTarget, [
    { label: t("import"), run: () => byId("import-input").click() },
    { label: t("export_all"), disabled: !records.length, run: exportAll },
    { label: t("export_all_markdown"), disabled: !records.length, run: exportAllMarkdown },
    null,
    { label: t("delete_all"), disabled: !records.length, run: removeAll },
  ]));
  byId("import-input").addEventListener("change", (/** @type {any} */ event) => {
    if (event.target.files[0]) importFile(event.target.files[0]);
    event.target.value = "";
  });
  app.on("list", refreshList);
  app.on("state", () => { markCurrent(); });
  narrow.addEventListener("change", () => { byId("content").inert = false; toggleSidebar(!narrow.matches); });
  if (!narrow.matches) document.body.classList.add("with-sidebar");
  byId("toggle-sidebar").setAttribute("aria-expanded", String(!narrow.matches));
}

/** The row of the conversation that is shown, and the dots of those that are being answered. */
function markCurrent() {
  for (const link of byId("chats").querySelectorAll(".open-chat")) {
    const id = link.hash.slice(1);
    if (id === app.chat.id) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    const dot = link.querySelector(".dot");
    if (running.has(id) && !dot) link.append(el("span", { class: "dot", role: "img", "aria-label": t("answering") }));
    if (!running.has(id)) dot?.remove();
  }
}
