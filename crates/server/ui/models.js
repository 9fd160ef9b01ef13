/** The models of the server, and what is known of each. */

import { get, refusal, route } from "./api.js";
import { byId, el } from "./dom.js";
import { t } from "./language.js";
import { memory, text } from "./memory.js";

/**
 * @typedef {{ id: string, status: string, context: number, continues: boolean, sees: boolean, parent: string }} Model
 */

/** @param {any} entry
 * @returns {Model} */
const readModel = entry => {
  const capabilities = Array.isArray(entry?.capabilities) ? entry.capabilities : null;
  return {
    id: text(entry?.id), status: text(entry?.status?.value), context: Number(entry?.max_model_len) || 0,
    continues: Boolean(capabilities && !capabilities.includes("chat")),
    sees: Boolean(capabilities?.some((/** @type {any} */ name) => ["vision", "image", "multimodal"].includes(name))), parent: text(entry?.parent),
  };
};

/** @type {((problem: string) => void)[]} */
const listeners = [];
let attempts = 0;

export const models = {
  /** All models of the server, once each. @type {Model[]} */
  list: [],
  /** Default values of sampling parameters of the model that they were read for. @type {Record<string, number>} */
  defaults: {},
  /** Why there is no model yet. */
  problem: "",

  /** @param {(problem: string) => void} listen */
  onChange(listen) { listeners.push(listen); },

  /** The model for a conversation: the one it names, the one chosen last, a loaded one, or the first.
   * @param {string} name */
  of(name) {
    const named = (/** @type {string} */ name) => this.list.find(model => model.id === name);
    const model = named(name) ?? named(text(memory.read("tern.model"))) ?? this.list.find(({ status }) => status === "loaded") ?? this.list[0];
    return { ...(model ?? readModel(null)), refresh: () => this.refresh() };
  },

  /** Requests the list until the server has loaded a model, or can. */
  async refresh() {
    let again = 0, problem = "";
    try {
      const response = await fetch(route("/v1/models"));
      if (response.ok) {
        const { data } = await response.json();
        const all = Array.isArray(data) ? data : [];
        // a model with several names is listed under each
        this.list = all.filter(entry => text(entry?.id) && (!text(entry.root) || entry.root === entry.id || entry.parent)).map(readModel)
          .filter(model => !model.parent);
        this.adapters = all.map(readModel).filter(model => model.parent);
        attempts = 0;
      } else if (response.status === 503) {
        [problem, again] = [t("loading_model"), 1000];
      } else {
        [problem, again] = [(await refusal(response)).message, 10000];
      }
    } catch {
      [problem, again] = [t("unreachable_short"), 3000];
    }
    this.problem = problem;
    for (const listen of listeners) listen(problem);
    if (again && attempts++ < 1000) setTimeout(() => this.refresh(), again);
  },

  /** Adapters of the model, which a conversation can mix. @type {Model[]} */
  adapters: [],

  /** The defaults of a model, if it is loaded: asking for them does not load one.
   * @param {string} name */
  async readDefaults(name) {
    const { id, status } = this.of(name);
    this.defaults = {};
    if (status !== "loaded") return;
    try {
      const { default_generation_settings: { params } } = await (await get(`/props?model=${encodeURI(id)}`)).json();
      this.defaults = Object.fromEntries(Object.entries(params).filter(([, value]) => typeof value === "number"));
    } catch { /* fields show "default" */ }
  },
};

/** The picker of the header. Models that are not loaded are loaded by their first message.
 * @param {string} chosen */
export function showPicker(chosen) {
  const picker = byId("models");
  picker.hidden = models.list.length < 2;
  byId("model").hidden = !picker.hidden;
  picker.replaceChildren(...models.list.map(({ id, status }) =>
    el("option", { value: id }, status && status !== "loaded" ? t("model_status", { name: id, status: t(status) }) : id)));
  picker.value = chosen;
  byId("model").textContent = byId("model").title = models.problem || chosen;
}
