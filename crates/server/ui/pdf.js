/**
 * The text layer of a PDF: objects, streams and fonts as far as text needs them. Pages are read in order; scanned pages
 * have no text. All loops and sizes are bounded, because the file may come from anyone.
 */

import { Objects, PdfError } from "./pdf_objects.js";

const MAX_PAGES = 2000;
const MAX_NODES = 10000; // of the tree of pages: a node may contain itself
const MAX_OPERATORS = 5e6;
const MAX_TEXT = 4 << 20;

/** The names of WinAnsi codes from 0x80 on, as characters; the other codes are Latin-1. */
const WIN = "€\u0081‚ƒ„…†‡ˆ‰Š‹Œ\u008dŽ\u008f\u0090‘’“”•–—˜™š›œ\u009džŸ";
/** Glyph names of encodings with differences, beyond letters and digits. @type {Record<string, string>} */
const GLYPHS = {
  space: " ", exclam: "!", quotedbl: '"', numbersign: "#", dollar: "$", percent: "%", ampersand: "&", quotesingle: "'", parenleft: "(",
  parenright: ")", asterisk: "*", plus: "+", comma: ",", hyphen: "-", period: ".", slash: "/", zero: "0", one: "1", two: "2", three: "3",
  four: "4", five: "5", six: "6", seven: "7", eight: "8", nine: "9", colon: ":", semicolon: ";", less: "<", equal: "=", greater: ">",
  question: "?", at: "@", bracketleft: "[", backslash: "\\", bracketright: "]", underscore: "_", grave: "`", braceleft: "{", bar: "|",
  braceright: "}", quoteleft: "‘", quoteright: "’", quotedblleft: "“", quotedblright: "”", endash: "–", emdash: "—", bullet: "•",
  ellipsis: "…", fi: "fi", fl: "fl", ff: "ff", ffi: "ffi", ffl: "ffl", germandbls: "ß", adieresis: "ä", odieresis: "ö", udieresis: "ü",
  Adieresis: "Ä", Odieresis: "Ö", Udieresis: "Ü", eacute: "é", egrave: "è", agrave: "à", ccedilla: "ç", ntilde: "ñ", degree: "°",
  section: "§", copyright: "©", minus: "−", multiply: "×", Euro: "€", nbspace: " ", dotlessi: "ı", acute: "´", dieresis: "¨",
};

/** The text of all pages, with an empty line between them.
 * @param {Uint8Array} bytes
 * @returns {Promise<string>} */
export async function pdfText(bytes) {
  const objects = await Objects.read(bytes);
  const root = await objects.resolve(objects.trailer.Root);
  /** @type {any[]} */
  const pages = [];
  await collectPages(objects, await objects.resolve(root?.Pages), {}, pages, 0);
  const texts = [];
  let length = 0;
  for (const page of pages) {
    const text = await pageText(objects, page);
    length += text.length;
    if (length > MAX_TEXT) throw new PdfError("pdf_damaged");
    if (text.trim()) texts.push(text.trim());
  }
  return texts.join("\n\n");
}

/** The leaves of the tree of pages, with what they inherit.
 * @param {Objects} objects
 * @param {any} node
 * @param {any} inherited
 * @param {any[]} pages
 * @param {number} depth */
async function collectPages(objects, node, inherited, pages, depth) {
  if (!node || depth > 40 || pages.length >= MAX_PAGES) return;
  if (++objects.visited > MAX_NODES) throw new PdfError("pdf_damaged");
  const own = { ...inherited, ...(node.Resources && { Resources: node.Resources }) };
  if (!node.Kids) { pages.push({ ...own, ...node }); return; }
  for (const kid of (await objects.resolve(node.Kids)) ?? []) await collectPages(objects, await objects.resolve(kid), own, pages, depth + 1);
}

/** @param {Objects} objects
 * @param {any} page */
