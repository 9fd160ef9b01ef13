/** Exports of other programs as this page's own: llama.cpp's page, Open WebUI, and ChatGPT. */

import { text } from "./memory.js";

/**
 * @typedef {{ id: string, parent: string, role: string, content: string, reasoning?: string, model?: string, at: number,
 *   calls?: any[], results?: any[] }} Node
 * @typedef {{ title: string, created: number, leaf: string, nodes: Node[] }} Conversation
 */

/** Values of a file may have any type. @type {(value: any) => any[]} */
const list = value => Array.isArray(value) ? value : [];
/** @type {(value: any) => any[]} */
const values = value => Object.values(value && typeof value === "object" ? value : {});
/** Milliseconds of a time in seconds, or in milliseconds. @type {(value: any) => number} */
const time = value => Number(value) > 1e11 ? Number(value) : Math.round(1000 * Number(value)) || 0;

/** A content that is a text or a list of parts. @type {(content: any) => string} */
const plain = content => typeof content === "string" ? content
  : list(content).map(part => typeof part === "string" ? part : text(part?.text)).filter(Boolean).join("\n\n");

/** The calls of a message of llama.cpp, which are a JSON text.
 * @param {any} json */
function calls(json) {
  try {
    return list(JSON.parse(json)).map(call => ({ id: text(call?.id), name: text(call?.function?.name), arguments: text(call?.function?.arguments) }));
  } catch {
    return [];
  }
}

/** The programs: which entry is theirs, and how it is read.
 * @type {{ is: (entry: any) => boolean, read: (entry: any) => Conversation }[]} */
const PROGRAMS = [
  {
    is: entry => entry?.conv && Array.isArray(entry.messages), // llama.cpp
    read: ({ conv, messages }) => ({
      title: text(conv.name), created: time(conv.lastModified), leaf: text(conv.currNode),
      nodes: messages.map((/** @type {any} */ one) => ({
        id: text(one?.id), parent: text(one?.parent), role: text(one?.role), content: plain(one?.content), at: time(one?.timestamp),
        reasoning: text(one?.reasoningContent) || text(one?.thinking), model: text(one?.model), calls: calls(one?.toolCalls),
        results: one?.role === "tool" ? [{ id: text(one.toolCallId), name: "", content: plain(one.content) }] : [],
      })),
    }),
  },
  {
    is: entry => Boolean((entry?.chat ?? entry)?.history?.messages), // Open WebUI
    read: entry => {
      const { title, history } = entry.chat ?? entry;
      return {
        title: text(title), created: time(entry.created_at), leaf: text(history.currentId),
        nodes: values(history.messages).map(one => ({
          id: text(one?.id), parent: text(one?.parentId), role: text(one?.role), content: plain(one?.content),
          model: text(one?.model), at: time(one?.timestamp),
        })),
      };
    },
  },
  {
    is: entry => Boolean(entry?.mapping), // ChatGPT
    read: ({ title, create_time, current_node, mapping }) => ({
      title: text(title), created: time(create_time), leaf: text(current_node),
      nodes: values(mapping).map(one => ({
        id: text(one?.id), parent: text(one?.parent), role: text(one?.message?.author?.role), at: time(one?.message?.create_time),
        content: plain(one?.message?.content?.parts), model: text(one?.message?.metadata?.model_slug),
      })),
    }),
  },
];

/** A conversation without the messages that this page has no view of: those after them follow those before them.
 * @param {Conversation} conversation */
function exported({ title, created, leaf, nodes }) {
  const shown = new Map(nodes.filter(({ role, content, calls, results }) =>
    role === "tool" ? results?.length : ["user", "assistant"].includes(role) && (content || calls?.length)).map(one => [one.id, one]));
  const all = new Map(nodes.map(one => [one.id, one]));
  const above = (/** @type {string} */ id) => { // a damaged file may have a cycle
    for (let steps = all.size; id && !shown.has(id) && steps; steps--) id = all.get(id)?.parent ?? "";
    return shown.has(id) ? id : "";
  };
  const system = nodes.find(({ role, content }) => role === "system" && content)?.content ?? "";
  return {
    title, created, updated: Math.max(created, 0, ...[...shown.values()].slice(-1000).map(({ at }) => at)), leaf: above(leaf), settings: { system },
    messages: [...shown.values()].map((one, i) => ({ ...one, parent: above(one.parent), at: one.at || created + i, end: "stop" })),
  };
}

/** The conversations of an export of another program, or null if it is none that is known.
 * @param {any} file
 * @returns {any[] | null} */
export function convert(file) {
  const entries = Array.isArray(file) ? file : [file];
  const program = PROGRAMS.find(({ is }) => is(entries[0]));
  return program ? entries.filter(program.is).map(entry => exported(program.read(entry))) : null;
}
