/** One view per message, with its actions. */

import { app, answer, edit, fork, regenerate, removeMessage, sendResults, showBranch } from "./app.js";
import { statsText } from "./answer.js";
import { button, copyFrom, el, iconButton, openMenu } from "./dom.js";
import { fileChip } from "./file_chip.js";
import { duration, moment, number, t } from "./language.js";
import { codeFigure } from "./markdown/code.js";
import { MarkdownView } from "./markdown/view.js";
import { models } from "./models.js";
import { openSettings } from "./settings.js";
import { toMarkdown } from "./transfer.js";

/** @typedef {import("./tree.js").Message} Message */

/** A frame may be spent on drawing up to this long; a text that takes longer is drawn less often. */
const DRAW_MS = 6;
/** But at least this often: one slow drawing, as of a long text that is opened, says little about the next. */
const MAX_PAUSE_MS = 400;

/** The view of a message.
 * @param {Message} message */
export function messageView(message) {
  return message.role === "assistant" ? new AssistantView(message) : message.role === "tool" ? new ToolView(message) : new UserView(message);
}

/** Arrows between the branches at a message.
 * @param {Message} message */
function branchArrows(message) {
  const branches = app.chat.tree.branches(message);
  if (branches.length < 2) return null;
  const at = branches.indexOf(message);
  return el("span", { class: "branches", role: "group", "aria-label": t("branches") },
    iconButton("small", "before", t("branch_before"), () => showBranch(message, -1), { disabled: at === 0 }),
    el("span", {}, t("branch_of", { n: at + 1, all: branches.length })),
    iconButton("small", "after", t("branch_after"), () => showBranch(message, 1), { disabled: at === branches.length - 1 }));
}

/** A text field in place of the message.
 * @param {Message} message */
function editor(message) {
  const field = el("textarea", { class: "editor", "aria-label": t("edit_message"), dir: "auto" });
  field.value = message.content;
  const grow = () => { field.style.height = "auto"; field.style.height = `${Math.min(field.scrollHeight + 2, innerHeight * .6)}px`; };
  const cancel = () => { app.edited = ""; app.emit("message", message); };
  const done = () => field.value.trim() ? edit(message, field.value.trim()) : field.focus();
  field.addEventListener("input", grow);
  field.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") { event.preventDefault(); event.stopPropagation(); cancel(); }
    if (event.key === "Enter" && !event.isComposing && (event.ctrlKey || event.metaKey)) { event.preventDefault(); done(); }
  });
  requestAnimationFrame(() => { grow(); field.focus(); });
  return el("div", { class: "editing" }, field, el("div", { class: "row end" }, button("plain", t("cancel"), cancel),
    button("plain strong save-edit", t(message.role === "user" ? "send" : "save"), done)));
}

/** @param {Message} message */
const beginEdit = message => {
  if (app.chat.run) return;
  const before = app.chat.tree.messages.get(app.edited);
  app.edited = message.id;
  if (before) app.emit("message", before);
  app.emit("message", message);
};

/** What both kinds of views have: an article that is drawn again when its message changes. */
class View {
  /** @param {Message} message
   * @param {string} kind */
  constructor(message, kind) {
    this.message = message;
    this.foot = el("div", { class: "foot" });
    if (message.at) this.foot.title = moment(message.at);
    this.node = el("article", { class: `message ${kind}`, "aria-label": t(kind === "user" ? "you" : kind === "tool" ? "results" : "model") });
  }

  /** Draws the message as it is now. */
  render() {}

  changed() { this.render(); }

  /** @param {any} anchor
   * @param {any[]} items */
  menu(anchor, items) {
    openMenu(anchor, [...items, { label: t("fork"), run: () => fork(this.message) },
      { label: t("delete"), disabled: Boolean(app.chat.run), run: () => removeMessage(this.message) }]);
  }

  /** @param {() => any[]} items */
  moreButton(items) {
    return iconButton("small more", "more", t("more"), event => this.menu(event.currentTarget, items()), { "aria-haspopup": "menu", "aria-expanded": "false" });
  }
}

class UserView extends View {
  /** @param {Message} message */
  constructor(message) {
    super(message, "user");
    this.render();
  }

