/** The settings of a conversation, and what they add to a request. An empty one is not sent: the default applies. */

import { text } from "./memory.js";

/** The sampling parameters that have a field of their own; the others of the server are below "more". */
export const PARAMETERS = [
  { name: "temperature", min: 0, max: 2, step: "any" },
  { name: "top_p", min: 0, max: 1, step: "any" },
  { name: "top_k", min: 0, step: 1 },
  { name: "min_p", min: 0, max: 1, step: "any" },
  { name: "repetition_penalty", min: 0.01, max: 10, step: "any" },
  { name: "max_tokens", min: 1, step: 1 },
  { name: "seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 },
];

/** Names that the server uses for a parameter that has a field here. */
export const SAME = { repeat_penalty: "repetition_penalty" };

/** Levels of `reasoning_effort`; "" is the model's default. */
export const EFFORTS = ["", "none", "low", "medium", "high"];

/** What an answer may be constrained to. */
export const FORMATS = ["", "json_object", "json_schema", "grammar", "regex"];

/**
 * @typedef {{ model: string, system: string, values: Record<string, string>, effort: string, format: string,
 *   constraint: string, tools: string, server: string, logprobs: boolean, adapters: Record<string, string> }} Settings
 */

/** @param {any} stored
 * @returns {Settings} */
export function readSettings(stored) {
  /** @type {(value: any) => Record<string, string>} */
  const strings = value => Object.fromEntries(Object.entries(value ?? {}).filter(([, v]) => typeof v === "string" && v !== ""));
  const { values, ...old } = stored ?? {}; // an earlier page had the parameters beside the system prompt
  const earlier = Object.fromEntries(PARAMETERS.map(({ name }) => [name, old[name]]));
  return {
    model: text(stored?.model), system: text(stored?.system), values: strings({ ...earlier, ...values }),
    effort: EFFORTS.includes(stored?.effort) ? stored.effort : "",
    format: FORMATS.includes(stored?.format) ? stored.format : "", constraint: text(stored?.constraint),
    tools: text(stored?.tools), server: text(stored?.server), logprobs: stored?.logprobs === true,
    adapters: strings(stored?.adapters),
  };
}

/** Whether anything differs from the defaults. The model is chosen elsewhere.
 * @param {Settings} settings */
export function isChanged({ model, ...settings }) {
  const { model: none, ...empty } = readSettings(null);
  return JSON.stringify(settings) !== JSON.stringify(empty);
}

/** Why a field of the settings cannot be sent, by its name.
 * @param {Settings} settings
 * @returns {Record<string, string>} */
export function problems(settings) {
  /** @type {Record<string, string>} */
  const found = {};
  const parsed = (/** @type {string} */ name, /** @type {string} */ value, /** @type {(value: any) => boolean} */ fits) => {
    try { if (!fits(JSON.parse(value))) found[name] = "shape"; } catch (error) { found[name] = String(/** @type {any} */ (error).message); }
  };
  if (settings.format === "json_schema") parsed("constraint", settings.constraint, value => Boolean(value) && typeof value === "object");
  if (settings.tools.trim()) parsed("tools", settings.tools, value => Array.isArray(toolList(value)));
  return found;
}

/** The tools of a definition: a list, one tool, or bare functions; null if it is none of these.
 * @param {any} value */
export function toolList(value) {
  const list = Array.isArray(value) ? value : [value];
  const tools = list.map(tool => tool?.type === "function" && tool.function ? tool : { type: "function", function: tool });
  return tools.every(tool => text(tool.function?.name)) ? tools : null;
}

/** The members of a request for these settings. A value of the wrong shape is omitted: its field shows why.
 * @param {Settings} settings */
export function requestOptions(settings) {
  /** @type {Record<string, any>} */
  const options = {};
  for (const [name, value] of Object.entries(settings.values)) {
    if (value.trim() !== "" && isFinite(Number(value))) options[name] = Number(value);
  }
  if (settings.effort) options.reasoning_effort = settings.effort;
  if (settings.logprobs) Object.assign(options, { logprobs: true, top_logprobs: 5 });
  const wrong = problems(settings);
  if (settings.format === "json_object") options.response_format = { type: "json_object" };
  if (settings.format === "json_schema" && !wrong.constraint) {
    options.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(settings.constraint) } };
  }
  if (settings.format === "grammar" && settings.constraint.trim()) options.structured_outputs = { grammar: settings.constraint };
  if (settings.format === "regex" && settings.constraint) options.structured_outputs = { regex: settings.constraint };
  if (settings.tools.trim() && !wrong.tools) options.tools = toolList(JSON.parse(settings.tools));
  const adapters = Object.entries(settings.adapters).filter(([, scale]) => scale.trim() !== "" && isFinite(Number(scale)));
  if (adapters.length) options.lora = adapters.map(([name, scale]) => ({ name, scale: Number(scale) }));
  return options;
}
