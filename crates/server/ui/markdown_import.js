/**
 * Conversations as Markdown, back to messages: what this page exports, and texts with a heading per message.
 *
 * The headings of an export have two spaces after their marks, and texts of messages never do. In other files
 * a heading of level two begins a message if it names its writer, or if it follows a question.
 */

import { LANGUAGES } from "./language.js";

/**
 * @typedef {{ id: string, parent: string, role: string, content: string, model: string, at: number,
 *   end: string, calls: any[], results: any[], attachments: any[] }} Read
 * @typedef {{ level: number, name: string, lines: string[] }} Section
 */

const FENCE = /^\s*(`{3,}|~{3,})/;
/** A text file of a question, as requests and exports have it. */
const FILE = /^File ([^\n]{1,200}):\n(`{3,})\n([^]*?)\n\2\n\n?/;

/** Names of writers, in all languages of the page and as other programs write them. */
async function names() {
  const all = await Promise.all(Object.keys(LANGUAGES).map(async code => (await import(`./languages/${code}.js`)).default));
  const of = (/** @type {string} */ name, /** @type {string[]} */ ...more) => new Set([...all.map(texts => texts[name]), ...more]);
  const patterns = (/** @type {string} */ name) => all.map(texts => {
    const [before, after] = texts[name].split("{name}");
    return (/** @type {string} */ text) => text.startsWith(before) && text.endsWith(after) ? text.slice(before.length, text.length - after.length) : "";
  });
  return {
    user: of("you", "User", "Human"), model: of("model", "Assistant", "AI"), system: of("system_prompt", "System"),
    call: patterns("tool_call"), result: patterns("result_of"),
  };
}

/** The sections of a text: with two spaces those of an export, otherwise those of `begins`.
 * @param {string[]} lines
 * @param {boolean} own
 * @param {(level: number, name: string, before: Section | undefined) => boolean} begins */
function sections(lines, own, begins) {
  /** @type {Section[]} */
  const found = [];
  let fence = "";
  for (const line of lines) {
    const [, marks, space, name] = /^(#{1,3})(\s+)(.*\S)\s*$/.exec(line) ?? [];
    if (marks && (own ? space === "  " : !fence && begins(marks.length, name, found.at(-1)))) {
      if (marks.length === 1) withoutRule(found.at(-1)?.lines ?? []);
      found.push({ level: marks.length, name, lines: [] });
      continue;
    }
    const mark = FENCE.exec(line)?.[1] ?? "";
    if (!fence) fence = mark;
    else if (mark.startsWith(fence) && line.trim() === mark) fence = "";
    found.at(-1)?.lines.push(line);
  }
  return found;
}

/** Removes the line that an export of several conversations has between them.
 * @param {string[]} lines */
function withoutRule(lines) {
  while (lines.length && !lines.at(-1)?.trim()) lines.pop();
  if (lines.at(-1) === "---") lines.pop();
}

/** @param {string[]} lines */
const content = lines => lines.join("\n").trim();

/** The text inside the fence that a section consists of.
 * @param {string[]} lines */
function fenced(lines) {
  const text = content(lines), mark = FENCE.exec(text)?.[1] ?? "";
  const end = text.lastIndexOf(`\n${mark}`), begin = text.indexOf("\n") + 1;
  return mark && end + 1 >= begin ? text.slice(begin, Math.max(begin, end)) : text;
}

/** The files at the beginning of a question, and what was written.
 * @param {string} text */
function withFiles(text) {
  const attachments = [];
  for (let found; (found = FILE.exec(text));) {
    attachments.push({ name: found[1], kind: "text", type: "text/plain", text: found[3], bytes: new Blob([found[3]]).size });
    text = text.slice(found[0].length);
  }
  return { content: text.trim(), attachments };
}

/** The conversations of a Markdown file, or null if it has none.
 * @param {string} text
 * @param {number} modified the time of the file
 * @returns {Promise<any[] | null>} */
export async function fromMarkdown(text, modified) {
  const known = await names();
  const nameOf = (/** @type {((text: string) => string)[]} */ patterns, /** @type {string} */ name) => patterns.map(match => match(name)).find(Boolean) ?? "";
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const own = lines.some(line => /^##  \S/.test(line));
  let model = "";
  const begins = (/** @type {number} */ level, /** @type {string} */ name, /** @type {Section | undefined} */ before) => {
    if (level === 1) return !before;
    if (level > 2) return false;
    if (known.user.has(name) || known.system.has(name) && before?.level === 1 || known.model.has(name) || name === model) return true;
    if (before?.level !== 2 || !known.user.has(before.name)) return false;
    model = name;
    return true;
  };
  /** @type {any[]} */
  const conversations = [];
  /** @type {any} */
  let current = null;
  for (const { level, name, lines: inside } of sections(lines, own, begins)) {
    if (level === 1 || !current) {
      const created = Date.parse(content(inside)) || modified;
      current = { title: level === 1 ? name : "", created, updated: created, leaf: "", settings: { system: "" }, messages: [] };
      conversations.push(current);
      if (level === 1) continue;
    }
    const last = /** @type {Read | undefined} */ (current.messages.at(-1));
    const call = own && level === 3 ? nameOf(known.call, name) : "", result = own && level === 3 ? nameOf(known.result, name) : "";
    if (call && last?.role === "assistant") {
      last.calls.push({ id: `call-${current.messages.length}-${last.calls.length}`, name: call, arguments: fenced(inside) });
      last.end = "tool_calls";
      continue;
    }
    if (known.system.has(name) && !last) { current.settings.system = content(inside); continue; }
    const role = result ? "tool" : known.user.has(name) ? "user" : "assistant";
    const results = result ? [{ id: last?.calls?.[0]?.id ?? "", name: result, content: fenced(inside) }] : [];
    if (result && last?.role === "tool") { // one message has the results of all calls
      const calls = current.messages.at(-2)?.calls ?? [];
      last.results.push({ ...results[0], id: calls[last.results.length]?.id ?? "" });
      continue;
    }
    const id = String(current.messages.length + 1);
    current.messages.push({
      id, parent: current.leaf, role, results, calls: [], at: current.created + current.messages.length,
      model: role === "assistant" && !known.model.has(name) ? name : "", end: role === "assistant" ? "stop" : "",
      ...role === "user" ? withFiles(content(inside)) : { content: role === "tool" ? "" : content(inside), attachments: [] },
    });
    current.leaf = id;
  }
  const found = conversations.filter(({ messages }) => messages.length);
  return found.length ? found : null;
}