  render() {
    const { message } = this;
    if (app.edited === message.id) return this.node.replaceChildren(editor(message));
    const files = message.attachments.map(fileChip);
    this.node.replaceChildren(
      el("div", { class: "bubble" }, files.length ? el("div", { class: "files" }, ...files) : null,
        message.content ? el("div", { class: "said", dir: "auto" }, message.content) : null),
      this.foot);
    this.foot.replaceChildren(...[
      branchArrows(message), iconButton("small copy", "copy", t("copy"), event => copyFrom(event.currentTarget, () => message.content)),
      iconButton("small edit", "edit", t("edit"), () => beginEdit(message)), this.moreButton(() => [])].filter(Boolean));
  }
}

class ToolView extends View {
  /** @param {Message} message */
  constructor(message) {
    super(message, "tool");
    this.render();
  }

  render() {
    const { message } = this;
    const parent = app.chat.tree.messages.get(message.parent);
    if (app.edited === message.id && parent) return this.edit(parent);
    this.node.replaceChildren(
      ...message.results.map(({ name, content }) => el("div", { class: "markdown" }, codeFigure(t("result_of", { name }), content))),
      this.foot);
    this.foot.replaceChildren(...[branchArrows(message),
      parent ? iconButton("small edit", "edit", t("edit_results"), () => beginEdit(message)) : null, this.moreButton(() => [])].filter(Boolean));
  }

  /** Fields for other results of the same calls, which are sent as a branch.
   * @param {Message} parent */
  async edit(parent) {
    const { resultsForm } = await import("./tools.js");
    const form = resultsForm(parent, app.chat.record.settings, results => { app.edited = ""; sendResults(parent, results); }, this.message.results);
    const cancel = () => { app.edited = ""; this.render(); };
    form.lastChild.prepend(button("plain", t("cancel"), cancel));
    form.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => { if (event.key === "Escape") { event.preventDefault(); cancel(); } });
    this.node.replaceChildren(form);
    form.querySelector("textarea")?.focus();
  }
}

class AssistantView extends View {
  /** The timer and the frame of the next drawing. @type {any} */
  late;
  /** @type {number | undefined} */
  frame;

  /** @param {Message} message */
  constructor(message) {
    super(message, "assistant");
    this.content = new MarkdownView();
    this.reasoning = new MarkdownView();
    this.summary = el("summary");
    this.thinking = el("details", { class: "thinking" }, this.summary, this.reasoning.node);
    this.summary.addEventListener("click", () => { this.touched = true; }); // the reader's choice is kept
    this.waiting = el("div", { class: "waiting", role: "img", "aria-label": t("waiting") }, el("i"), el("i"), el("i"));
    this.calls = el("div", { class: "calls markdown" });
    this.failure = el("div", { class: "failure" });
    this.probabilities = el("div", { class: "probabilities", hidden: true });
    this.stats = el("span", { class: "stats" });
    this.node.append(this.thinking, this.waiting, this.content.node, this.calls, this.probabilities, this.failure, this.foot);
    this.content.node.dir = "auto";
    this.render();
  }

