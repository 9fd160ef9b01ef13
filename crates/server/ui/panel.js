/** The panel of the server: its models, and what it is doing. */

import { get, lines, post, sentence } from "./api.js";
import { byId, button, el, iconButton, openDialog } from "./dom.js";
import { number, size, t } from "./language.js";
import { models } from "./models.js";

const POLL_MS = 2000;
const dialog = byId("server-panel");
/** @type {any} */
let polling = null;
/** Counters of the last poll, for speeds. @type {{ at: number, values: Record<string, number> } | null} */
let last = null;
/** The download that is watched. @type {AbortController | null} */
let pulling = null;

/** The metrics with the sums over all models.
 * @param {string} text
 * @returns {Record<string, number>} */
export function readMetrics(text) {
  /** @type {Record<string, number>} */
  const values = {};
  for (const line of text.split("\n")) {
    const found = /^([a-z_:]+)(?:\{[^}]*\})? ([-+.\deE]+)$/.exec(line);
    if (found) values[found[1]] = (values[found[1]] ?? 0) + Number(found[2]);
  }
  return values;
}

/** Names and values of the state.
 * @param {Record<string, number>} now
 * @param {Record<string, number> | undefined} before
 * @param {number} seconds */
function facts(now, before, seconds) {
  const rate = (/** @type {string} */ name) => before ? t("per_second", { n: number(Math.max(0, (now[name] ?? 0) - (before[name] ?? 0)) / seconds, 1) }) : "…";
  const queries = now["vllm:prefix_cache_queries_total"] ?? 0;
  return [
    [t("streams"), number(now["vllm:num_requests_running"] ?? 0)],
    [t("queue"), number(now["vllm:num_requests_waiting"] ?? 0)],
    [t("generated"), rate("vllm:generation_tokens_total")],
    [t("prompts"), rate("vllm:prompt_tokens_total")],
    [t("prefix_hits"), queries ? `${number(100 * (now["vllm:prefix_cache_hits_total"] ?? 0) / queries)} %` : "–"],
    [t("preemptions"), number(now["vllm:num_preemptions_total"] ?? 0)],
  ];
}

async function showState() {
  try {
    const now = { at: performance.now(), values: readMetrics(await (await get("/metrics")).text()) };
    const share = now.values["vllm:kv_cache_usage_perc"] ?? 0;
    byId("kv-bar").style.inlineSize = `${100 * Math.min(1, share)}%`;
    byId("kv-text").textContent = t("kv_used", { n: number(100 * share) });
    byId("state-facts").replaceChildren(...facts(now.values, last?.values, (now.at - (last?.at ?? now.at)) / 1000)
      .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
    last = now;
  } catch (error) {
    byId("kv-text").textContent = sentence(error);
  }
}

/** The models with their kinds and sizes, and buttons to load and unload. */
async function showModels() {
  const sizes = new Map(), loaded = new Map(), kinds = new Map();
  try {
    const [tags, ps] = await Promise.all(["/api/tags", "/api/ps"].map(async path => (await (await get(path)).json()).models));
    for (const { name, size, details: { family, parameter_size: parameters, quantization_level: format } } of tags) {
      sizes.set(name.replace(/:latest$/, ""), size);
      kinds.set(name.replace(/:latest$/, ""), [family, parameters, format].filter(Boolean).join(" "));
    }
    for (const { name, size } of ps) loaded.set(name.replace(/:latest$/, ""), size);
  } catch { /* names and states are shown without them */ }
  const several = models.list.length > 1;
  byId("model-list").replaceChildren(...models.list.map(({ id, status, context, sees, continues }) => {
    const [memory, file] = [loaded.get(id), sizes.get(id)]; // memory includes the KV cache
    const bytes = memory ? t("in_memory", { size: size(memory) }) : file ? size(file) : "";
    const details = [t(status || "loaded"), kinds.get(id), bytes, context ? t("tokens_of_context", { n: number(context) }) : "",
      sees ? t("sees_images") : "", continues ? t("continues_only") : ""].filter(Boolean).join(" · ");
    const act = status === "loaded" ? button("plain", t("unload"), () => change("/models/unload", id))
      : button("plain", t("load"), () => change("/models/load", id), { disabled: status === "loading" });
    return el("li", {}, el("span", {}, el("b", {}, id), el("small", {}, details)), several ? act : null);
  }));
}

/** Loads or unloads a model.
 * @param {string} path
 * @param {string} model */
async function change(path, model) {
  byId("panel-note").textContent = t("working", { name: model });
  try {
    const pending = post(path, { model });
    setTimeout(() => models.refresh(), 300);
    await pending;
    byId("panel-note").textContent = "";
  } catch (error) {
    byId("panel-note").textContent = sentence(error);
  }
  await models.refresh();
}

/** Downloads a model, with its progress.
 * @param {Event} event */
async function pull(event) {
  event.preventDefault();
  if (pulling) { pulling.abort(); return; }
  const name = byId("pull-name").value.trim();
  if (!name) return;
  const [bar, note] = [byId("pull-progress"), byId("panel-note")];
  pulling = new AbortController();
  byId("pull-button").textContent = t("stop");
  bar.hidden = false;
  bar.removeAttribute("value");
  try {
    for await (const line of lines(await post("/api/pull", { model: name }, pulling.signal))) {
      if (!line.trim()) continue;
      const { status, error, total, completed } = JSON.parse(line);
      if (error) throw new Error(error);
      note.textContent = total ? t("pull_progress", { name, done: size(completed ?? 0), all: size(total) }) : String(status);
      if (total) { bar.max = total; bar.value = completed ?? 0; }
    }
    note.textContent = t("pulled", { name });
    byId("pull-name").value = "";
  } catch (error) {
    const why = /** @type {any} */ (error);
    note.textContent = pulling.signal.aborted ? t("stopped") : why.constructor === Error ? why.message : sentence(why);
  }
  pulling = null;
  bar.hidden = true;
  byId("pull-button").textContent = t("pull");
  await models.refresh();
}

export function openPanel() {
  last = null;
  showState();
  showModels();
  polling = setInterval(showState, POLL_MS);
  openDialog(dialog);
}

export function startPanel() {
  byId("open-panel").addEventListener("click", openPanel);
  byId("panel-head").append(iconButton("icon", "close", t("close"), () => dialog.close(), { id: "close-panel" }));
  dialog.addEventListener("close", () => clearInterval(polling));
  byId("pull-form").addEventListener("submit", pull);
  models.onChange(() => dialog.open && showModels());
}
