/** Keyboard shortcuts: one table for the keys and for the sheet that lists them. */

import { app, removeChats, regenerate, show, stop } from "./app.js";
import { byId, copyFrom, el, iconButton, openDialog } from "./dom.js";
import { t } from "./language.js";
import { focusInput } from "./composer.js";
import { openPanel } from "./panel.js";
import { openSettings } from "./settings.js";
import { toggleSidebar } from "./sidebar.js";
import { toggleTheme } from "./theme.js";
import { lastView, step, toEnd } from "./thread.js";

const lastAnswer = () => app.chat.path.findLast(({ role }) => role === "assistant");

/** `key` is the key with its modifiers; `anywhere` says that it also works while something is being written. */
const SHORTCUTS = [
  { key: "?", text: "key_help", run: openSheet },
  { key: "Ctrl+Shift+O", anywhere: true, text: "key_new", run: async () => { await show(""); byId("input").focus(); } },
  { key: "Ctrl+K", anywhere: true, text: "key_search", run: () => { toggleSidebar(true); byId("search").focus(); } },
  { key: "Ctrl+B", anywhere: true, text: "key_sidebar", run: () => toggleSidebar() },
  { key: "Ctrl+,", anywhere: true, text: "key_settings", run: () => openSettings() },
  { key: "Ctrl+.", anywhere: true, text: "key_panel", run: openPanel },
  { key: "/", text: "key_input", run: () => byId("input").focus() },
  { key: "Escape", anywhere: true, text: "key_stop", run: () => { stop(); focusInput(); } },
  { key: "r", text: "key_regenerate", run: () => { const message = lastAnswer(); if (message) regenerate(message); } },
  { key: "e", text: "key_edit", run: () => lastView("user")?.node.querySelector(".edit")?.click() },
  { key: "c", text: "key_copy", run: () => { const message = lastAnswer(); if (message) copyFrom(byId("conversation"), () => message.content); } },
  { key: "j", text: "key_next", run: () => step(1) },
  { key: "k", text: "key_previous", run: () => step(-1) },
  { key: "g", text: "key_end", run: toEnd },
  { key: "t", text: "key_theme", run: toggleTheme },
  { key: "Ctrl+Shift+Backspace", anywhere: true, text: "key_delete", run: () => { if (app.chat.stored) removeChats([{ ...app.chat.record }]); } },
];

const OF_INPUT = [{ key: "Enter", text: "key_send" }, { key: "Shift+Enter", text: "key_line" }];

export function openSheet() {
  byId("shortcut-list").replaceChildren(...[...OF_INPUT, ...SHORTCUTS].map(({ key, text }) =>
    el("div", {}, el("dt", {}, ...key.split(/(?<=.)\+/).map(part => el("kbd", {}, part))), el("dd", {}, t(text)))));
  openDialog(byId("shortcuts"));
}

/** The keys of an event as they are written in the table.
 * @param {KeyboardEvent} event */
function keyOf(event) {
  const control = event.ctrlKey || event.metaKey ? "Ctrl+" : "";
  const shift = event.shiftKey && (control || event.key.length > 1) ? "Shift+" : "";
  return control + shift + (control && event.key.length === 1 ? event.key.toUpperCase() : event.key);
}

export function startShortcuts() {
  byId("open-shortcuts").addEventListener("click", openSheet);
  byId("shortcuts-head").append(iconButton("icon", "close", t("close"), () => byId("shortcuts").close(), { id: "close-shortcuts" }));
  document.addEventListener("keydown", event => {
    if (event.defaultPrevented || event.isComposing || event.altKey || document.querySelector("dialog[open], [popover]:popover-open")) return;
    const writing = event.target instanceof Element && event.target.closest("input, textarea, select");
    const found = SHORTCUTS.find(({ key, anywhere }) => key === keyOf(event) && (anywhere || !writing));
    if (!found || (found.key === "Escape" && !app.chat.run)) return;
    event.preventDefault();
    found.run();
  });
}
