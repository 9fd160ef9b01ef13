/** Conversations as files: JSON with everything, and Markdown to read. Both can be imported again. */

import { fence, userText } from "./answer.js";
import { readRecord } from "./chat.js";
import { moment, t } from "./language.js";
import { newId, text } from "./memory.js";
import { readMessage, Tree } from "./tree.js";

const FORMAT = "tern-conversations";
const VERSION = 1;
const MAX_IMPORTED = 20000; // messages of one conversation

/** A name for the file of a conversation.
 * @param {string} title
 * @param {string} ending */
export const fileName = (title, ending) => `${title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "conversation"}.${ending}`;

/** @param {{ record: any, messages: any[] }[]} conversations */
export const toJson = conversations => JSON.stringify({
  format: FORMAT, version: VERSION,
  conversations: conversations.map(({ record: { id, ...record }, messages }) =>
    ({ ...record, id, messages: messages.map(({ conversation, rev, ...message }) => message) })),
}, null, 1);

/** A text without headings that look like those of a conversation, which have two spaces.
 * @param {string} text */
const inside = text => text.replace(/^(#{1,3})  (?=\S)/gm, "$1 ");

/** A text as code.
 * @param {string} text
 * @param {string} language */
const fenced = (text, language = "") => `${fence(text)}${language}\n${inside(text)}\n${fence(text)}`;

/** The branch that is shown, to read. Thoughts are omitted.
 * @param {{ record: any, title?: string, tree: Tree }} chat */
export function toMarkdown({ record, tree, title }) {
  const parts = [`#  ${title || record.title || t("untitled")}`, moment(record.created)];
  if (record.settings.system) parts.push(`##  ${t("system_prompt")}`, inside(record.settings.system));
  for (const message of tree.path(record.leaf)) {
    if (message.role === "tool") {
      for (const { name, content } of message.results) parts.push(`###  ${t("result_of", { name })}`, fenced(content));
      continue;
    }
    parts.push(`##  ${message.role === "user" ? t("you") : message.model || t("model")}`);
    parts.push(inside(message.role === "user" ? userText(message) : message.content));
    for (const call of message.calls) parts.push(`###  ${t("tool_call", { name: call.name })}`, fenced(call.arguments, "json"));
    if (message.error) parts.push(`> ${message.error}`);
  }
  return parts.filter(Boolean).join("\n\n") + "\n";
}

/** The conversations of an exported file, with new ids, so that an import never changes what exists. Throws an error
 * whose message is the name of a text if the file is something else.
 * @param {string} content of a JSON or Markdown file
 * @param {number} modified
 * @returns {Promise<{ record: any, messages: any[] }[]>} */
export async function fromFile(content, modified) {
  let file;
  try {
    file = JSON.parse(content);
  } catch {
    file = await (await import("./markdown_import.js")).fromMarkdown(content, modified);
    if (!file) throw new Error("import_not_json");
    file = { format: FORMAT, version: VERSION, conversations: file };
  }
  const own = file?.format === FORMAT && Array.isArray(file.conversations);
  if (own && !(file.version <= VERSION)) throw new Error("import_newer");
  const conversations = own ? file.conversations : (await import("./other_exports.js")).convert(file);
  if (!conversations) throw new Error("import_other_format");
  return conversations.map((/** @type {any} */ imported) => {
    const record = { ...readRecord(imported), id: newId() };
    /** @type {any[]} */
    const list = Array.isArray(imported?.messages) ? imported.messages : [];
    if (list.length > MAX_IMPORTED) throw new Error("import_too_large");
    const ids = new Map(list.map(message => [text(message?.id), newId()]));
    const messages = list.map(message => ({
      ...readMessage(message), id: ids.get(text(message?.id)) ?? newId(), parent: ids.get(text(message?.parent)) ?? "", conversation: record.id, rev: newId(),
    }));
    const tree = new Tree(messages);
    record.leaf = ids.get(record.leaf) ?? tree.newest("");
    record.created ||= Date.now();
    record.updated ||= record.created;
    return { record, messages };
  }).filter((/** @type {{ messages: any[] }} */ { messages }) => messages.length);
}
