/** Files of a message: text, code, CSV and PDF become text; images are for models that see. */

import { countTokens } from "./api.js";
import { size, t } from "./language.js";

export const MAX_FILES = 10;
/** Limits in bytes. A request's body may have 16 MiB, and an image in it is a third larger than its file. */
export const LIMITS = { text: 1 << 20, pdf: 20 << 20, image: 20 << 20, total: 8 << 20 };
/** Larger images are made smaller: no model sees more. */
const MAX_SIDE = 2048;

/** @param {Blob} blob
 * @returns {Promise<string>} */
const dataUrl = blob => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(String(reader.result));
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(blob);
});

/** The text of a file, or null if it is not one.
 * @param {ArrayBuffer} bytes */
export function decodeText(bytes) {
  const head = new Uint8Array(bytes.slice(0, 4));
  if (head[0] === 0xff && head[1] === 0xfe) return new TextDecoder("utf-16le").decode(bytes);
  if (head[0] === 0xfe && head[1] === 0xff) return new TextDecoder("utf-16be").decode(bytes);
  if (new Uint8Array(bytes.slice(0, 8192)).includes(0)) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return new TextDecoder("windows-1252").decode(bytes);
  }
}

/** A picture as a data URI of at most `MAX_SIDE` pixels.
 * @param {File} file */
async function readImage(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, MAX_SIDE / Math.max(bitmap.width, bitmap.height));
  if (scale === 1 && file.size < 4 << 20 && /^image\/(?:png|jpeg|webp|gif)$/.test(file.type)) return { url: await dataUrl(file), type: file.type };
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.round(bitmap.width * scale), Math.round(bitmap.height * scale)];
  /** @type {any} */ (canvas.getContext("2d")).drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const type = "image/jpeg";
  const blob = await new Promise(resolve => canvas.toBlob(resolve, type, .9));
  return { url: await dataUrl(blob), type };
}

/** Reads one file: the attachment, or the reason why it cannot be one.
 * @param {File} entry
 * @param {{ sees: boolean, model: string, total: number }} about `total`: bytes of the other files of the message
 * @returns {Promise<{ file?: any, problem?: string }>} */
export async function readFiles(entry, { sees, model, total }) {
  const base = { name: entry.name.slice(0, 200) || t("file"), kind: "text", type: entry.type, text: "", url: "", bytes: entry.size, tokens: 0 };
  const kind = entry.type.startsWith("image/") && entry.type !== "image/svg+xml" ? "image"
    : entry.type === "application/pdf" || /\.pdf$/i.test(entry.name) ? "pdf" : "text";
  if (entry.size > LIMITS[kind]) return { problem: t("file_too_large", { size: size(entry.size), limit: size(LIMITS[kind]) }) };
  if (kind === "image" && !sees) return { problem: t("model_sees_nothing") };
  try {
    if (kind === "image") {
      const image = await readImage(entry);
      if (total + image.url.length > LIMITS.total) return { problem: t("files_too_large", { limit: size(LIMITS.total) }) };
      return { file: { ...base, ...image, kind: "image", bytes: image.url.length } };
    }
    const bytes = await entry.arrayBuffer();
    const text = kind === "pdf" ? await (await import("./pdf.js")).pdfText(new Uint8Array(bytes)) : decodeText(bytes);
    if (text === null) return { problem: t("not_text") };
    if (!text.trim()) return { problem: t(kind === "pdf" ? "pdf_without_text" : "file_empty") };
    const length = new Blob([text]).size;
    if (length > LIMITS.text) return { problem: t("file_too_large", { size: size(length), limit: size(LIMITS.text) }) };
    if (total + length > LIMITS.total) return { problem: t("files_too_large", { limit: size(LIMITS.total) }) };
    return { file: { ...base, text, bytes: length, tokens: await countTokens(text, model) ?? 0 } };
  } catch (error) {
    const { code, message } = /** @type {any} */ (error);
    return { problem: code === "pdf" ? t(message) : t("unreadable_file") };
  }
}
