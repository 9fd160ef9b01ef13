/** What is being written: a draft per conversation, its files, and how much of the context it takes. */

import { app, send, stop } from "./app.js";
import { LIMITS, MAX_FILES, readFiles } from "./attachments.js";
import { countTokens } from "./api.js";
import { announce, byId, el, iconButton, toast } from "./dom.js";
import { fileChip } from "./file_chip.js";
import { number, size, t } from "./language.js";
import { memory, newId, text } from "./memory.js";
import { models } from "./models.js";
import { enqueue, queued, sendNext, startQueue } from "./queue.js";
import { store } from "./store.js";

const DRAFT = "tern.draft.";
/** A longer text that is pasted becomes a file: it would bury what is asked about it. */
const LONG_PASTE = 4000;
const input = byId("input"), sendButton = byId("send");
const touch = matchMedia("(pointer: coarse)");
/** Files that will be sent with the message. @type {any[]} */
let files = [];
/** Tokens of the text that is being written. */
let written = 0;
/** @type {any} */
let counting = null;

/** New conversations share a draft: they have no record yet, and a tab that is opened again has another one. */
const draftId = () => app.chat.stored ? app.chat.id : "new";

const hasDraft = () => Boolean(input.value.trim() || files.length);
const canSend = () => hasDraft() || queued().length > 0;

/** Sets the text, and stores it as the draft.
 * @param {string} words */
export function write(words) {
  input.value = words;
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
  showButtons();
  if (words.trim()) memory.write(DRAFT + draftId(), words);
  else memory.remove(DRAFT + draftId());
  countLater();
}

/** During an answer the button stops it, and another one queues what is written. */
function showButtons() {
  sendButton.disabled = !app.chat.run && !canSend();
  byId("enqueue").hidden = !app.chat.run || !hasDraft();
}

/** Shows the draft of the conversation that is shown now. */
async function showDraft() {
  const id = draftId();
  write(text(memory.read(DRAFT + id)));
  files = [];
  showFiles();
  const draft = await store.draft(id).catch(() => null);
  if (draft && id === draftId() && !files.length) { files = draft.files; showFiles(); }
}

function showFiles() {
  byId("files").replaceChildren(...files.map(file => el("span", { class: "file" }, fileChip(file),
    iconButton("small", "close", t("remove_file", { name: file.name }), () => {
      files = files.filter(one => one !== file);
      keepFiles();
      input.focus();
    }))), el("small", { class: "note" }, t("file_totals", {
    n: files.length, most: MAX_FILES, size: size(files.reduce((sum, one) => sum + one.bytes, 0)), limit: size(LIMITS.total),
  })));
  byId("files").hidden = !files.length;
  showButtons();
  showMeter();
}

function keepFiles() {
  showFiles();
  store.putDraft({ id: draftId(), files }).catch(() => {});
}

/** Adds files to the message and returns them; those that cannot be used are named with the reason.
 * @param {any[]} entries
 * @param {boolean} folder whether something that was dropped is a folder */
async function attach(entries, folder = false) {
  const added = [];
  if (folder) toast(t("no_folders"));
  const room = MAX_FILES - files.length;
  if (entries.length > room) toast(t("too_many_files", { n: MAX_FILES }));
  const model = models.of(app.chat.record.settings.model);
  for (const entry of entries.slice(0, Math.max(0, room))) {
    const { file, problem } = await readFiles(entry, { sees: model.sees, model: model.id, total: files.reduce((sum, one) => sum + one.bytes, 0) });
    if (problem) toast(`${entry.name}: ${problem}`);
    if (file) {
      files.push(file);
      added.push(file);
      keepFiles();
      announce(t("file_added", { name: file.name }));
    }
  }
  return added;
}

/** Attaches a text that was pasted, unless the reader wants it in the message.
 * @param {string} words */
async function attachPasted(words) {
  const taken = new Set(files.map(({ name }) => name));
  let name = "pasted.txt";
  for (let n = 2; taken.has(name); n++) name = `pasted-${n}.txt`;
  const [file] = await attach([new File([words], name, { type: "text/plain" })]);
  if (!file) return; // refused, with the reason
  toast(t("pasted_as_file", { name }), { label: t("paste_as_text"), run: () => {
    files = files.filter(one => one !== file);
    keepFiles();
    input.setRangeText(words, input.selectionStart, input.selectionEnd, "end");
    write(input.value);
    input.focus();
  } });
}

/** Counts the tokens of the draft a moment after the last key. */
function countLater() {
  clearTimeout(counting);
  const words = input.value;
  if (!words.trim()) { written = 0; showMeter(); return; }
  counting = setTimeout(async () => {
    const count = await countTokens(words, models.of(app.chat.record.settings.model).id);
    if (count !== null && words === input.value) { written = count; showMeter(); }
  }, 600);
}