async function pageText(objects, page) {
  const contents = await objects.resolve(page.Contents);
  const parts = [];
  for (const part of Array.isArray(contents) ? contents : [page.Contents]) {
    const stream = await objects.resolve(part);
    if (stream?.stream) parts.push(latin(await objects.data(stream)));
  }
  const writer = new Writer();
  await run(objects, parts.join("\n"), await objects.resolve(page.Resources), writer, 0);
  return writer.text;
}

/** @param {Uint8Array} bytes */
function latin(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return text;
}

/** Text at positions: a new line if the next piece is on another line, a space if there is a gap. */
class Writer {
  text = "";
  #x = 0;
  #y = 0;

  /** @param {string} piece
   * @param {number} x
   * @param {number} y
   * @param {number} size
   * @param {number} end */
  add(piece, x, y, size, end) {
    if (!piece) return;
    if (this.text) {
      const height = Math.max(4, size);
      if (Math.abs(y - this.#y) > height * .5) this.text += Math.abs(y - this.#y) > height * 1.9 ? "\n\n" : "\n";
      else if (x - this.#x > height * .18 && !/\s$/.test(this.text) && !/^\s/.test(piece)) this.text += " ";
    }
    this.text += piece;
    [this.#x, this.#y] = [end, y];
  }
}

/** The product of two matrices. @type {(a: number[], b: number[]) => number[]} */
const times = (a, b) => [
  a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3], a[2] * b[0] + a[3] * b[2], a[2] * b[1] + a[3] * b[3],
  a[4] * b[0] + a[5] * b[2] + b[4], a[4] * b[1] + a[5] * b[3] + b[5],
];

/** Runs the operators of a page or a form as far as they place text.
 * @param {Objects} objects
 * @param {string} content
 * @param {any} resources
 * @param {Writer | Nested} writer
 * @param {number} depth */
async function run(objects, content, resources, writer, depth) {
  if (depth > 8) return;
  const fonts = new Map();
  const fontsOf = await objects.resolve(resources?.Font);
  const forms = await objects.resolve(resources?.XObject);
  /** @type {any[]} */
  let stack = [];
  /** @type {any[]} */
  const saved = [];
  let matrix = [1, 0, 0, 1, 0, 0];
  let text = [1, 0, 0, 1, 0, 0], line = text, size = 1, leading = 0, spacing = 0, wordSpacing = 0, scale = 1;
  /** @type {any} */
  let font = null;
  const showPieces = (/** @type {any[]} */ pieces) => {
    for (const piece of pieces) {
      if (typeof piece === "number") { text = times([1, 0, 0, 1, -piece / 1000 * size * scale, 0], text); continue; }
      if (piece?.bytes === undefined || !font) continue;
      const begin = times(text, matrix);
      let shown = "", width = 0;
      for (const [code, char] of font.decode(piece.bytes)) {
        shown += char;
        width += font.width(code) / 1000 * size + spacing + (code === 32 ? wordSpacing : 0);
      }
      text = times([1, 0, 0, 1, width * scale, 0], text);
      const end = times(text, matrix);
      const height = size * Math.hypot(begin[2], begin[3]);
      writer.add(shown, begin[4], begin[5], height, end[4]);
      if (writer.text.length > MAX_TEXT) throw new PdfError("pdf_damaged");
    }
  };
  const newLine = (/** @type {number} */ x, /** @type {number} */ y) => { line = times([1, 0, 0, 1, x, y], line); text = line; };
  /** Each with the values before it. @type {Record<string, (values: any) => any>} */
  const operators = {
    q: () => { if (saved.length < 200) saved.push([matrix, size, leading, spacing, wordSpacing, scale, font]); },
    Q: () => { const last = saved.pop(); if (last) [matrix, size, leading, spacing, wordSpacing, scale, font] = last; },
    cm: a => { matrix = times(a, matrix); }, BT: () => { text = line = [1, 0, 0, 1, 0, 0]; },
    Tm: a => { text = line = a; }, Td: ([x, y]) => newLine(x, y), TD: ([x, y]) => { leading = -y; newLine(x, y); },
    "T*": () => newLine(0, -leading), TL: ([a]) => { leading = a; }, Tc: ([a]) => { spacing = a; }, Tw: ([a]) => { wordSpacing = a; },
    Tz: ([a]) => { scale = a / 100; }, Tj: ([a]) => showPieces([a]), TJ: ([a]) => showPieces(Array.isArray(a) ? a : []),
    "'": ([a]) => { newLine(0, -leading); showPieces([a]); },
    '"': ([w, c, a]) => { wordSpacing = w; spacing = c; newLine(0, -leading); showPieces([a]); },
    Tf: async ([name, a]) => {
      size = a;
      const key = name?.name;
      if (!fonts.has(key)) fonts.set(key, await Font.read(objects, await objects.resolve(fontsOf?.[key])));
      font = fonts.get(key);
    },
    Do: async ([name]) => {
      const form = await objects.resolve(forms?.[name?.name]);
      if (form?.dict?.Subtype?.name !== "Form") return;
      const place = times(Array.isArray(form.dict.Matrix) ? form.dict.Matrix : [1, 0, 0, 1, 0, 0], matrix);
      const inside = (await objects.resolve(form.dict.Resources)) ?? resources;
      await run(objects, latin(await objects.data(form)), inside, new Nested(writer, place), depth + 1);
    },
  };
  const parser = objects.parser(content);
  for (let token; (token = parser.next()) !== undefined;) {
    if (++objects.operators > MAX_OPERATORS) throw new PdfError("pdf_damaged");
    if (!token?.operator) { if (stack.length < 500) stack.push(token); continue; }
    if (token.operator === "BI") parser.skipImage();
    else if (Object.hasOwn(operators, token.operator)) await operators[token.operator](stack);
    stack = [];
  }
}

/** A writer inside a form, whose positions are those of the form. */
class Nested {
  /** @param {Writer | Nested} writer
   * @param {number[]} matrix */
  constructor(writer, matrix) {
    this.writer = writer;
    this.matrix = matrix;
  }

  /** @returns {string} */
  get text() { return this.writer.text; }

  /** @param {string} piece
   * @param {number} x
   * @param {number} y
   * @param {number} size
   * @param {number} end */
  add(piece, x, y, size, end) {
    const at = times([1, 0, 0, 1, x, y], this.matrix), to = times([1, 0, 0, 1, end, y], this.matrix);
    this.writer.add(piece, at[4], at[5], size * Math.hypot(this.matrix[2], this.matrix[3]), to[4]);
  }
}

/** Codes of a font to characters and widths. */
class Font {
  /** @type {Map<number, string>} */
  map = new Map();
  /** @type {Map<number, number>} */
  widths = new Map();
  wide = false;
  standard = 500;

  /** @param {Objects} objects
   * @param {any} dict */
  static async read(objects, dict) {
    const font = new Font();
    if (!dict) return font;
    font.wide = dict.Subtype?.name === "Type0";
    if (font.wide) {
      const descendant = await objects.resolve((await objects.resolve(dict.DescendantFonts))?.[0]);
      font.standard = Number(descendant?.DW ?? 1000);
      const list = (await objects.resolve(descendant?.W)) ?? [];
      for (let i = 0; i < list.length && i < 50000;) {
        const next = await objects.resolve(list[i + 1]);
        if (Array.isArray(next)) { next.forEach((/** @type {any} */ width, /** @type {number} */ at) => font.widths.set(list[i] + at, Number(width))); i += 2; }
        else { for (let code = list[i]; code <= Math.min(next, list[i] + 65535); code++) font.widths.set(code, Number(list[i + 2])); i += 3; }
      }
    } else {
      const first = Number(dict.FirstChar ?? 0);
      for (const [at, width] of ((await objects.resolve(dict.Widths)) ?? []).slice(0, 256).entries()) font.widths.set(first + at, Number(width));
      await font.#differences(objects, dict);
    }
    const unicode = await objects.resolve(dict.ToUnicode);
    if (unicode?.stream) font.#readMap(objects.parser(latin(await objects.data(unicode))));
    return font;
  }

  /** Glyph names that replace codes of the encoding.
   * @param {Objects} objects
   * @param {any} dict */
  async #differences(objects, dict) {
    const encoding = await objects.resolve(dict.Encoding);
    let code = 0;
    for (const entry of (await objects.resolve(encoding?.Differences)) ?? []) {
      if (typeof entry === "number") code = entry;
      else if (entry?.name !== undefined) {
        const { name } = entry;
        const hex = /^(?:uni|u)([\dA-F]{4,6})$/.exec(name);
        const char = Object.hasOwn(GLYPHS, name) ? GLYPHS[name] : /^[A-Za-z]$/.test(name) ? name : hex ? String.fromCodePoint(Math.min(0x10ffff, parseInt(hex[1], 16))) : undefined;
        if (char !== undefined) this.map.set(code, char);
        code++;
      }
    }
  }

  /** The sections of a ToUnicode map.
   * @param {import("./pdf_objects.js").Parser} parser */
  #readMap(parser) {
    /** @type {any[]} */
    let values = [];
    const number = (/** @type {{ bytes: string }} */ piece) => [...piece.bytes].reduce((sum, char) => sum * 256 + char.charCodeAt(0), 0);
    const chars = (/** @type {{ bytes: string }} */ piece) => {
      let text = "";
      for (let i = 0; i + 1 < piece.bytes.length; i += 2) text += String.fromCharCode(piece.bytes.charCodeAt(i) * 256 + piece.bytes.charCodeAt(i + 1));
      return text;
    };
    for (let token; (token = parser.next()) !== undefined && this.map.size < 70000;) {
      if (!token?.operator) { values.push(token); continue; }
      if (token.operator === "endbfchar") {
        for (let i = 0; i + 1 < values.length; i += 2) if (values[i]?.bytes && values[i + 1]?.bytes) this.map.set(number(values[i]), chars(values[i + 1]));
      } else if (token.operator === "endbfrange") {
        for (let i = 0; i + 2 < values.length; i += 3) {
          const [low, high, to] = [values[i], values[i + 1], values[i + 2]];
          if (!low?.bytes || !high?.bytes) continue;
          const begin = number(low), count = Math.min(number(high) - begin, 65535);
          for (let at = 0; at <= count; at++) {
            if (Array.isArray(to)) { if (to[at]?.bytes) this.map.set(begin + at, chars(to[at])); continue; }
            if (!to?.bytes) break;
            const text = chars(to);
            const last = text.charCodeAt(text.length - 1) + at;
            this.map.set(begin + at, text.slice(0, -1) + String.fromCharCode(last));
          }
        }
      }
      values = [];
    }
  }

  /** The codes of a string with their characters.
   * @param {string} bytes
   * @returns {[number, string][]} */
  decode(bytes) {
    /** @type {[number, string][]} */
    const found = [];
    const step = this.wide ? 2 : 1;
    for (let i = 0; i + step <= bytes.length; i += step) {
      const code = this.wide ? bytes.charCodeAt(i) * 256 + bytes.charCodeAt(i + 1) : bytes.charCodeAt(i);
      const plain = this.wide ? "" : code >= 0x80 && code < 0xa0 ? WIN[code - 0x80] : code >= 32 ? String.fromCharCode(code) : "";
      found.push([code, (this.map.get(code) ?? plain).replaceAll("\0", "")]);
    }
    return found;
  }

  /** @param {number} code */
  width(code) {
    const width = this.widths.get(code);
    return Number.isFinite(width) ? /** @type {number} */ (width) : this.standard;
  }
}
