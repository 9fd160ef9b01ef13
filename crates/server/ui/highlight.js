/**
 * Colours of code: one regular expression per language, made of a table. It finds comments, strings, numbers and words;
 * what a word is follows from lists and from what comes after it. Loaded with the first block of code.
 */

/**
 * @typedef {{ [part: string]: any, keywords?: Set<string>, values?: Set<string>, fold?: boolean,
 *   plain?: boolean }} Language
 */

/** @param {string} text */
const words = text => new Set(text.split(" "));

/** Parts that languages share. Repetitions cannot give back what they took, so that no text makes a search slow. */
const SLASHES = String.raw`\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)`;
const HASH = String.raw`#[^\n]*`;
const DASHES = String.raw`--[^\n]*`;
const DOUBLE = String.raw`"(?:[^"\\\n]|\\[^])*"?`;
const SINGLE = String.raw`'(?:[^'\\\n]|\\[^])*'?`;
const BACKTICK = "`(?:[^`\\\\]|\\\\[^])*`?";
const NUMBER = String.raw`\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\w*`;
const C_LIKE = { comment: SLASHES, string: `${DOUBLE}|${SINGLE}`, meta: String.raw`^[ \t]*#[a-z]+` };

/** A language: patterns of its comments, strings and other parts, and its words.
 * @type {Record<string, Language>} */