/** The part of the context that the conversation and the draft take. */
function showMeter() {
  const { context } = models.of(app.chat.record.settings.model);
  const last = app.chat.path.findLast(message => message.stats.prompt);
  const used = (last ? (last.stats.prompt ?? 0) + (last.stats.tokens ?? last.stats.pieces ?? 0) : 0) + written + files.reduce((sum, file) => sum + file.tokens, 0);
  const meter = byId("meter");
  meter.hidden = !context || !used;
  if (meter.hidden) return;
  const share = Math.min(1, used / context);
  byId("meter-bar").style.inlineSize = `${100 * share}%`;
  meter.classList.toggle("full", share > .9);
  byId("meter-text").textContent = t("context_used", { n: number(used), all: number(context) });
}

function submit() {
  const content = input.value.trim();
  if (!hasDraft()) return app.chat.run ? undefined : sendNext(app.chat);
  const sent = files;
  files = [];
  write(""); // the draft of a conversation without messages, if this is the first one
  keepFiles();
  written = 0;
  if (!app.chat.run && !queued().length) return send(content, sent);
  enqueue({ content, attachments: sent });
  if (!app.chat.run) sendNext(app.chat);
}

/** Focus the input, except on touch screens, where the keyboard would cover half the answer. */
export function focusInput() {
  if (matchMedia("(pointer: fine)").matches) input.focus();
}

function showState() {
  const running = Boolean(app.chat.run);
  document.body.classList.toggle("running", running);
  byId("conversation").setAttribute("aria-busy", String(running));
  showButtons();
  sendButton.setAttribute("aria-label", t(running ? "stop" : "send"));
  sendButton.title = t(running ? "stop_key" : "send_key");
  const model = models.of(app.chat.record.settings.model);
  input.placeholder = t(model.continues ? "text_to_continue" : "message");
  byId("file-input").accept = `text/*,.pdf,.csv,.json,.md,.toml,.yaml,.yml,.rs,.py,.js,.ts,.c,.cpp,.h,.go,.java,.sh,.sql,.xml${model.sees ? ",image/*" : ""}`;
  byId("camera").hidden = !model.sees || !touch.matches;
  showMeter();
}

/** The files of a drop, and whether there is a folder among them.
 * @param {DataTransfer} data */
function dropped(data) {
  const entries = [...data.items ?? []].filter(({ kind }) => kind === "file");
  const folder = entries.some(item => item.webkitGetAsEntry?.()?.isDirectory);
  return { folder, list: folder ? entries.filter(item => !item.webkitGetAsEntry()?.isDirectory).map(item => item.getAsFile()).filter(Boolean) : [...data.files] };
}

export function startComposer() {
  startQueue(DRAFT, ({ content, attachments }) => {
    files = [...attachments, ...files];
    write([content, input.value].filter(Boolean).join("\n\n"));
    keepFiles();
  });
  byId("enqueue").addEventListener("click", () => { submit(); focusInput(); });
  input.addEventListener("input", () => write(input.value));
  input.enterKeyHint = touch.matches ? "enter" : "send";
  input.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return; // an input method's Enter picks a word
    if (touch.matches && !event.ctrlKey && !event.metaKey) return; // its keyboard has no other key for a new line
    event.preventDefault();
    submit();
  });
  sendButton.addEventListener("click", () => {
    if (!app.chat.run) return submit();
    stop();
    focusInput();
  });
  byId("attach").title = t("attach_limits", { text: size(LIMITS.text), pdf: size(LIMITS.pdf), n: MAX_FILES });
  byId("attach").addEventListener("click", () => byId("file-input").click());
  byId("camera").addEventListener("click", () => byId("camera-input").click());
  for (const id of ["file-input", "camera-input"]) byId(id).addEventListener("change", (/** @type {any} */ event) => {
    attach([...event.target.files]);
    event.target.value = "";
  });
  input.addEventListener("paste", (/** @type {any} */ event) => {
    const words = event.clipboardData.getData("text/plain");
    if (event.clipboardData.files.length) attach([...event.clipboardData.files]);
    else if (words.length > LONG_PASTE && !models.of(app.chat.record.settings.model).continues) attachPasted(words);
    else return;
    event.preventDefault();
  });
  addEventListener("dragover", event => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  addEventListener("dragleave", event => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
  addEventListener("drop", event => {
    document.body.classList.remove("dropping");
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    const { folder, list } = dropped(event.dataTransfer);
    attach(list, folder);
  });
  let shown = "";
  app.on("chat", () => {
    if (shown === app.chat.id) return showMeter();
    shown = app.chat.id;
    showDraft();
    focusInput();
  });
  app.on("state", showState);
  app.on("settings", showState);
  models.onChange(showState);
}
