/** A conversation as one HTML file to read anywhere: without scripts, and with a policy that loads nothing. */

import { userText } from "./answer.js";
import { el } from "./dom.js";
import { moment, t } from "./language.js";
import { codeFigure, colours } from "./markdown/code.js";
import { formulas } from "./markdown/math.js";
import { MarkdownView } from "./markdown/view.js";

const POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";
/** Rules after those of the page: the file is a document, and not a window with a composer. */
const DOCUMENT = `
body { display: block; height: auto; overflow: visible; max-width: var(--column); margin: 0 auto; padding: 1.5rem 1rem; }
.message { content-visibility: visible; }
h1 { display: block; } h2 { font-size: .875rem; color: var(--quiet); font-weight: 550; margin: 0 0 .4rem; }
`;

/** Rules of the page's own styles, as text. Those of files that are loaded later are included if they are there. */
const styles = () => [...document.styleSheets].flatMap(sheet => [...sheet.cssRules])
  .filter(rule => !(rule instanceof CSSFontFaceRule)).map(rule => rule.cssText).join("\n");

/** Markdown as finished nodes.
 * @param {string} text */
function drawn(text) {
  const view = new MarkdownView();
  view.render(text, false);
  return view.node;
}

/** One message with the name of who wrote it.
 * @param {import("./tree.js").Message} message */
function article(message) {
  const { role, model, content, reasoning, calls, results, attachments, error } = message;
  const pictures = attachments.filter(({ url }) => url).map(({ name, url }) => el("img", { class: "picture", src: url, alt: name }));
  const name = role === "user" ? t("you") : role === "tool" ? t("results") : model || t("model");
  return el("article", { class: "message" }, el("h2", {}, name),
    ...pictures,
    reasoning ? el("details", { class: "thinking" }, el("summary", {}, t("thoughts")), drawn(reasoning)) : null,
    role === "user" ? el("div", { class: "said", dir: "auto" }, userText(message)) : drawn(content),
    ...calls.map(({ name, arguments: text }) => el("div", { class: "markdown" }, codeFigure(t("tool_call", { name }), text, "json"))),
    ...results.map(({ name, content }) => el("div", { class: "markdown" }, codeFigure(t("result_of", { name }), content))),
    error ? el("div", { class: "failure" }, error) : null);
}

/** The file: nodes are written by the browser's own serializer, which escapes all text.
 * @param {import("./chat.js").Chat} chat
 * @param {string} title
 * @returns {Promise<string>} */
export async function toPage(chat, title) {
  const body = el("body", {}, el("h1", {}, title), el("p", { class: "note" }, moment(chat.record.created)), ...chat.path.map(article));
  await Promise.all([colours(), formulas()]); // loaded with the first block of code and the first formula
  await new Promise(resolve => setTimeout(resolve));
  for (const button of body.querySelectorAll("button")) button.remove();
  const write = (/** @type {Node} */ node) => new XMLSerializer().serializeToString(node);
  return `<!doctype html>\n<html lang="${document.documentElement.lang}"><head><meta charset="utf-8">`
    + `<meta http-equiv="content-security-policy" content="${POLICY}"><meta name="viewport" content="width=device-width, initial-scale=1">`
    + `<title>${write(document.createTextNode(title))}</title><style>${styles()}${DOCUMENT}</style></head>\n${write(body)}</html>\n`;
}
