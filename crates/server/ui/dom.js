/** Nodes: the only way in which this page makes elements. No text is ever parsed as HTML. */

import { t } from "./language.js";

/** @type {(id: string) => any} */
export const byId = id => document.getElementById(id);

/**
 * An element with attributes and children; strings become text nodes. Attributes that are false or null are omitted.
 * @param {string} tag
 * @param {Record<string, any>} attributes
 * @param {...any} children
 * @returns {any}
 */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
}

/** Paths of icons. @type {Record<string, string>} */
const ICONS = {
  add: "M12 5v14M5 12h14", close: "m6 6 12 12M18 6 6 18", menu: "M4 7h16M4 12h16M4 17h16",
  more: "M5 12h.01M12 12h.01M19 12h.01", search: "M10.5 17a6.5 6.5 0 1 1 0-13 6.5 6.5 0 0 1 0 13zm4.8-1.7L20 20",
  pin: "M9 4h6l-1 6 3 3H7l3-3zM12 13v7", attach: "m8 13 6.5-6.5a3 3 0 0 1 4.2 4.2L10 19.500a5 5 0 0 1-7-7L11 4.500",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1", edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  again: "M20 11a8 8 0 1 0-2.500 6.500M20 5v6h-6", on: "M5 5v14M10 5l9 7-9 7z", trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13",
  before: "m14 6-6 6 6 6", after: "m10 6 6 6-6 6", save: "M12 4v11m-5-5 5 5 5-5M5 20h14",
  chart: "M5 20v-7M12 20V5M19 20v-4", up: "M12 19V5m-6 6 6-6 6 6", stop: "M7 7h10v10H7z",
};

/** @param {string} name */
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/**
 * @param {string} className
 * @param {any} label
 * @param {(event: any) => any} onclick
 */
export function button(className, label, onclick, attributes = {}) {
  return el("button", { class: className, type: "button", click: onclick, ...attributes }, label);
}

/** A button that shows an icon and has a name.
 * @param {string} className
 * @param {string} name
 * @param {string} label
 * @param {(event: any) => any} onclick
 */
export function iconButton(className, name, label, onclick, attributes = {}) {
  return button(className, icon(name), onclick, { "aria-label": label, title: label, ...attributes });
}

/** Copies, and shows for a moment on the button that it did.
 * @param {any} node
 * @param {() => string} text
 */
export async function copyFrom(node, text) {
  const done = await copied(text());
  node.classList.add(done ? "done" : "refused");
  announce(t(done ? "copied" : "copy_refused"));
  setTimeout(() => node.classList.remove("done", "refused"), 1500);
}

/** @param {string} text */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // outside https and localhost there is no clipboard API
    const area = el("textarea", { class: "unseen" });
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** Saves a text as a file of the user.
 * @param {string} name
 * @param {string} text
 */
export function download(name, text, type = "text/plain") {
  const url = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  const link = el("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** A message for screen readers.
 * @param {string} message
 */
export function announce(message) {
  byId("announcer").textContent = message;
}

/** A message at the bottom, with an action such as undo, until it is closed or some seconds have passed.
 * @param {string} message
 * @param {{label: string, run: () => any} | null} action
 */
export function toast(message, action = null, seconds = 8) {
  const node = el("div", { class: "toast", role: "status" }, el("span", {}, message));
  const close = () => node.remove();
  if (action) node.append(button("plain", action.label, () => { close(); action.run(); }));
  node.append(iconButton("small", "close", t("close"), close));
  const box = byId("toasts");
  box.append(node);
  while (box.children.length > 3) box.firstChild.remove();
  (function wait() { // pointing at it or focusing it keeps it
    setTimeout(() => node.matches(":hover, :focus-within") ? wait() : close(), seconds * 1000);
  })();
}

/** A menu below a button. An item is { label, run, checked?, disabled? }; null is a line.
 * @param {any} anchor
 * @param {any[]} items
 */
export function openMenu(anchor, items) {
  byId("menu")?.remove();
  const menu = el("div", { id: "menu", role: "menu", popover: "auto" });
  for (const item of items) {
    if (!item) { menu.append(el("hr")); continue; }
    const role = item.checked === undefined ? "menuitem" : "menuitemradio";
    menu.append(button("item", item.label, () => { menu.remove(); anchor.focus(); item.run(); }, {
      role, tabindex: -1, disabled: item.disabled, "aria-checked": item.checked === undefined ? null : String(item.checked),
    }));
  }
  (anchor.closest("dialog, main, nav, header, footer") ?? document.body).append(menu);
  menu.addEventListener("toggle", (/** @type {ToggleEvent} */ event) => {
    if (event.newState === "closed") { menu.remove(); anchor.setAttribute("aria-expanded", "false"); }
  });
  menu.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const all = [...menu.querySelectorAll("button:not(:disabled)")];
    const at = all.indexOf(/** @type {any} */ (document.activeElement));
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    const to = step ? (at + step + all.length) % all.length : event.key === "Home" ? 0 : event.key === "End" ? all.length - 1 : undefined;
    if (to !== undefined) { event.preventDefault(); all[to].focus(); }
    if (event.key === "Tab" || event.key === "Escape") { event.preventDefault(); event.stopPropagation(); menu.remove(); anchor.focus(); }
  });
  menu.showPopover();
  anchor.setAttribute("aria-expanded", "true");
  const [at, size] = [anchor.getBoundingClientRect(), menu.getBoundingClientRect()];
  const below = at.bottom + 4 + size.height <= innerHeight;
  menu.style.left = `${Math.max(8, Math.min(at.left, innerWidth - size.width - 8))}px`;
  menu.style.top = `${Math.max(8, below ? at.bottom + 4 : at.top - size.height - 4)}px`;
  menu.querySelector("button:not(:disabled)")?.focus();
}

/** Opens a dialog of the page; a click on its backdrop closes it.
 * @param {any} dialog
 */
export function openDialog(dialog) {
  if (dialog.open) return;
  dialog.showModal();
  dialog.onclick = (/** @type {MouseEvent} */ event) => {
    const { left, right, top, bottom } = dialog.getBoundingClientRect();
    const inside = event.clientX >= left && event.clientX <= right && event.clientY >= top && event.clientY <= bottom;
    if (event.target === dialog && !inside) dialog.close();
  };
}

/** Asks for one line of text, or a confirmation if there is no `value`; null is a cancel.
 * @param {string} question
 * @param {string | null} value
 * @returns {Promise<string | null>}
 */
export function ask(question, value, confirm = t("ok")) {
  return new Promise(resolve => {
    const field = value === null ? null : el("input", { type: "text", "aria-label": question, maxlength: 300 });
    const dialog = el("dialog", { class: "ask", "aria-label": question },
      el("form", { method: "dialog" }, el("p", {}, question), field,
        el("div", { class: "row end" }, button("plain", t("cancel"), () => dialog.close()),
          el("button", { class: "plain strong", value: "ok" }, confirm))));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "ok" ? field?.value.trim() ?? "" : null);
    });
    document.body.append(dialog);
    openDialog(dialog);
    if (field) { field.value = value; field.select(); }
  });
}
