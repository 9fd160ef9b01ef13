/** Tool calls: the fields for their results, and results from an MCP server that the reader has named. */

import { button, el } from "./dom.js";
import { t } from "./language.js";

/** Servers whose use was confirmed on this page. @type {Set<string>} */
const confirmed = new Set();

/** Whether this page may connect to an address: its policy allows its own server, and origins that its address names.
 * @param {string} address */
function reachable(address) {
  const { origin } = new URL(address);
  return origin === location.origin || new URLSearchParams(location.search).getAll("connect").includes(origin);
}

/** An absolute http(s) address, or null.
 * @param {string} address */
function readAddress(address) {
  try {
    const url = new URL(address, location.href);
    return /^https?:$/.test(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** What the reader must confirm before the page connects to a server; `null` once that is done.
 * @param {string} address
 * @param {() => any} then */
function permission(address, then) {
  const { origin } = new URL(address);
  if (!reachable(address)) {
    return el("div", { class: "permission" }, el("p", {}, t("mcp_reload", { origin })), button("plain", t("mcp_allow", { origin }), () => {
      const query = new URLSearchParams(location.search);
      query.append("connect", origin);
      location.search = query.toString();
    }));
  }
  if (confirmed.has(address)) return null;
  return el("div", { class: "permission" }, el("p", {}, t("mcp_permission", { origin })), button("plain", t("mcp_allow", { origin }), () => {
    confirmed.add(address);
    then();
  }));
}

/** The definitions of a server's tools, or null; what is needed first, and what failed, is shown in `box`.
 * @param {string} server
 * @param {any} box
 * @returns {Promise<any[] | null>} */
export function fetchTools(server, box) {
  return new Promise(resolve => {
    const attempt = async () => {
      const address = readAddress(server);
      if (!address || !server.trim()) { box.replaceChildren(t("mcp_address")); return resolve(null); }
      const missing = permission(address, attempt);
      if (missing) { box.replaceChildren(missing); return; }
      box.replaceChildren(t("connecting"));
      try {
        const { McpServer } = await import("./mcp.js");
        const tools = await new McpServer(address).tools();
        box.replaceChildren(t("mcp_tools", { n: tools.length, names: tools.map(({ name }) => name).join(", ") }));
        resolve(tools.map(({ name, description, inputSchema }) => ({
          type: "function", function: { name, ...(description && { description }), parameters: inputSchema ?? { type: "object" } },
        })));
      } catch (error) {
        box.replaceChildren(t("mcp_failed", { why: /** @type {any} */ (error).message }));
        resolve(null);
      }
    };
    attempt();
  });
}

/** Fields for the results of a message's calls.
 * @param {any} message
 * @param {import("./parameters.js").Settings} settings
 * @param {(results: any[]) => void} send
 * @param {any[]} earlier results that are edited */
export function resultsForm(message, settings, send, earlier = []) {
  const address = settings.server.trim() ? readAddress(settings.server) : null;
  /** @type {{ call: import("./tree.js").Call, field: any, node: any }[]} */
  const fields = message.calls.map((/** @type {import("./tree.js").Call} */ call, /** @type {number} */ i) => {
    const field = el("textarea", { rows: 2, "aria-label": t("result_of", { name: call.name }), placeholder: t("type_result"), dir: "auto" });
    field.value = earlier[i]?.content ?? "";
    const note = el("div", { class: "note", role: "status" });
    const run = async () => {
      const missing = permission(/** @type {string} */ (address), run);
      if (missing) return note.replaceChildren(missing);
      note.replaceChildren(t("connecting"));
      try {
        const { McpServer } = await import("./mcp.js");
        field.value = await new McpServer(/** @type {string} */ (address)).call(call.name, JSON.parse(call.arguments || "{}"));
        note.replaceChildren();
      } catch (error) {
        note.replaceChildren(t("mcp_failed", { why: /** @type {any} */ (error).message }));
      }
    };
    const node = el("div", { class: "result" }, el("b", {}, call.name), field,
      address ? button("plain run-tool", t("mcp_run", { origin: new URL(address).host }), run) : null, note);
    return { call, field, node };
  });
  return el("form", {
    class: "results", submit: (/** @type {Event} */ event) => {
      event.preventDefault();
      send(fields.map(({ call, field }) => ({ id: call.id, name: call.name, content: field.value })));
    },
  }, ...fields.map(({ node }) => node), el("div", { class: "row end" }, el("button", { class: "plain strong send-results" }, t("send_results"))));
}
