/** Light or dark: the system's choice, or another one that is stored. */

import { byId } from "./dom.js";
import { memory } from "./memory.js";

const system = matchMedia("(prefers-color-scheme: dark)");

/** @param {string} theme "light", "dark", or "" for the system's */
function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

/** Applies the stored theme. */
export function startTheme() {
  const stored = memory.read("tern.theme");
  setTheme(stored === "light" || stored === "dark" ? stored : "");
}

/** The field of the theme. */
export function showTheme() {
  const field = byId("theme");
  field.value = document.documentElement.dataset.theme ?? "";
  field.addEventListener("change", () => {
    setTheme(field.value);
    if (field.value) memory.write("tern.theme", field.value); else memory.remove("tern.theme");
  });
}

/** The other theme than the one that is shown. */
export function toggleTheme() {
  const now = document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");
  byId("theme").value = now === "dark" ? "light" : "dark";
  byId("theme").dispatchEvent(new Event("change"));
}
