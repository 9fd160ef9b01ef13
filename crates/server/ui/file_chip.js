/** A file of a message: its name and size, and a dialog with all of it. */

import { button, el, iconButton, openDialog } from "./dom.js";
import { number, size, t } from "./language.js";

/** A button with the name of a file, or its picture.
 * @param {any} file */
export function fileChip(file) {
  const facts = [size(file.bytes), file.tokens ? t("tokens", { n: number(file.tokens) }) : ""].filter(Boolean).join(" · ");
  if (file.kind === "image" && file.url) {
    return button("shown-file", el("img", { class: "picture", src: file.url, alt: "" }), () => showFile(file), {
      "aria-label": t("open_file", { name: file.name }), "aria-haspopup": "dialog", title: `${file.name} · ${facts}`,
    });
  }
  const chip = button("chip", el("b", {}, file.name), () => showFile(file), { "aria-haspopup": "dialog", title: file.text.slice(0, 500) });
  chip.append(" ", el("small", {}, facts));
  return chip;
}

/** The whole of a file: its text, or the picture at its size.
 * @param {any} file */
function showFile(file) {
  const content = file.kind === "image" ? el("img", { src: file.url, alt: file.name }) : el("pre", { tabindex: 0, dir: "auto" }, file.text);
  const dialog = el("dialog", { class: "file-view", "aria-label": file.name, close: () => dialog.remove() },
    el("h2", {}, el("span", { dir: "auto" }, file.name), iconButton("icon", "close", t("close"), () => dialog.close())), content);
  document.body.append(dialog);
  openDialog(dialog);
}
