/** Start: the language, the store, the views, and then the conversation that the address names. */

import { app, setAddress, show, takeUp } from "./app.js";
import { adoptOldChats } from "./chat.js";
import { startComposer, write } from "./composer.js";
import { announce, button, byId, toast } from "./dom.js";
import { loadLanguage, t, translate } from "./language.js";
import { memory } from "./memory.js";
import { models, showPicker } from "./models.js";
import { startPanel } from "./panel.js";
import { startSettings } from "./settings.js";
import { startShortcuts } from "./shortcuts.js";
import { refreshList, startSidebar } from "./sidebar.js";
import { onChange, openStore } from "./store.js";
import { startTheme } from "./theme.js";
import { startThread } from "./thread.js";

/** Everything outside the messages that depends on the conversation and its model. */
function showState() {
  const { chat } = app;
  const empty = !chat.path.length;
  const model = models.of(chat.record.settings.model);
  byId("empty").hidden = !empty;
  byId("conversation-title").hidden = empty;
  byId("conversation-title").textContent = chat.title || t("conversation");
  const title = [empty ? "" : chat.title.slice(0, 60), model.id, "Tern"].filter(Boolean).join(" · ");
  document.title = chat.run ? `… ${title}` : title; // a tab in the background shows when its answer is complete
  showPicker(model.id);
  if (!empty) return;
  byId("empty-question").textContent = t(model.continues ? "question_text" : "question");
  byId("empty-model").textContent = !model.id ? t("connecting") : !model.continues ? t("talking_to", { model: model.id })
    : `${t("only_continues", { model: model.id })} ${t(models.list.length > 1 ? "choose_other" : "start_chat_model")}`;
  const words = model.continues ? ["beginning_1", "beginning_2", "beginning_3"] : ["suggestion_1", "suggestion_2", "suggestion_3"];
  byId("suggestions").replaceChildren(...words.map(name => button("suggestion", t(name), () => { write(t(name)); byId("input").focus(); })));
}

/** Reads finished paragraphs of an answer to screen readers while it is generated. */
function readAloud() {
  /** The answer that is read, and how much of it was. @type {any} */
  let message = null;
  let read = 0;
  app.on("message", changed => {
    if (changed !== app.chat.running) return;
    if (message !== changed) { message = changed; read = changed.content.length; }
    const end = changed.content.lastIndexOf("\n\n");
    if (end > read) { announce(changed.content.slice(read, end)); read = end; }
  });
  app.on("state", () => {
    if (!message || app.chat.running) return;
    const rest = message.content.slice(read).trim();
    if (rest) setTimeout(announce, 400, rest);
    message = null;
  });
}

/** `?q=TEXT` in the address, as of a browser's search keyword, is added to the draft: nothing is sent by a link. */
function takeQuestion() {
  const address = new URL(location.href);
  const words = address.searchParams.get("q")?.trim();
  address.searchParams.delete("q");
  if (!words) return;
  history.replaceState(null, "", address);
  write([byId("input").value, words].filter(Boolean).join("\n\n"));
}

async function start() {
  startTheme();
  await loadLanguage();
  translate(document);
  const kept = await openStore(() => toast(t("newer_page"), { label: t("reload"), run: () => location.reload() }, 3600));
  if (kept) await adoptOldChats().catch(() => {});
  else toast(t("nothing_kept"));
  startThread();
  startComposer();
  startSidebar();
  startSettings();
  startPanel();
  startShortcuts();
  readAloud();
  app.on("chat", showState);
  app.on("state", showState);
  app.on("settings", showState);
  models.onChange(showState);
  byId("models").addEventListener("change", () => {
    const name = byId("models").value;
    memory.write("tern.model", name);
    app.chat.patch({ settings: { ...app.chat.record.settings, model: name } });
    app.emit("settings");
  });
  onChange(takeUp);
  addEventListener("popstate", () => show(location.hash.slice(1)));
  addEventListener("pagehide", () => { // what was generated so far is kept
    if (app.chat.running) app.chat.save(app.chat.running);
  });
  // iOS lays its keyboard over the page instead of shrinking it
  window.visualViewport?.addEventListener("resize", () => {
    const { scale, height } = /** @type {any} */ (window.visualViewport);
    if (scale === 1) document.documentElement.style.setProperty("--height", `${height}px`);
  });
  models.refresh();
  const id = location.hash.slice(1);
  if (id) await show(id);
  if (!app.chat.stored) { setAddress(); app.emit("chat", { end: true }); app.emit("state"); }
  takeQuestion();
  await refreshList();
  byId("input").focus(); // no keyboard opens on a touch screen before it is touched
  document.body.classList.add("ready");
}

start();
