/** Objects of a PDF: the syntax, references, object streams and compressed streams. */

const MAX_OBJECTS = 200000;
const MAX_STREAM = 64 << 20; // bytes of one stream after decompression
const MAX_ALL = 256 << 20; // of all streams together

/** An error whose message is the name of a text of the page. */
export class PdfError extends Error {
  code = "pdf";
}

const isSpace = (/** @type {string} */ c) => c === " " || c === "\n" || c === "\r" || c === "\t" || c === "\f" || c === "\0";
const isEnd = (/** @type {string | undefined} */ c) => c === undefined || isSpace(c) || "()<>[]{}/%".includes(c);

/** What a letter after a backslash stands for. @type {Record<string, string>} */
const ESCAPES = { n: "\n", r: "\r", t: "\t", b: "\b", f: "\f" };

/** Values and operators of a text. Names are { name }, strings { bytes }, references { ref }, operators { operator }. */
export class Parser {
  /** @param {string} text */
  constructor(text, at = 0) {
    this.text = text;
    this.at = at;
  }

  skip() {
    for (;;) {
      while (this.at < this.text.length && isSpace(this.text[this.at])) this.at++;
      if (this.text[this.at] !== "%") return;
      while (this.at < this.text.length && !"\r\n".includes(this.text[this.at])) this.at++;
    }
  }

  /** The next value, or undefined at the end.
   * @returns {any} */
  next(depth = 0) {
    if (depth > 60) throw new PdfError("pdf_damaged");
    this.skip();
    const c = this.text[this.at];
    if (c === undefined) return undefined;
    if (c === "/") return { name: this.#word(++this.at).replace(/#([\da-fA-F]{2})/g, (all, hex) => String.fromCharCode(parseInt(hex, 16))) };
    if (c === "(") return this.#string();
    if (c === "<" && this.text[this.at + 1] === "<") return this.#dict(depth);
    if (c === "<") return this.#hex();
    if (c === "[") return this.#array(depth);
    if ("]>){}".includes(c)) { this.at += this.text.startsWith(">>", this.at) ? 2 : 1; return { operator: c }; }
    const word = this.#word(this.at);
    if (/^[-+]?(?:\d+\.?\d*|\.\d+)$/.test(word)) {
      const ref = /^\d+$/.test(word) ? /^\s+(\d{1,5})\s+R(?![A-Za-z])/.exec(this.text.slice(this.at, this.at + 24)) : null;
      if (!ref) return Number(word);
      this.at += ref[0].length;
      return { ref: Number(word) };
    }
    return word === "true" ? true : word === "false" ? false : word === "null" ? null : { operator: word };
  }

  /** @param {number} from */
  #word(from) {
    let end = from;
    while (!isEnd(this.text[end])) end++;
    this.at = Math.max(end, from);
    if (end === from && this.text[from - 1] !== "/") this.at++;
    return this.text.slice(from, end);
  }

  #string() {
    let bytes = "", open = 1;
    for (this.at++; this.at < this.text.length; this.at++) {
      const c = this.text[this.at];
      if (c === "\\") {
        const octal = /^[0-7]{1,3}/.exec(this.text.slice(this.at + 1, this.at + 4));
        if (octal) { bytes += String.fromCharCode(parseInt(octal[0], 8) & 255); this.at += octal[0].length; continue; }
        const next = this.text[++this.at];
        if (next === "\r" || next === "\n") { if (next === "\r" && this.text[this.at + 1] === "\n") this.at++; continue; }
        bytes += ESCAPES[next] ?? next ?? "";
        continue;
      }
      if (c === "(") open++;
      if (c === ")" && --open === 0) { this.at++; break; }
      bytes += c;
    }
    return { bytes };
  }

  #hex() {
    const end = this.text.indexOf(">", this.at);
    const digits = this.text.slice(this.at + 1, end < 0 ? undefined : end).replace(/[^\da-fA-F]/g, "");
    this.at = end < 0 ? this.text.length : end + 1;
    let bytes = "";
    for (let i = 0; i < digits.length; i += 2) bytes += String.fromCharCode(parseInt(digits.slice(i, i + 2).padEnd(2, "0"), 16));
    return { bytes };
  }

  /** @param {number} depth */
  #array(depth) {
    const list = [];
    this.at++;
    for (;;) {
      const value = this.next(depth + 1);
      if (value === undefined || value?.operator === "]") return list;
      list.push(value);
    }
  }

  /** @param {number} depth */
  #dict(depth) {
    /** @type {Record<string, any>} */
    const dict = Object.create(null);
    this.at += 2;
    for (;;) {
      const key = this.next(depth + 1);
      if (key === undefined || key?.operator === ">") return dict;
      if (key?.name === undefined) continue;
      dict[key.name] = this.next(depth + 1);
    }
  }

  /** Skips an inline image. */
  skipImage() {
    const end = /\sEI(?=\s|$)/g;
    end.lastIndex = this.at;
    this.at = end.exec(this.text) ? end.lastIndex : this.text.length;
  }
}

