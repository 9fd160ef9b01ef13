/** Formulas: LaTeX to MathML by Temml, which is loaded with the first formula. */

import { el } from "../dom.js";

const MAX_LENGTH = 5000;
const LONG = 60; // a formula in a line that may be wider than a phone
const MAX_KEPT = 500; // typeset formulas, for blocks that are drawn again while they grow

/** What a formula may consist of: all else of Temml's result, such as links and images, is omitted. */
const ELEMENTS = new Set(("math mrow mi mo mn ms mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover "
  + "mmultiscripts mprescripts none mtable mtr mtd mpadded mphantom menclose mstyle semantics merror").split(" "));
const ATTRIBUTES = new Set(("display displaystyle scriptlevel mathvariant mathsize mathcolor mathbackground stretchy fence "
  + "separator form lspace rspace largeop movablelimits accent accentunder symmetric minsize maxsize width height depth "
  + "voffset linethickness columnalign rowspacing columnspacing columnlines rowlines frame notation intent arg class "
  + "columnspan rowspan side").split(" "));

/** @type {any} */
let temml = null;
/** @type {Promise<void> | null} */
let loading = null;
/** @type {Map<string, any>} */
const kept = new Map();

function load() {
  loading ??= new Promise((resolve, reject) => {
    const address = (/** @type {string} */ name) => new URL(`../vendor/${name}`, import.meta.url).href;
    document.head.append(el("link", { rel: "stylesheet", href: address("temml.css") }));
    document.head.append(el("script", {
      src: address("temml.min.js"), error: reject,
      load: () => { temml = /** @type {any} */ (globalThis).temml; resolve(); },
    }));
  });
  return loading;
}

/** Settles when formulas are typeset, as far as any was drawn. */
export const formulas = () => loading?.catch(() => {}) ?? Promise.resolve();

/** A formula; until Temml is loaded, and if the formula is wrong, its source.
 * @param {string} tex
 * @param {boolean} display
 * @param {string} source */
export function mathNode(tex, display, source) {
  const node = el("span", { class: display ? "math display" : tex.length > LONG ? "math long" : "math" }, source);
  if (tex.length > MAX_LENGTH || !tex.trim()) return node;
  if (temml) typeset(node, tex, display);
  else load().then(() => typeset(node, tex, display), () => {});
  return node;
}

/** @param {any} node
 * @param {string} tex
 * @param {boolean} display */
function typeset(node, tex, display) {
  const key = `${display} ${tex}`;
  let formula = kept.get(key);
  if (!formula) {
    const made = el("span");
    try {
      temml.render(tex, made, { displayMode: display, throwOnError: true, trust: false, maxSize: [20, 500], maxExpand: 500 });
      formula = clean(made.firstChild);
    } catch { /* not LaTeX: the source is shown */ }
    if (!formula) return;
    if (kept.size >= MAX_KEPT) kept.delete([...kept.keys()][0]);
    kept.set(key, formula);
  }
  node.replaceChildren(formula.cloneNode(true));
}

/** A copy with the known elements and attributes only.
 * @param {any} node
 * @returns {any} */
function clean(node) {
  if (node.nodeType === Node.TEXT_NODE) return document.createTextNode(node.data);
  if (!ELEMENTS.has(node.localName)) return null;
  const copy = /** @type {any} */ (document.createElementNS("http://www.w3.org/1998/Math/MathML", node.localName));
  for (const { name, value } of node.attributes) if (ATTRIBUTES.has(name)) copy.setAttribute(name, value);
  for (const property of node.style ?? []) {
    const value = node.style.getPropertyValue(property);
    if (!/url\(|expression/i.test(value) && !/^(?:position|z-index|inset|top|left|right|bottom)$/.test(property)) copy.style.setProperty(property, value);
  }
  for (const child of node.childNodes) {
    const inner = clean(child);
    if (inner) copy.append(inner);
  }
  return copy;
}
