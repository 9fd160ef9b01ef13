/** Markdown: a text to its blocks, and each kind of block to nodes. `live` says that the text still grows at its end. */

import { el } from "../dom.js";
import { closesFence, dedent, FENCE, indentOf, renderFence } from "./code.js";
import { inline } from "./inline.js";
import { mathNode } from "./math.js";

const MAX_DEPTH = 10; // of nested lists and quotes
const MAX_COLUMNS = 64;
const MAX_MATH_LINES = 100;

const HEADING = /^ {0,3}(#{1,6})(?:\s+|$)/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+•]|\d{1,9}[.)])(?:\s+|$)/;
/** How a formula of its own begins, and the mark that ends it. */
const MATH = /^\s*(?:\$\$|\\\[)/;
const DELIMITER_ROW = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

/**
 * A kind of block: whether one starts at a line, the line after it, and its nodes.
 * @typedef {(lines: string[], depth: number, live: boolean) => any} Render
 * @typedef {{ name: string, starts: (lines: string[], at: number, live: boolean) => boolean,
 *   end: (lines: string[], at: number, live: boolean) => number, render: Render }} Kind
 * @typedef {{ kind: Omit<Kind, "starts">, at: number, lines: string[], live: boolean, node?: any }} Block
 */

/** The kinds of block, first match wins; anything else is a paragraph. `end` is the line after the block.
 * @type {Kind[]} */
const BLOCKS = [
  { name: "code", starts: startsWith(FENCE), end: fenceEnd, render: renderFence },
  { name: "heading", starts: startsWith(HEADING), end: nextLine, render: renderHeading },
  { name: "rule", starts: startsWith(RULE), end: nextLine, render: () => el("hr") },
  { name: "quote", starts: startsWith(QUOTE), end: quoteEnd, render: renderQuote },
  { name: "list", starts: startsWith(ITEM), end: (lines, at) => listItems(lines, at).end, render: renderList },
  { name: "table", starts: tableStarts, end: tableEnd, render: renderTable },
  { name: "math", starts: (lines, at) => mathEnd(lines, at) > 0, end: mathEnd, render: renderMath },
];
const PARAGRAPH = { name: "paragraph", end: paragraphEnd, render: renderParagraph };

/** @param {RegExp} pattern */
function startsWith(pattern) {
  return (/** @type {string[]} */ lines, /** @type {number} */ at) => pattern.test(lines[at]);
}

/** @param {string[]} lines
 * @param {number} at */
function nextLine(lines, at) {
  return at + 1;
}

/** Lines to blocks, each with the lines it is made of, from the line `at` on.
 * @param {string[]} lines
 * @param {boolean} live
 * @returns {Block[]} */
export function splitBlocks(lines, live) {
  /** @type {Block[]} */
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) { at++; continue; }
    const kind = BLOCKS.find(kind => kind.starts(lines, at, live)) ?? PARAGRAPH;
    const end = kind.end(lines, at, live);
    blocks.push({ kind, at, lines: lines.slice(at, end), live: false });
    at = end;
  }
  const last = blocks.at(-1);
  if (live && last) last.live = true;
  return blocks;
}

/** @param {any} parent
 * @param {string[]} lines
 * @param {number} depth
 * @param {boolean} live */
function appendBlocks(parent, lines, depth, live) {
  const blocks = depth < MAX_DEPTH ? splitBlocks(lines, live) : [{ kind: PARAGRAPH, lines, live }];
  for (const { kind, lines, live } of blocks) parent.append(kind.render(lines, depth, live));
  return parent;
}

/** @param {string[]} lines
 * @param {number} at */
function fenceEnd(lines, at) {
  const mark = FENCE.exec(lines[at])?.[1] ?? "";
  for (let i = at + 1; i < lines.length; i++) if (closesFence(lines[i], mark)) return i + 1;
  return lines.length; // never closed: code to the end, as while it streams
}

/** @param {string[]} lines
 * @param {number} depth
 * @param {boolean} live */
function renderHeading(lines, depth, live) {
  const [mark, marks] = /** @type {RegExpExecArray} */ (HEADING.exec(lines[0]));
  let text = lines[0].slice(mark.length).trim();
  const closing = text.lastIndexOf(" ");
  if (closing > 0 && text.length - closing <= 7 && /^#+$/.test(text.slice(closing + 1))) text = text.slice(0, closing);
  const level = Math.min(marks.length + 2, 6); // h1 and h2 are the page's own
  return inline(el(`h${level}`), text, live);
}

/** @param {string[]} lines
 * @param {number} at */
function quoteEnd(lines, at) {
  while (at < lines.length && QUOTE.test(lines[at])) at++;
  return at;
}

/** @param {string[]} lines
 * @param {number} depth
 * @param {boolean} live */
function renderQuote(lines, depth, live) {
  return appendBlocks(el("blockquote"), lines.map(line => line.replace(QUOTE, "")), depth + 1, live);
}

/** @param {string[]} lines
 * @param {number} at
 * @param {boolean} live */
function paragraphEnd(lines, at, live) {
  const interrupts = (/** @type {number} */ i) => BLOCKS.some(kind => kind.starts(lines, i, live)
    && (kind.name !== "list" || !/^\s*(?!1[.)])\d/.test(lines[i]))); // "1986. A good year" goes on with its paragraph
  do at++; while (at < lines.length && lines[at].trim() && !interrupts(at));
  return at;
}

/** @param {string[]} lines
 * @param {number} depth
 * @param {boolean} live */
