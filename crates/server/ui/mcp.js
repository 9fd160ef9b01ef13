/** A client of an MCP server over HTTP (the protocol's "streamable HTTP"): the list of its tools, and calls of them. */

import { lines } from "./api.js";

const PROTOCOL = "2025-06-18";
const TIMEOUT_MS = 60000;
const MAX_RESULT = 1 << 20; // characters
const MAX_RESPONSE = 16 << 20; // bytes

/** The JSON of a response that is not larger than is read.
 * @param {Response} response */
async function limitedJson(response) {
  const pieces = [];
  let size = 0;
  for (const reader = /** @type {ReadableStream} */ (response.body).getReader();;) {
    const { value, done } = await reader.read();
    if (done) return JSON.parse(await new Blob(pieces).text());
    size += value.length;
    if (size > MAX_RESPONSE) {
      reader.cancel().catch(() => {});
      throw new Error(`${size} > ${MAX_RESPONSE} B`);
    }
    pieces.push(value);
  }
}

export class McpServer {
  #id = 0;
  #session = "";
  #protocol = "";

  /** @param {string} address */
  constructor(address) {
    this.address = address;
  }

  /** Sends a request and returns its result; a notification has no result.
   * @param {string} method
   * @param {any} params */
  async #send(method, params, notification = false) {
    const id = ++this.#id;
    const response = await fetch(this.address, {
      method: "POST", credentials: "omit", signal: AbortSignal.timeout(TIMEOUT_MS),
      headers: {
        "content-type": "application/json", accept: "application/json, text/event-stream",
        ...(this.#session && { "mcp-session-id": this.#session }), ...(this.#protocol && { "mcp-protocol-version": this.#protocol }),
      },
      body: JSON.stringify({ jsonrpc: "2.0", ...(!notification && { id }), method, ...(params && { params }) }),
    });
    if (!response.ok) throw new Error(`${method}: ${response.status} ${response.statusText}`);
    this.#session ||= response.headers.get("mcp-session-id") ?? "";
    if (notification) return response.body?.cancel();
    const answer = response.headers.get("content-type")?.startsWith("text/event-stream") ? await this.#event(response, id) : await limitedJson(response);
    if (answer?.error) throw new Error(`${method}: ${String(answer.error.message)}`);
    if (answer?.id !== id || answer.result === undefined) throw new Error(`${method}: no result`);
    return answer.result;
  }

  /** The event of a stream that answers the request.
   * @param {Response} response
   * @param {number} id */
  async #event(response, id) {
    for await (const line of lines(response)) {
      if (!line.startsWith("data:")) continue;
      const message = JSON.parse(line.slice(5));
      if (message.id === id) return message;
    }
    return null;
  }

  async #begin() {
    if (this.#protocol) return;
    const { protocolVersion } = await this.#send("initialize", { protocolVersion: PROTOCOL, capabilities: {}, clientInfo: { name: "tern", version: "1" } });
    this.#protocol = String(protocolVersion ?? PROTOCOL);
    await this.#send("notifications/initialized", null, true);
  }

  /** All tools of the server.
   * @returns {Promise<any[]>} */
  async tools() {
    await this.#begin();
    const all = [];
    for (let cursor, page = 0; page < 20; page++) {
      const { tools, nextCursor } = await this.#send("tools/list", cursor ? { cursor } : {});
      all.push(...tools.filter((/** @type {any} */ tool) => typeof tool?.name === "string"));
      cursor = nextCursor;
      if (!cursor) break;
    }
    return all;
  }

  /** The text of a tool's result.
   * @param {string} name
   * @param {any} input
   * @returns {Promise<string>} */
  async call(name, input) {
    await this.#begin();
    const { content, structuredContent, isError } = await this.#send("tools/call", { name, arguments: input });
    const texts = (Array.isArray(content) ? content : []).map(part => part?.type === "text" ? String(part.text) : `[${part?.type}]`);
    const text = texts.join("\n") || JSON.stringify(structuredContent ?? null);
    if (isError) throw new Error(text);
    if (text.length > MAX_RESULT) throw new Error(`${name}: ${text.length} > ${MAX_RESULT}`);
    return text;
  }
}