/** All objects of a file, found by their headers: a damaged table of offsets does not matter. */
export class Objects {
  /** @type {Map<number, number>} offsets of the last version of each object */
  offsets = new Map();
  /** @type {Map<number, any>} */
  values = new Map();
  /** @type {Record<string, any>} */
  trailer = {};
  /** Nodes of the tree of pages, and values of pages, that were read so far. */
  visited = 0;
  operators = 0;
  #read = 0;

  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    this.bytes = bytes;
    this.text = new TextDecoder("latin1").decode(bytes).replace(/[€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]/g, "\x80"); // only ASCII is read from it
  }

  /** @param {Uint8Array} bytes */
  static async read(bytes) {
    const objects = new Objects(bytes);
    if (!objects.text.slice(0, 1024).includes("%PDF-")) throw new PdfError("pdf_damaged");
    const header = /(?<![\d.])(\d{1,7})\s{1,3}\d{1,5}\s{1,3}obj\b/g;
    for (let found; (found = header.exec(objects.text));) {
      if (objects.offsets.size > MAX_OBJECTS) throw new PdfError("pdf_damaged");
      objects.offsets.set(Number(found[1]), header.lastIndex);
    }
    for (let at = -1; (at = objects.text.indexOf("trailer", at + 1)) >= 0;) {
      const dict = new Parser(objects.text, at + 7).next();
      if (dict && typeof dict === "object") objects.trailer = { ...objects.trailer, ...dict };
    }
    for (const number of [...objects.offsets.keys()]) {
      const at = objects.offsets.get(number) ?? 0;
      if (!/\/(?:ObjStm|XRef)\b/.test(objects.text.slice(at, at + 400))) continue;
      const value = await objects.resolve({ ref: number });
      if (value?.dict?.Type?.name === "XRef") objects.trailer = { ...value.dict, ...objects.trailer };
      if (value?.dict?.Type?.name === "ObjStm") await objects.#unpack(value);
    }
    if (objects.trailer.Encrypt) throw new PdfError("pdf_encrypted");
    return objects;
  }

  /** The objects inside a stream.
   * @param {any} stream */
  async #unpack(stream) {
    const data = await this.data(stream);
    const text = new TextDecoder("latin1").decode(data);
    const parser = new Parser(text);
    const count = Math.min(Number(stream.dict.N) || 0, MAX_OBJECTS);
    const heads = [];
    for (let i = 0; i < count; i++) heads.push([parser.next(), parser.next()]);
    for (const [number, offset] of heads) {
      if (typeof number !== "number" || typeof offset !== "number" || this.offsets.has(number)) continue;
      this.values.set(number, new Parser(text, Number(stream.dict.First) + offset).next());
    }
  }

  /** A value, or the object that it refers to. Streams are { dict, stream }.
   * @param {any} value
   * @returns {Promise<any>} */
  async resolve(value, depth = 0) {
    if (value?.ref === undefined) return value;
    if (depth > 20) throw new PdfError("pdf_damaged");
    if (this.values.has(value.ref)) return this.resolve(this.values.get(value.ref), depth + 1);
    const at = this.offsets.get(value.ref);
    if (at === undefined) return null;
    const parser = new Parser(this.text, at);
    let found = parser.next();
    parser.skip();
    if (found && typeof found === "object" && this.text.startsWith("stream", parser.at)) {
      let begin = parser.at + 6;
      if (this.text[begin] === "\r") begin++;
      if (this.text[begin] === "\n") begin++;
      const length = Number(await this.resolve(found.Length, depth + 1));
      const known = length >= 0 && /^\s*endstream/.test(this.text.slice(begin + length, begin + length + 20));
      const end = known ? begin + length : this.text.indexOf("endstream", begin);
      found = { dict: found, stream: this.bytes.subarray(begin, end < 0 ? undefined : end) };
    }
    this.values.set(value.ref, found);
    return found;
  }

  /** The bytes of a stream after its filters.
   * @param {any} stream
   * @returns {Promise<Uint8Array>} */
  async data({ dict, stream }) {
    const filters = [await this.resolve(dict.Filter)].flat().filter(Boolean);
    const parameters = [await this.resolve(dict.DecodeParms)].flat();
    let bytes = stream;
    for (const [i, filter] of filters.entries()) {
      if (filter.name === "FlateDecode" || filter.name === "Fl") bytes = predicted(await this.#inflate(bytes), await this.resolve(parameters[i]));
      else if (filter.name === "ASCIIHexDecode" || filter.name === "AHx") bytes = binary(new Parser(`<${ascii(bytes)}`).next().bytes);
      else if (filter.name === "ASCII85Decode" || filter.name === "A85") bytes = ascii85(ascii(bytes));
      else return new Uint8Array(); // images
    }
    return bytes;
  }

  /** Decompresses up to the limit; what follows a damage is dropped.
   * @param {Uint8Array<ArrayBuffer>} bytes */
  async #inflate(bytes) {
    const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")).getReader();
    const chunks = [];
    let length = 0;
    try {
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        length += value.length;
        this.#read += value.length;
        if (length > MAX_STREAM || this.#read > MAX_ALL) throw new PdfError("pdf_damaged");
        chunks.push(value);
      }
    } catch (error) {
      if (error instanceof PdfError || !length) { reader.cancel().catch(() => {}); if (error instanceof PdfError) throw error; }
    }
    const all = new Uint8Array(length);
    let at = 0;
    for (const chunk of chunks) { all.set(chunk, at); at += chunk.length; }
    return all;
  }

  /** @param {string} text */
  parser(text) {
    return new Parser(text);
  }
}