  /** Draws at the next frame, however many chunks come before it; less often if drawing is slow. */
  changed() {
    if (!this.message.end && this.next && performance.now() < this.next) {
      this.late ??= setTimeout(() => { this.late = undefined; this.changed(); }, this.next - performance.now());
      return;
    }
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      const begin = performance.now();
      this.render();
      const took = performance.now() - begin;
      this.next = took > DRAW_MS ? performance.now() + Math.min(4 * took, MAX_PAUSE_MS) : 0;
      app.emit("drawn", this);
    });
  }

  render() {
    const { message } = this;
    const live = app.chat.running === message;
    if (app.edited === message.id) {
      this.edited = true;
      return this.node.replaceChildren(editor(message));
    }
    if (this.edited) {
      this.edited = false;
      this.node.replaceChildren(this.thinking, this.waiting, this.content.node, this.calls, this.probabilities, this.failure, this.foot);
    }
    const thinks = live && !message.content && !message.calls.length;
    this.content.render(message.content, live);
    this.thinking.hidden = !message.reasoning;
    if (message.reasoning) {
      this.reasoning.render(message.reasoning, thinks);
      if (!this.touched) this.thinking.open = thinks;
      const { thought } = message.stats;
      this.summary.textContent = thinks ? t("thinking") : thought ? t("thought_for", { time: duration(thought) }) : t("thoughts");
    }
    this.waiting.hidden = !live || Boolean(message.content || message.reasoning || message.calls.length);
    this.stats.textContent = statsText(message);
    if (live && this.live) return; // its foot changes at the end
    this.live = live;
    this.renderCalls(live);
    this.failure.hidden = !message.error;
    if (message.error) this.failure.replaceChildren(el("span", {}, message.error), button("plain retry", t("try_again"), () => regenerate(message)));
    this.renderFoot(live);
  }

  /** @param {boolean} live */
  renderFoot(live) {
    const { message } = this;
    if (live) return this.foot.replaceChildren(this.stats);
    const last = app.chat.record.leaf === message.id;
    this.foot.replaceChildren(...[
      branchArrows(message),
      message.content ? iconButton("small copy", "copy", t("copy_markdown"), event => copyFrom(event.currentTarget, () => message.content)) : null,
      iconButton("small edit", "edit", t("edit"), () => beginEdit(message)),
      iconButton("small regenerate", "again", t("regenerate"), () => regenerate(message)),
      last && message.content && message.end !== "tool_calls" ? iconButton("small continue", "on", t("continue"), () => answer(message)) : null,
      this.moreButton(() => [
        ...(models.list.length > 1 ? models.list.map(({ id }) => ({ label: t("regenerate_with", { model: id }), run: () => regenerate(message, id) })) : []),
        { label: t("regenerate_settings"), run: () => openSettings(message) },
        ...(message.tokens.length ? [{ label: t(this.probabilities.hidden ? "show_probabilities" : "hide_probabilities"), run: () => this.toggleProbabilities() }] : []),
        { label: t("copy_thread"), run: () => copyFrom(this.foot, () => toMarkdown(app.chat)) },
      ]),
      this.stats,
      models.list.length > 1 && message.model ? el("span", { class: "stats" }, message.model) : null,
    ].filter(Boolean));
  }

  /** The tool calls; those of the last answer have fields for their results.
   * @param {boolean} live */
  async renderCalls(live) {
    const { message } = this;
    const figures = message.calls.map(({ name, arguments: text }) => {
      try { text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* incomplete or not JSON: shown as it is */ }
      return codeFigure(t("tool_call", { name }), text, "json");
    });
    this.calls.replaceChildren(...figures);
    if (live || !figures.length || app.chat.record.leaf !== message.id) return;
    const { resultsForm } = await import("./tools.js");
    if (!this.calls.contains(figures[0]) || this.calls.querySelector("form")) return; // drawn again in the meantime
    this.calls.append(resultsForm(message, app.chat.record.settings, results => sendResults(message, results)));
  }

  /** The text as tokens, each with its probability and the others that were likely. */
  toggleProbabilities() {
    const hidden = !this.probabilities.hidden;
    this.probabilities.hidden = hidden;
    this.content.node.hidden = !hidden;
    if (hidden || this.probabilities.firstChild) return;
    const percent = (/** @type {number} */ logprob) => `${number(100 * Math.exp(logprob), 1)} %`;
    const note = el("div", { class: "note", role: "status" }, t("probabilities_hint"));
    const { tokens } = this.message;
    let at = -1;
    const show = (/** @type {number} */ index) => { // by pointer or by arrow keys
      text.children[at]?.classList.remove("current");
      at = Math.max(0, Math.min(tokens.length - 1, index));
      text.children[at].classList.add("current");
      const [token, logprob, top] = tokens[at];
      note.replaceChildren(el("b", {}, `${JSON.stringify(token)} ${percent(logprob)}`),
        ...top.map((/** @type {[string, number]} */ [other, value]) => el("span", {}, `${JSON.stringify(other)} ${percent(value)}`)));
    };
    const text = el("p", {
      tabindex: 0, role: "group", "aria-label": t("show_probabilities"),
      mouseover: (/** @type {any} */ event) => { const i = [...text.children].indexOf(event.target); if (i >= 0) show(i); },
      keydown: (/** @type {KeyboardEvent} */ event) => {
        const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
        if (step) { event.preventDefault(); show(at + step); }
      },
    }, ...tokens.map(([token, logprob]) => el("span", { class: `p${Math.min(4, Math.floor(Math.max(0, -logprob) / .7))}` }, token)));
    this.probabilities.append(text, note);
  }
}
