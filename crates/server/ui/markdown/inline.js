/** Text inside a block: emphasis, code, links and formulas as nodes. */

import { el } from "../dom.js";
import { mathNode } from "./math.js";

const MAX_OPEN_MARKS = 8; // unclosed * and _ that are tracked

// Every repetition is bounded or cannot give back what it took, so that no text makes the search slow.
const LABEL = /(?<label>(?:[^\[\]\\]|\\.|\[[^\[\]]{0,100}\]){0,300})/;
const TARGET = /<?(?<target>[^\s<>()]{0,2000}(?:\([^\s<>()]{0,200}\)[^\s<>()]{0,200}){0,5})>?/;
const TITLE = /(?:\s{1,3}["'][^"'\n]{0,300}["'])?/;
const INLINE = new RegExp([
  /\\\((?<round>[^]{1,1000}?)\\\)/.source,
  /\\\[(?<square>[^]{1,1000}?)\\\]/.source,
  /\$\$(?<double>[^$]{1,1000})\$\$/.source,
  /(?<![\w$])\$(?<dollar>[^\s$](?:[^$\n]{0,500}[^\s$\\])?)\$(?![\w$])/.source,
  /\\(?<escaped>[!-\/:-@[-`{-~])/.source,
  /(?<ticks>`+)/.source,
  /(?<marks>\*+|_+|~+)/.source,
  `!?\\[${LABEL.source}\\]\\(\\s{0,3}${TARGET.source}${TITLE.source}\\s{0,3}\\)`,
  /<(?<angled>https?:\/\/[^\s<>]+)>/.source,
  /(?<bare>\bhttps?:\/\/[^\s<>"`|]+)/.source,
  /(?<newline>\n|<br ?\/?>)/.source,
].join("|"), "gi");

/** Adds text before a child, or at the end: to the text that is there, since many children make insertions
 * slow.
 * @param {any} parent
 * @param {any} child
 * @param {string} string */
function addText(parent, child, string) {
  const last = child ? child.previousSibling : parent.lastChild;
  if (last?.nodeType === Node.TEXT_NODE) last.appendData(string);
  else parent.insertBefore(document.createTextNode(string), child);
}

/** Fills `parent` with the text's inline Markdown and returns it.
 * @param {any} parent
 * @param {string} text
 * @param {boolean} live */
export function inline(parent, text, live, links = true) {
  if (live) text = withoutHalfMarks(text);
  let into = parent;
  /** Marks not closed yet, outermost first. @type {{ mark: string, node: any }[]} */
  const open = [];
  const put = (/** @type {string} */ string) => { if (string) addText(into, null, string); };
  const unwrap = (/** @type {{ mark: string, node: any }} */ { mark, node }) => { // a mark that never closed is text
    const parent = node.parentNode;
    if (into === node) into = parent;
    addText(parent, node, mark);
    for (let child; (child = node.firstChild); ) {
      child.remove();
      if (child.nodeType === Node.TEXT_NODE) addText(parent, node, child.data);
      else parent.insertBefore(child, node);
    }
    node.remove();
  };
  const mark = (/** @type {string} */ run, /** @type {string} */ before, /** @type {string} */ after) => {
    const char = run[0];
    if (run.length > 3 || (char === "~" && run.length !== 2)) return put(run);
    const closes = before.trim() && !(char === "_" && /[\p{L}\p{N}]/u.test(after));
    const opens = after.trim() && !(char === "_" && /[\p{L}\p{N}]/u.test(before));
    let left = run.length;
    for (let i = open.length - 1; closes && left && i >= 0; i--) {
      if (open[i].mark[0] !== char || open[i].mark.length > left) continue;
      open.splice(i + 1).reverse().forEach(unwrap);
      const closed = /** @type {{ mark: string, node: any }} */ (open.pop());
      left -= closed.mark.length;
      into = closed.node.parentNode;
    }
    if (!left) return;
    if (!opens) return put(char.repeat(left));
    for (const size of left === 3 ? [2, 1] : [left]) {
      if (open.length === MAX_OPEN_MARKS) unwrap(/** @type {any} */ (open.shift()));
      const node = el(char === "~" ? "s" : size === 2 ? "strong" : "em");
      into.append(node);
      open.push({ mark: char.repeat(size), node });
      into = node;
    }
  };

  const search = new RegExp(INLINE); // its own lastIndex: labels recurse
  let at = 0;
  for (let found; (found = search.exec(text));) {
    const { round, square, double, dollar, escaped, ticks, marks, label, target, angled, bare, newline } = found.groups ?? {};
    const formula = round ?? square ?? double ?? dollar;
    put(text.slice(at, found.index));
    at = search.lastIndex;
    if (formula !== undefined) into.append(mathNode(formula, round === undefined && dollar === undefined, found[0]));
    else if (escaped) put(escaped);
    else if (marks) mark(marks, text[found.index - 1] ?? "", text[at] ?? "");
    else if (newline) into.append(el("br"));
    else if (ticks) {
      const close = closingTicks(text, at, ticks.length);
      if (close < 0 && !live) { put(ticks); continue; }
      const code = text.slice(at, close < 0 ? text.length : close).replaceAll("\n", " ");
      into.append(el("code", {}, /^ .*[^ ].* $/.test(code) ? code.slice(1, -1) : code));
      at = close < 0 ? text.length : close + ticks.length;
    } else {
      let url = label === undefined ? angled ?? withoutTrailingMarks(bare) : target;
      if (bare) at = found.index + url.length;
      const href = links && safeLink(url);
      if (!href) put(text.slice(found.index, at));
      else {
        const link = el("a", { href, target: "_blank", rel: "noopener noreferrer" });
        into.append(label ? inline(link, label, false, false) : (link.append(url), link));
      }
    }
    search.lastIndex = at;
  }
  put(text.slice(at));
  for (const entry of open.reverse()) if (!(live && entry.mark[0] === "*")) unwrap(entry);
  return parent;
}

/** While text grows: no half emphasis mark, backtick or link address at its end.
 * @param {string} text */
function withoutHalfMarks(text) {
  const bracket = text.lastIndexOf("[");
  const half = bracket < 0 ? null : /^\[([^\]]*)\](?:\([^\s()]*)?$/.exec(text.slice(bracket));
  if (half) text = text.slice(0, text[bracket - 1] === "!" ? bracket - 1 : bracket) + half[1];
  let end = text.length;
  while (end && "*_`~".includes(text[end - 1])) end--;
  return text.slice(0, end);
}

/** @param {string} text
 * @param {number} from
 * @param {number} length */
function closingTicks(text, from, length) {
  const runs = /`+/g;
  runs.lastIndex = from;
  for (let run; (run = runs.exec(text));) if (run[0].length === length) return run.index;
  return -1;
}

/** A bare address without the punctuation of the sentence around it.
 * @param {string} url */
function withoutTrailingMarks(url) {
  let end = url.length;
  const isMark = (/** @type {string} */ c) => ".,;:!?'*_~]".includes(c) || (c === ")" && !url.includes("("));
  while (isMark(url[end - 1])) end--;
  return url.slice(0, end);
}

/** The address when it is absolute http or https, else null.
 * @param {string} text */
function safeLink(text) {
  try {
    const url = new URL(text);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}