const ascii = (/** @type {Uint8Array} */ bytes) => new TextDecoder("latin1").decode(bytes);
const binary = (/** @type {string} */ text) => Uint8Array.from(text, c => c.charCodeAt(0));

/** Undoes the predictors of PNG, with which tables of objects are compressed.
 * @param {Uint8Array} bytes
 * @param {any} parameters */
function predicted(bytes, parameters) {
  if (!(Number(parameters?.Predictor) >= 10)) return bytes;
  const width = Math.ceil((Number(parameters.Columns) || 1) * (Number(parameters.Colors) || 1) * (Number(parameters.BitsPerComponent) || 8) / 8);
  const step = Math.max(1, Math.ceil((Number(parameters.Colors) || 1) * (Number(parameters.BitsPerComponent) || 8) / 8));
  if (!(width > 0 && width < 1 << 20)) return bytes;
  const rows = Math.floor(bytes.length / (width + 1));
  const out = new Uint8Array(rows * width);
  for (let row = 0; row < rows; row++) {
    const kind = bytes[row * (width + 1)];
    for (let i = 0; i < width; i++) {
      const at = row * width + i;
      const left = i >= step ? out[at - step] : 0, up = row ? out[at - width] : 0, corner = row && i >= step ? out[at - width - step] : 0;
      const p = left + up - corner;
      const [a, b, c] = [Math.abs(p - left), Math.abs(p - up), Math.abs(p - corner)];
      const guess = [0, left, up, (left + up) >> 1, a <= b && a <= c ? left : b <= c ? up : corner][kind] ?? 0;
      out[at] = bytes[row * (width + 1) + 1 + i] + guess;
    }
  }
  return out;
}

/** @param {string} text */
function ascii85(text) {
  const out = [];
  let group = [];
  for (const c of text) {
    if (c === "~") break;
    if (c === "z" && !group.length) { out.push(0, 0, 0, 0); continue; }
    const value = c.charCodeAt(0) - 33;
    if (value < 0 || value > 84) continue;
    group.push(value);
    if (group.length < 5) continue;
    const number = group.reduce((sum, digit) => sum * 85 + digit, 0);
    out.push(number >>> 24 & 255, number >>> 16 & 255, number >>> 8 & 255, number & 255);
    group = [];
  }
  if (group.length > 1) {
    const count = group.length - 1;
    while (group.length < 5) group.push(84);
    const number = group.reduce((sum, digit) => sum * 85 + digit, 0);
    out.push(...[number >>> 24 & 255, number >>> 16 & 255, number >>> 8 & 255].slice(0, count));
  }
  return Uint8Array.from(out);
}