const LANGUAGES = {
  javascript: {
    comment: SLASHES, string: `${DOUBLE}|${SINGLE}|${BACKTICK}`, meta: String.raw`@[A-Za-z_]\w*`,
    keywords: words("abstract as async await break case catch class const continue debugger declare default delete do else enum export extends finally for from function get if implements import in infer instanceof interface is keyof let namespace new of private protected public readonly return satisfies set static super switch this throw try type typeof var void while with yield"),
    values: words("true false null undefined NaN Infinity any boolean never number object string symbol unknown"),
  },
  python: {
    comment: HASH, string: String.raw`[rbfuRBFU]{0,2}(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|${DOUBLE}|${SINGLE})`, meta: String.raw`^[ \t]*@[\w.]+`,
    keywords: words("and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try while with yield"),
    values: words("True False None self cls int float str bool list dict set tuple bytes object"),
  },
  rust: {
    comment: SLASHES, string: String.raw`\bb?r#{1,3}"[^]*?(?:"#{1,3}|$)|\bb?r"[^"]*"?|b?${DOUBLE}|b?'(?:[^'\\\n]|\\[^\n]{1,9})'`,
    meta: String.raw`#!?\[[^\]\n]*\]|\b\w+!(?=[(\[{])|'[a-z_]\w*`,
    keywords: words("as async await break const continue crate dyn else enum extern fn for if impl in let loop match mod move mut pub ref return static struct super trait type union unsafe use where while"),
    values: words("true false self Self i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize f32 f64 bool char str String Vec Option Result Some None Ok Err Box"),
  },
  c: {
    ...C_LIKE,
    keywords: words("alignas alignof asm auto break case catch class concept const constexpr continue co_await co_return co_yield decltype default delete do else enum explicit export extern final for friend goto if inline mutable namespace new noexcept operator override private protected public register requires restrict return sizeof static static_assert struct switch template this throw try typedef typename union using virtual volatile while __global__ __device__ __shared__ __restrict__"),
    values: words("true false nullptr NULL void bool char short int long float double signed unsigned size_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t std string vector"),
  },
  java: {
    comment: SLASHES, string: String.raw`"""[^]*?(?:"""|$)|${DOUBLE}|${SINGLE}`, meta: String.raw`@[A-Za-z_]\w*`,
    keywords: words("abstract as assert break by case catch class companion const constructor continue data default do else enum extends final finally for fun goto if implements import in init inline instanceof interface internal is lateinit native new non-sealed object open operator override package permits private protected public record return sealed static strictfp super suspend switch synchronized this throw throws transient try typealias val var void volatile when where while yield"),
    values: words("true false null boolean byte char double float int long short String Int Long Double Float Boolean Unit Any List Map Set"),
  },
  csharp: {
    comment: SLASHES, string: String.raw`@"(?:[^"]|"")*"?|\$?${DOUBLE}|${SINGLE}`, meta: String.raw`^[ \t]*#[a-z]+|^[ \t]*\[[A-Z]\w*`,
    keywords: words("abstract add as async await base break case catch checked class const continue default delegate do else enum event explicit extern finally fixed for foreach from get goto if implicit in init interface internal is lock namespace new operator out override params partial private protected public readonly record ref remove required return sealed select set sizeof stackalloc static struct switch this throw try typeof unchecked unsafe using var virtual void volatile when where while with yield"),
    values: words("true false null bool byte char decimal double dynamic float int long nint object sbyte short string uint ulong ushort"),
  },
  go: {
    comment: SLASHES, string: "`[^`]*`?|" + `${DOUBLE}|${SINGLE}`,
    keywords: words("break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var"),
    values: words("true false nil iota any bool byte complex64 complex128 error float32 float64 int int8 int16 int32 int64 rune string uint uint8 uint16 uint32 uint64 uintptr"),
  },
  ruby: {
    comment: HASH, string: `${DOUBLE}|${SINGLE}|` + String.raw`:[a-z_]\w*\b`, meta: String.raw`@{1,2}[a-z_]\w*|\$[a-z_]\w*`,
    keywords: words("alias and begin break case class def defined? do else elsif end ensure for if in module next not or redo require require_relative rescue retry return super then undef unless until when while yield attr_accessor attr_reader"),
    values: words("true false nil self"),
  },
  php: {
    comment: `${SLASHES}|${HASH}`, string: `${DOUBLE}|${SINGLE}`, meta: String.raw`\$\w+|<\?php|\?>`,
    keywords: words("abstract and array as break callable case catch class clone const continue declare default do echo else elseif empty enum extends final finally fn for foreach function global if implements include instanceof insteadof interface isset list match namespace new or print private protected public readonly require require_once return static switch throw trait try unset use var while xor yield"),
    values: words("true false null int float string bool void mixed self"),
  },
  swift: {
    comment: SLASHES, string: String.raw`"""[^]*?(?:"""|$)|${DOUBLE}`, meta: String.raw`@\w+|#\w+`,
    keywords: words("actor as associatedtype async await break case catch class continue default defer deinit do else enum extension fallthrough fileprivate final for func guard if import in indirect init inout internal is lazy let mutating nonisolated open operator override private protocol public repeat required rethrows return some static struct subscript super switch throw throws try typealias unowned var weak where while"),
    values: words("true false nil self Self Any Bool Character Double Float Int String Array Dictionary Optional Set Void"),
  },
  bash: {
    comment: String.raw`(?<![$\w{])#[^\n]*`, string: String.raw`"(?:[^"\\]|\\[^])*"?|'[^']*'?`, meta: String.raw`\$(?:\w+|\{[^}\n]*\}|[@*#?$!-])`,
    keywords: words("case coproc do done elif else esac export fi for function if in local readonly return select set shift source then time trap unset until while sudo cd echo exit eval exec printf read test cat grep sed awk curl git docker npm pip cargo make mkdir rm cp mv ls apt-get"),
    values: words("true false"),
  },
  sql: {
    comment: String.raw`${DASHES}|\/\*[^]*?(?:\*\/|$)`, string: String.raw`'(?:[^']|'')*'?|"[^"\n]*"?`, fold: true,
    keywords: words("add all alter and any as asc begin between by cascade case check column commit constraint create cross database default delete desc distinct drop else end exists explain foreign from full function grant group having if in index inner insert intersect into is join key left like limit natural not null offset on or order outer over partition primary procedure references replace returning right rollback row rows select set table then top transaction trigger truncate union unique update using values view when where window with"),
    values: words("true false int integer bigint smallint serial text varchar char date time timestamp boolean numeric decimal real float count sum avg min max coalesce now"),
  },
  html: { comment: "<!--[^]*?(?:-->|$)", tag: String.raw`<\/?[A-Za-z][\w:-]*|\/?>`, property: String.raw`\b[\w:@.-]{1,60}(?==)`, string: String.raw`(?<==)(?:"[^"]*"?|'[^']*'?)`, meta: String.raw`<!\w+|&[#\w]{1,20};|<\?\w+|\?>`, plain: true },
  css: {
    comment: SLASHES, string: `${DOUBLE}|${SINGLE}`, property: String.raw`(?<=[{;]\s{0,40})[\w-]+(?=\s{0,9}:)|--[\w-]+`,
    tag: String.raw`[.#][A-Za-z_][\w-]*(?=[^;{}\n]*\{)|@[\w-]+|\$[\w-]+`, number: String.raw`#[\da-fA-F]{3,8}\b|-?\b\d+(?:\.\d+)?(?:%|[a-z]+)?`, plain: true,
  },
  json: { comment: SLASHES, property: String.raw`"(?:[^"\\\n]|\\.)*"(?=\s{0,99}:)`, string: DOUBLE, keywords: words(""), values: words("true false null") },
  yaml: {
    comment: String.raw`(?<![^\s])#[^\n]*`, property: String.raw`^[ \t]*(?:- )*[\w.\/-]+(?=:(?:\s|$))`, string: `${DOUBLE}|` + String.raw`'(?:[^'\n]|'')*'?`, meta: String.raw`[&*!][\w-]+|^---`,
    keywords: words(""), values: words("true false null yes no on off"),
  },
  toml: { comment: HASH, tag: String.raw`^[ \t]*\[[^\]\n]*\]+`, property: String.raw`^[ \t]*[\w."-]+(?=\s{0,40}=)`, string: String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|${DOUBLE}|'[^'\n]*'?`, keywords: words(""), values: words("true false") },
  markdown: { keyword: String.raw`^#{1,6} [^\n]*|^[ \t]*(?:[-*+]|\d+\.)(?= )|^> ?`, string: "```[^]*?(?:```|$)|`[^`\\n]*`", property: String.raw`\[[^\]\n]{0,200}\]\([^)\n]{0,500}\)`, value: String.raw`\*\*[^*\n]+\*\*|\*[^*\n]+\*`, plain: true },
  diff: { inserted: String.raw`^\+[^\n]*`, deleted: String.raw`^-[^\n]*`, meta: String.raw`^(?:@@|diff|index)[^\n]*`, plain: true },
  lua: {
    comment: String.raw`--\[\[[^]*?(?:\]\]|$)|${DASHES}`, string: String.raw`\[\[[^]*?(?:\]\]|$)|${DOUBLE}|${SINGLE}`,
    keywords: words("and break do else elseif end for function goto if in local not or repeat return then until while"), values: words("true false nil self"),
  },
  r: { comment: HASH, string: `${DOUBLE}|${SINGLE}`, keywords: words("break else for function if in library next repeat require return while"), values: words("TRUE FALSE NULL NA Inf NaN") },
  dockerfile: {
    comment: String.raw`^[ \t]*#[^\n]*`, string: `${DOUBLE}|${SINGLE}`, meta: String.raw`\$(?:\w+|\{[^}\n]*\})`,
    keywords: words("FROM AS RUN CMD LABEL EXPOSE ENV ADD COPY ENTRYPOINT VOLUME USER WORKDIR ARG ONBUILD STOPSIGNAL HEALTHCHECK SHELL"), values: words(""),
  },
};

