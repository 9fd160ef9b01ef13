/** Code blocks: fences, and a figure that grows with its text. */

import { copyFrom, download, el, iconButton } from "../dom.js";
import { t } from "../language.js";

export const FENCE = /^\s*(`{3,}|~{3,})([^`]*)$/;

/** Lines per element: a text that grows is laid out again only in the last one. */
const CHUNK = 100;
/** Longer texts have no colours, or none while they grow. */
const MAX_COLOURED = 200000, MAX_COLOURED_LIVE = 8000;

/** @param {string} line
 * @param {string} mark */
export function closesFence(line, mark) {
  const text = line.trim();
  return text.length >= mark.length && text[0] === mark[0] && text === mark[0].repeat(text.length);
}

/** @param {string} line */
export function indentOf(line) {
  let width = 0;
  for (const c of line) {
    if (c === " ") width++;
    else if (c === "\t") width += 4 - width % 4;
    else break;
  }
  return width;
}

/** The line without up to `width` columns of leading space.
 * @param {string} line
 * @param {number} width */
export function dedent(line, width) {
  let at = 0;
  for (let column = 0; column < width && (line[at] === " " || line[at] === "\t"); at++) {
    column += line[at] === "\t" ? 4 - column % 4 : 1;
  }
  return line.slice(at);
}

/** The language and the text of a fenced block.
 * @param {string[]} lines
 * @param {boolean} live */
export function fencedCode(lines, live) {
  const [, mark, info] = /** @type {RegExpExecArray} */ (FENCE.exec(lines[0]));
  const body = lines.slice(1);
  const last = body.at(-1);
  if (last !== undefined && closesFence(last, mark)) body.pop();
  else if (live && last && mark.startsWith(last.trim())) body.pop(); // half of the closing fence
  const width = indentOf(lines[0]);
  return { language: info.trim().split(/\s/, 1)[0], text: body.map(line => dedent(line, width)).join("\n") };
}

/** @param {string[]} lines
 * @param {number} depth
 * @param {boolean} live */
export function renderFence(lines, depth, live) {
  const { language, text } = fencedCode(lines, live);
  return codeFigure(language || "code", text, language, live);
}

/** @typedef {{ code: any, language: string, text: string, lines: number, plain: boolean }} Shown */

/** What a figure shows. @type {WeakMap<any, Shown>} */
const shown = new WeakMap();

/** A block of code with its language, and buttons to copy and to save it.
 * @param {string} label
 * @param {string} text
 * @param {string} language */
export function codeFigure(label, text, language = "", live = false) {
  const code = el("code");
  const current = () => shown.get(figure)?.text ?? "";
  const figure = el("figure", { class: "code" },
    el("figcaption", {}, el("span", {}, label),
      iconButton("small copy", "copy", t("copy_code"), event => copyFrom(event.currentTarget, current)),
      iconButton("small save", "save", t("save_code"), () => download(fileName(language), current()))),
    el("pre", { tabindex: 0, role: "group", "aria-label": t("code_in", { language: label }) }, code));
  shown.set(figure, { code, language, text: "", lines: 0, plain: true });
  setCode(figure, text, live);
  return figure;
}

/** Changes the text of a figure; text that was added at the end is added to its nodes.
 * @param {any} figure
 * @param {string} text */
export function setCode(figure, text, live = false) {
  const state = /** @type {any} */ (shown.get(figure));
  const old = state.text;
  if (state.plain && text.startsWith(old)) append(state, text.slice(old.length));
  else {
    state.code.replaceChildren();
    state.lines = 0;
    append(state, text);
  }
  state.text = text;
  if (text.length <= (live ? MAX_COLOURED_LIVE : MAX_COLOURED)) colour(state);
}

/** Adds text in elements of `CHUNK` lines.
 * @param {Shown} state
 * @param {string} added */
function append(state, added) {
  state.plain = true;
  while (added) {
    if (state.lines % CHUNK === 0 && (!state.code.lastChild || state.code.lastChild.textContent.endsWith("\n"))) {
      state.code.append(el("span", {}, document.createTextNode("")));
    }
    let end = 0, at = 0;
    do {
      at = added.indexOf("\n", end);
      end = at < 0 ? added.length : at + 1;
      if (at >= 0) state.lines++;
    } while (at >= 0 && end < added.length && state.lines % CHUNK);
    state.code.lastChild.firstChild.appendData(added.slice(0, end));
    added = added.slice(end);
  }
}

/** @type {any} */
let highlighter = null;
/** @type {Promise<any> | null} */
let loading = null;

/** Settles when code has its colours, as far as any was drawn. */
export const colours = async () => loading;

/** Colours the text when the highlighter is loaded: it is requested with the first block in a known language.
 * @param {Shown} state */
function colour(state) {
  if (!state.language || !state.text) return;
  if (!highlighter) {
    loading ??= import("../highlight.js").then(module => { highlighter = module; }, () => {}); // without it code is plain
    loading.then(() => { if (highlighter) colour(state); });
    return;
  }
  const tokens = highlighter.tokens(state.language, state.text);
  if (!tokens.length) return;
  state.plain = false;
  let at = 0, i = 0;
  for (const chunk of state.code.children) {
    const end = at + chunk.textContent.length;
    const nodes = [];
    for (let from = at; from < end;) {
      while (i < tokens.length && tokens[i].end <= from) i++;
      const token = tokens[i];
      const inside = token && token.start <= from;
      const to = Math.min(end, inside ? token.end : token?.start ?? end);
      const text = state.text.slice(from, to);
      nodes.push(inside ? el("span", { class: `t-${token.kind}` }, text) : document.createTextNode(text));
      from = to;
    }
    chunk.replaceChildren(...nodes);
    at = end;
  }
}

/** Endings of files by language. @type {Record<string, string>} */
const ENDINGS = {
  javascript: "js", typescript: "ts", python: "py", rust: "rs", "c++": "cpp", "c#": "cs", ruby: "rb", kotlin: "kt", bash: "sh",
  shell: "sh", markdown: "md", yaml: "yml", html: "html", text: "txt", plaintext: "txt",
};

/** @param {string} language */
function fileName(language) {
  const name = language.toLowerCase();
  return `code.${ENDINGS[name] ?? (/^[a-z0-9]{1,8}$/.test(name) ? name : "txt")}`;
}
