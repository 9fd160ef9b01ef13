/** A growing Markdown text: blocks that did not change keep their nodes, and finished ones are not parsed again. */

import { el } from "../dom.js";
import { splitBlocks } from "./blocks.js";
import { fencedCode, setCode } from "./code.js";

/** @typedef {import("./blocks.js").Block} Block */

/** Blocks per part of the document: parts out of sight are neither laid out nor painted. */
const PART = 30;
/** The text after this many blocks of a growing text is parsed from its last blocks on. */
const OPEN_BLOCKS = 8;

/** Gives each heading the level that follows from those above it: a text may begin with ###, and no level is skipped.
 * @param {any} node */
function levelHeadings(node) {
  let above = 2; // the heading of the conversation
  for (const heading of node.querySelectorAll("h3, h4, h5, h6")) {
    const own = Number(heading.localName[1]);
    above = Math.min(own, above + 1);
    if (above === own) heading.removeAttribute("aria-level");
    else heading.setAttribute("aria-level", above);
  }
}

export class MarkdownView {
  node = el("div", { class: "markdown" });
  /** The beginning of the text whose blocks are finished. */
  #finished = "";
  /** The blocks after it. @type {Block[]} */
  #blocks = [];
  /** How many blocks are finished. */
  #before = 0;

  /** Draws the text, which `live` says is still growing at its end. Returns the nodes of blocks that are now finished.
   * @param {string} text
   * @param {boolean} live */
  render(text, live) {
    if (!text.startsWith(this.#finished)) {
      this.#finished = "";
      this.#blocks = [];
      this.#before = 0;
      this.node.replaceChildren();
    }
    const raw = text.slice(this.#finished.length).split("\n");
    const next = splitBlocks(raw.map(line => line.includes("\r") ? line.replaceAll("\r", "") : line), live);
    let same = 0;
    while (same < next.length && isSame(this.#blocks[same], next[same])) next[same].node = this.#blocks[same++].node;
    if (next[same] && isGrownCode(this.#blocks[same], next[same])) same++;
    for (const block of this.#blocks.slice(same)) block.node.remove();
    next.slice(same).forEach((block, i) => {
      block.node = block.kind.render(block.lines, 0, block.live);
      this.#part(this.#before + same + i).append(block.node);
    });
    while (this.node.children.length > 1 && !this.node.lastChild.firstChild) this.node.lastChild.remove();
    if (next.slice(same).some(block => block.node.matches("h3, h4, h5, h6") || block.node.querySelector("h3, h4, h5, h6"))) levelHeadings(this.node);
    this.#blocks = next;
    if (live && next.length >= OPEN_BLOCKS) {
      // a block that begins may still become part of the one before it: the last two are open
      const at = next[next.length - 2].at;
      this.#finished += raw.slice(0, at).join("\n") + "\n";
      this.#blocks = next.slice(-2);
      this.#before += next.length - 2;
      for (const block of this.#blocks) block.at -= at;
    }
  }

  /** The part that has the block with this number.
   * @param {number} number */
  #part(number) {
    const at = Math.floor(number / PART);
    if (!this.node.children[at]) this.node.append(el("div", { class: "part" }));
    return this.node.children[at];
  }
}

/** @param {Block | undefined} old
 * @param {Block} now */
function isSame(old, now) {
  return old?.kind === now.kind && old.live === now.live && old.lines.length === now.lines.length
    && old.lines.at(-1) === now.lines.at(-1) && old.lines.every((line, i) => line === now.lines[i]);
}

/** Whether `now` is the code block `old` with text added at its end; the text is then in its node.
 * @param {Block | undefined} old
 * @param {Block} now */
function isGrownCode(old, now) {
  if (old?.kind.name !== "code" || now.kind.name !== "code" || old.lines[0] !== now.lines[0]) return false;
  setCode(old.node, fencedCode(now.lines, now.live).text, now.live);
  now.node = old.node;
  return true;
}