/** Other names of the languages. @type {Record<string, string>} */
const NAMES = {
  js: "javascript", jsx: "javascript", mjs: "javascript", ts: "javascript", tsx: "javascript", typescript: "javascript", node: "javascript",
  py: "python", python3: "python", rs: "rust", "c++": "c", cpp: "c", cc: "c", h: "c", hpp: "c", cuda: "c", cu: "c", objectivec: "c", glsl: "c", wgsl: "c",
  kotlin: "java", kt: "java", scala: "java", dart: "java", groovy: "java", "c#": "csharp", cs: "csharp", golang: "go", rb: "ruby",
  sh: "bash", shell: "bash", zsh: "bash", console: "bash", powershell: "bash", makefile: "bash", postgresql: "sql", mysql: "sql", sqlite: "sql",
  xml: "html", svg: "html", vue: "html", svelte: "html", htm: "html", scss: "css", less: "css", jsonc: "json", json5: "json", jsonl: "json",
  yml: "yaml", ini: "toml", md: "markdown", patch: "diff", docker: "dockerfile",
};

/** The order in which parts are looked for. */
const PARTS = ["comment", "tag", "property", "string", "meta", "inserted", "deleted", "keyword", "value", "number"];
/** @type {Map<string, RegExp>} */
const compiled = new Map();

/** The search for all parts of a language.
 * @param {string} name
 * @param {Language} language */
function search(name, language) {
  let pattern = compiled.get(name);
  if (!pattern) {
    const parts = PARTS.filter(part => language[part]).map(part => `(?<${part}>${language[part]})`);
    if (!language.plain) parts.push(`(?<number>${NUMBER})`, String.raw`(?<word>[A-Za-z_$][\w$?]*)(?<call>\s?\((?!\*))?`);
    pattern = new RegExp(parts.join("|"), "gm");
    compiled.set(name, pattern);
  }
  pattern.lastIndex = 0;
  return pattern;
}

/** The coloured parts of a text in order; none if the language is not known.
 * @param {string} language
 * @param {string} text
 * @returns {{ start: number, end: number, kind: string }[]} */
export function tokens(language, text) {
  const name = NAMES[language.toLowerCase()] ?? language.toLowerCase();
  const known = Object.hasOwn(LANGUAGES, name) ? LANGUAGES[name] : null;
  if (!known) return [];
  const found = [];
  const pattern = search(name, known);
  for (let match; (match = pattern.exec(text));) {
    const groups = match.groups ?? {};
    const { word, call } = groups;
    if (!match[0]) { pattern.lastIndex++; continue; }
    const start = match.index;
    if (word === undefined) {
      const kind = PARTS.find(part => groups[part] !== undefined);
      if (kind) found.push({ start, end: start + match[0].length, kind });
      continue;
    }
    const plain = known.fold ? word.toLowerCase() : word;
    const kind = known.keywords?.has(plain) ? "keyword" : known.values?.has(plain) ? "value" : call ? "call" : "";
    if (kind) found.push({ start, end: start + word.length, kind });
    if (call) pattern.lastIndex = start + word.length;
  }
  return found;
}

/** The names of all languages. */
export const KNOWN = Object.keys(LANGUAGES);
