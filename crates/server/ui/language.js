/** Texts of the page in the reader's language: one file each in `languages`, with English for what a file lacks. */

import english from "./languages/en.js";
import { memory } from "./memory.js";

/** The languages of the page, by code, with their own names. */
export const LANGUAGES = {
  en: "English", de: "Deutsch", es: "Español", fr: "Français", ja: "日本語", pt: "Português", zh: "中文",
};

/** @type {Record<string, string>} */
let texts = english;
let current = "en";

/** The language that was chosen, or the first of the browser's that the page has. */
export function chosenLanguage() {
  const stored = memory.read("tern.language");
  if (stored in LANGUAGES) return stored;
  return navigator.languages.map(tag => tag.split("-")[0]).find(code => code in LANGUAGES) ?? "en";
}

export async function loadLanguage() {
  const code = chosenLanguage();
  try {
    if (code !== "en") texts = (await import(`./languages/${code}.js`)).default;
    current = code;
  } catch { /* the page stays English */ }
  document.documentElement.lang = current;
}

/** The text with this name; `{name}` is replaced by a value.
 * @param {string} name
 * @param {Record<string, any>} values
 */
export function t(name, values = {}) {
  const text = texts[name] ?? /** @type {Record<string, string>} */ (english)[name] ?? name;
  return text.replace(/\{(\w+)\}/g, (all, key) => key in values ? String(values[key]) : all);
}

/** Fills in the texts of the document: `data-t` is the content, `data-t-label` the name of a control.
 * @param {ParentNode} root
 */
export function translate(root) {
  for (const node of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll("[data-t]"))) {
    node.textContent = t(node.dataset.t ?? "");
  }
  for (const node of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll("[data-t-label]"))) {
    node.setAttribute("aria-label", t(node.dataset.tLabel ?? ""));
    if (node.matches("button")) node.title = t(node.dataset.tLabel ?? "");
  }
  for (const node of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll("[data-t-placeholder]"))) {
    node.setAttribute("placeholder", t(node.dataset.tPlaceholder ?? ""));
  }
}

/** A number with the language's separators.
 * @param {number} value
 */
export const number = (value, digits = 0) =>
  new Intl.NumberFormat(current, { minimumFractionDigits: digits, maximumFractionDigits: digits }).format(value);

/** A time of at least some milliseconds.
 * @param {number} seconds
 */
export const duration = seconds => seconds < 1 ? `${number(seconds * 1000)} ms` : `${number(seconds, 1)} s`;

/** @param {number} bytes */
export function size(bytes) {
  const at = bytes < 1e3 ? 0 : bytes < 1e6 ? 1 : bytes < 1e9 ? 2 : 3;
  return `${number(bytes / 1000 ** at, at && bytes / 1000 ** at < 100 ? 1 : 0)} ${["B", "kB", "MB", "GB"][at]}`;
}

/** @param {number} at */
export const moment = at => new Date(at).toLocaleString(current, { dateStyle: "medium", timeStyle: "short" });

/** @param {number} at */
export const month = at => new Date(at).toLocaleString(current, { month: "long", year: "numeric" });
