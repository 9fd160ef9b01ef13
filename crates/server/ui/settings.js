/** The settings of the conversation: what is sent with every request of it. An empty field is not sent. */

import { app, regenerate } from "./app.js";
import { get } from "./api.js";
import { ask, button, byId, el, iconButton, openDialog, openMenu, toast } from "./dom.js";
import { chosenLanguage, LANGUAGES, number, t } from "./language.js";
import { memory } from "./memory.js";
import { models } from "./models.js";
import { EFFORTS, FORMATS, isChanged, PARAMETERS, problems, readSettings, SAME } from "./parameters.js";
import { store } from "./store.js";
import { showTheme } from "./theme.js";

const dialog = byId("settings");

/** The answer that is generated again with these settings, if the panel was opened for one. @type {any} */
let again = null;

/** The other sampling parameters of the server, from its specification. @type {any[]} */
let others = [];

/** @returns {import("./parameters.js").Settings} */
const settings = () => app.chat.record.settings;

function changed() {
  app.chat.patch({ settings: settings() });
  showChanged();
  app.emit("settings");
}

/** Marks the button while something differs from the defaults, and fields whose value cannot be sent. */
function showChanged() {
  const is = isChanged(settings());
  byId("open-settings").classList.toggle("changed", is);
  byId("open-settings").setAttribute("aria-label", t(is ? "settings_changed" : "settings"));
  const wrong = problems(settings());
  for (const name of ["constraint", "tools"]) {
    byId(name).setCustomValidity?.(wrong[name] ? "wrong" : "");
    byId(`${name}-problem`).textContent = !wrong[name] ? "" : t(wrong[name] === "shape" ? `${name}_shape` : "not_json", { why: wrong[name] });
  }
}

/** The default that applies if a field is empty.
 * @param {string} name */
function standardOf(name) {
  const given = Object.entries(SAME).find(([, own]) => own === name)?.[0] ?? name;
  const standard = models.defaults[given];
  return standard === undefined ? t(name === "seed" ? "random" : "default") : number(standard, Number.isInteger(standard) ? 0 : 2);
}

/** Shows the defaults that were read after the fields were drawn. */
function showStandards() {
  for (const { name } of [...PARAMETERS, ...others]) {
    const field = byId(`p-${name}`);
    if (field) field.placeholder = standardOf(name);
  }
}

/** A field for a number.
 * @param {any} parameter */
function numberField({ name, step, min, max, help }) {
  const hint = help ?? t(`hint_${name}`);
  const field = el("input", {
    type: "number", id: `p-${name}`, min, max, step, inputmode: "decimal", "aria-describedby": `h-${name}`,
    placeholder: standardOf(name),
    input: (/** @type {any} */ event) => {
      const { [name]: old, ...rest } = settings().values;
      settings().values = event.target.value === "" ? rest : { ...rest, [name]: event.target.value };
      changed();
    },
  });
  field.value = settings().values[name] ?? "";
  return el("label", {}, help ? name : t(`p_${name}`), el("small", { id: `h-${name}` }, hint), field);
}

/** Draws all fields with the values of the conversation. */
function draw() {
  const now = settings();
  byId("system").value = now.system;
  const { continues } = models.of(now.model);
  byId("system").disabled = continues;
  byId("system").placeholder = t(continues ? "no_template" : "models_default");
  byId("parameters").replaceChildren(...PARAMETERS.map(numberField));
  drawOthers();
  byId("effort").replaceChildren(...EFFORTS.map(value => el("option", { value }, t(value ? `effort_${value}` : "default"))));
  byId("effort").value = now.effort;
  byId("format").replaceChildren(...FORMATS.map(value => el("option", { value }, t(`format_${value || "free"}`))));
  byId("format").value = now.format;
  byId("constraint-field").hidden = ["", "json_object"].includes(now.format);
  byId("constraint").value = now.constraint;
  byId("tools").value = now.tools;
  byId("mcp-server").value = now.server;
  byId("logprobs").checked = now.logprobs;
  byId("answer-again").hidden = !again;
  showPermitted();
  byId("adapters-field").hidden = !models.adapters.length;
  byId("adapters").replaceChildren(...models.adapters.map(({ id }) => {
    const field = el("input", { type: "number", step: "any", placeholder: "0", input: (/** @type {any} */ event) => {
      settings().adapters = { ...settings().adapters, [id]: event.target.value };
      changed();
    } });
    field.value = now.adapters[id] ?? "";
    return el("label", {}, id, field);
  }));
  showChanged();
}