function renderParagraph(lines, depth, live) {
  return inline(el("p"), lines.map(line => line.trim()).join("\n"), live);
}

/** The items of the list that starts at `at`, each as the lines inside it, and the line after the list.
 * @param {string[]} lines
 * @param {number} at */
function listItems(lines, at) {
  const isOrdered = (/** @type {RegExpExecArray} */ item) => /\d/.test(item[2]);
  const first = /** @type {RegExpExecArray} */ (ITEM.exec(lines[at]));
  const base = indentOf(lines[at]);
  /** @type {string[][]} */
  const items = [];
  const last = () => items[items.length - 1];
  /** The mark of an open fence. @type {string | null} */
  let fence = null;
  let blank = false, end = at, width = 0;
  for (let i = at; i < lines.length; i++) {
    const line = lines[i];
    if (fence) {
      if (closesFence(line, fence)) fence = null;
      last().push(dedent(line, width));
      end = i + 1;
      continue;
    }
    if (!line.trim()) { blank = true; last().push(""); continue; }
    const item = ITEM.exec(line);
    const inner = indentOf(line) >= base + 2 && i > at; // two columns are enough, whatever the marker's width
    if (!inner && item && isOrdered(item) === isOrdered(first) && !RULE.test(line)) {
      width = item[0].length;
      items.push([line.slice(width)]);
    } else if (inner || !(blank || BLOCKS.some(kind => kind.starts(lines, i, false)))) {
      last().push(dedent(line, width));
    } else {
      break;
    }
    fence = FENCE.exec(last()[last().length - 1])?.[1] ?? null;
    blank = false;
    end = i + 1;
  }
  return { items, end, start: isOrdered(first) ? parseInt(first[2], 10) : null };
}

/** @param {string[]} lines
 * @param {number} depth
 * @param {boolean} live */
function renderList(lines, depth, live) {
  const { items, start } = listItems(lines, 0);
  const list = start === null ? el("ul") : el("ol", start === 1 ? {} : { start });
  items.forEach((item, i) => {
    const task = /^\[[ xX]\] /.test(item[0]);
    if (task) item[0] = (item[0][1] === " " ? "☐" : "☑") + item[0].slice(3);
    list.append(appendBlocks(el("li", task ? { class: "task" } : {}), item, depth + 1, live && i === items.length - 1));
  });
  return list;
}

/** The cells of a table row: split at | without a backslash before it.
 * @param {string} line */
function tableCells(line) {
  let text = line.trim();
  if (text.startsWith("|")) text = text.slice(1);
  if (text.endsWith("|") && !text.endsWith("\\|")) text = text.slice(0, -1);
  return text.split(/(?<!\\)\|/).map(cell => cell.trim().replaceAll("\\|", "|"));
}

/** @param {string[]} lines
 * @param {number} at
 * @param {boolean} live */
function tableStarts(lines, at, live) {
  const [head, next] = [lines[at], lines[at + 1]];
  if (!head.includes("|")) return false;
  if (live && at + 2 >= lines.length && head.trimStart().startsWith("|") && (!next || /^\s*\|[\s|:-]*$/.test(next))) {
    return tableCells(head).length <= MAX_COLUMNS; // the row of dashes is on its way
  }
  if (next === undefined || !DELIMITER_ROW.test(next)) return false;
  const columns = tableCells(head).length;
  return columns <= MAX_COLUMNS && columns === tableCells(next).length;
}

/** @param {string[]} lines
 * @param {number} at */
function tableEnd(lines, at) {
  at = Math.min(at + 2, lines.length);
  while (at < lines.length && lines[at].includes("|")) at++;
  return at;
}

/** @param {string[]} lines
 * @param {number} depth
 * @param {boolean} live */
function renderTable(lines, depth, live) {
  const head = tableCells(lines[0]);
  const aligned = tableCells(lines[1] ?? "").map(dashes => {
    return !dashes.endsWith(":") ? "" : dashes.startsWith(":") ? "center" : "right";
  });
  const row = (/** @type {string} */ tag, /** @type {string[]} */ cells, /** @type {boolean} */ live) => el("tr", {}, ...head.map((_, i) => {
    const cell = inline(el(tag), cells[i] ?? "", live && i === cells.length - 1);
    if (aligned[i]) cell.style.textAlign = aligned[i];
    return cell;
  }));
  const body = el("tbody");
  for (let i = 2; i < lines.length; i++) body.append(row("td", tableCells(lines[i]), live && i === lines.length - 1));
  return el("div", { class: "table" }, el("table", {}, el("thead", {}, row("th", head, false)), body));
}

/** The line after the formula that begins at `at`, or 0 if none does: without its end mark it is text.
 * @param {string[]} lines
 * @param {number} at */
function mathEnd(lines, at) {
  const begin = MATH.exec(lines[at])?.[0];
  if (!begin) return 0;
  const mark = begin.endsWith("$$") ? "$$" : "\\]";
  for (let i = at; i < lines.length && i < at + MAX_MATH_LINES; i++) {
    const line = (i === at ? lines[i].slice(begin.length) : lines[i]).trimEnd();
    if (line.endsWith(mark)) return i + 1;
    if (line.includes(mark) || (i > at && !line.trim())) return 0;
  }
  return 0;
}

/** @param {string[]} lines */
function renderMath(lines) {
  const source = lines.join("\n").trim();
  return el("p", {}, mathNode(source.slice(2, -2), true, source));
}