function drawOthers() {
  byId("more-parameters").hidden = !others.length;
  byId("other-parameters").replaceChildren(...others.map(numberField));
}

/** The parameters that the server has beyond those with a field of their own. */
async function readOthers() {
  if (others.length) return;
  try {
    const { components } = await (await get("/openapi.json")).json();
    const own = new Set([...PARAMETERS.map(({ name }) => name), ...Object.keys(SAME)]);
    others = Object.entries(components.schemas.SamplingParameters.properties).filter(([name]) => !own.has(name))
      .map(([name, { type, minimum, maximum, description }]) =>
        ({ name, min: minimum, max: maximum, step: type === "integer" ? 1 : "any", help: description }));
    drawOthers(); // alone: something may be typed in another field already
  } catch { /* they can be set on the server */ }
}

/** Named settings: choose, save and delete.
 * @param {any} anchor */
async function presetMenu(anchor) {
  /** @type {any[]} */
  const presets = await store.presets().catch(() => []);
  openMenu(anchor, [
    ...presets.map(({ name, settings: saved }) => ({ label: name, run: () => {
      app.chat.record.settings = { ...readSettings(saved), model: settings().model };
      draw();
      changed();
    } })),
    presets.length ? null : { label: t("no_presets"), disabled: true, run: () => {} },
    { label: t("save_preset"), run: async () => {
      const name = await ask(t("preset_name"), "");
      if (!name) return;
      await store.putPreset({ name, settings: { ...settings(), model: "" } });
      toast(t("preset_saved", { name }));
    } },
    ...presets.map(({ name, ...preset }) => ({ label: t("delete_preset", { name }), run: async () => {
      await store.removePreset(name);
      toast(t("preset_deleted", { name }), { label: t("undo"), run: () => store.putPreset({ name, ...preset }) });
    } })),
  ]);
}

/** The origins that this page's policy permits beyond its own, each with a button that withdraws the permission. */
function showPermitted() {
  const query = new URLSearchParams(location.search);
  byId("mcp-permitted").replaceChildren(...query.getAll("connect").map(origin => el("p", {}, t("mcp_permitted", { origin }), " ",
    button("plain", t("mcp_withdraw"), () => {
      query.delete("connect", origin);
      location.search = query.toString();
    }))));
}

/** @param {any} [message] an answer that is generated again with what is set now */
export function openSettings(message = null) {
  again = message;
  draw();
  readOthers();
  models.readDefaults(settings().model).then(showStandards);
  openDialog(dialog);
}

export function startSettings() {
  const bind = (/** @type {string} */ id, /** @type {string} */ name, event = "input") => byId(id).addEventListener(event, (/** @type {any} */ { target }) => {
    app.chat.record.settings = { ...settings(), [name]: target.type === "checkbox" ? target.checked : target.value };
    changed();
    if (name === "format") draw();
  });
  bind("system", "system");
  bind("effort", "effort", "change");
  bind("format", "format", "change");
  bind("constraint", "constraint");
  bind("tools", "tools");
  bind("mcp-server", "server");
  bind("logprobs", "logprobs", "change");
  byId("open-settings").addEventListener("click", () => openSettings());
  byId("answer-again").addEventListener("click", () => {
    dialog.close();
    regenerate(again);
  });
  byId("settings-head").append(iconButton("icon", "close", t("close"), () => dialog.close(), { id: "close-settings" }));
  byId("presets").addEventListener("click", (/** @type {Event} */ event) => presetMenu(event.currentTarget));
  byId("reset-settings").addEventListener("click", () => {
    app.chat.record.settings = { ...readSettings(null), model: settings().model };
    draw();
    changed();
  });
  byId("keep-settings").addEventListener("click", () => {
    memory.write("tern.settings", { ...settings(), model: "" });
    toast(t("settings_kept"));
    dialog.close();
  });
  byId("fetch-tools").addEventListener("click", async () => {
    const { fetchTools } = await import("./tools.js");
    const tools = await fetchTools(settings().server, byId("mcp-tools"));
    if (!tools) return;
    app.chat.record.settings = { ...settings(), tools: JSON.stringify(tools, null, 2) };
    draw();
    changed();
  });
  byId("language").replaceChildren(...Object.entries(LANGUAGES).map(([code, name]) => el("option", { value: code, lang: code }, name)));
  byId("language").value = chosenLanguage();
  byId("language").addEventListener("change", (/** @type {any} */ { target }) => {
    memory.write("tern.language", target.value);
    location.reload(); // an answer that is being generated is kept up to here
  });
  showTheme();
  app.on("chat", showChanged);
  app.on("settings", () => dialog.open || showChanged());
}
