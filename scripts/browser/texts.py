"""Texts of answers: Markdown, code, formulas, and hostile content."""

import time

from .driver import Page, want

# The elements and attributes an answer may contain: everything else in the conversation is an injection.
ELEMENTS = set(
    "a article b blockquote br button code details div em figcaption figure h3 h4 h5 h6 hr i li ol p pre s span strong "
    "small summary table tbody td th thead tr ul svg path form textarea math mi mn mo mrow mfrac msup msub mtext mspace mstyle msqrt "
    "mtable mtr mtd mpadded semantics merror".split()
)
ATTRIBUTES = set(
    "aria-expanded aria-haspopup aria-label aria-level class dir disabled hidden href open rel role rows start style tabindex target "
    "title type d viewBox aria-hidden placeholder display".split()
)

STYLES = {"text-align: center;", "text-align: right;"}

ATTACK = "window.attacked=1"  # no blank: a link with one is none
HOSTILE = [
    f'<img src=x onerror="{ATTACK}">',
    f"<script>{ATTACK}</script>",
    f'<svg onload="{ATTACK}"></svg><iframe srcdoc="<script>parent.attacked = true</script>"></iframe>',
    f'<a href="javascript:{ATTACK}">a</a> <style>* {{ display: none }}</style> <base href="https://evil.test/">',
    f"[plain](javascript:{ATTACK}) [case](JaVaScRiPt:{ATTACK}) [tab](java\tscript:{ATTACK}) [gap]( javascript:x)",
    "[data](data:text/html,<script>1</script>) [vb](vbscript:x) [file](file:///etc/passwd) [blob](blob:https://x/y)",
    f'[quote](https://ok.test/"onmouseover="{ATTACK}) [title](https://ok.test "x" onclick="{ATTACK}")',
    f'[inner <img src=x onerror={ATTACK}>](https://ok.test/a) <https://ok.test/b> https://ok.test/c"onclick={ATTACK}',
    f"![picture](https://evil.test/pixel.png) ![p](javascript:{ATTACK}) ![d](data:image/svg+xml,<svg/onload={ATTACK}>)",
    f'```html"onclick="{ATTACK}\n<script>{ATTACK}</script>\n```',
    f"# <img src=x onerror={ATTACK}>\n\n> <img src=x onerror={ATTACK}>\n\n- <img src=x onerror={ATTACK}>",
    f"| <img src=x onerror={ATTACK}> | b |\n|---|---|\n| `<script>{ATTACK}</script>` | <br><br onload={ATTACK}> |",
    f"**<img src=x onerror={ATTACK}>** _<script>{ATTACK}</script>_ `<script>{ATTACK}</script>`",
    f"$\\href{{javascript:{ATTACK}}}{{x}}$ $\\url{{javascript:{ATTACK}}}$ $\\includegraphics{{https://evil.test/p.png}}$",
    f"$\\html{{<img src=x onerror={ATTACK}>}}$ $\\htmlStyle{{background:url(https://evil.test/x)}}{{y}}$ $\\class{{x}}{{y}}$",
    f"$$\n\\text{{<script>{ATTACK}</script>}} \\color{{red;background:url(https://evil.test/y)}} z\n$$ \\(\\ref{{a}}\\)",
    f'```js\n"</span><img src=x onerror={ATTACK}>" // <script>{ATTACK}</script>\n```',
    "&lt;script&gt;window.attacked = true&lt;/script&gt; \\<script> \u2028 \u0000 <![CDATA[<script>]]> <!-- --><p>",
]

MARKDOWN = """# Title

Some **bold**, *italic*, ***both***, `code` and ~~gone~~ with snake_case_names and 2 * 3.
A [link](https://example.org/a_(b)) and https://example.org/c.

1. one
   - inner
     - innermost
2. two

> quoted
> - item

```rust
fn main() {
    println!("```");
}
```

A formula $x^2$, costs $5 and $10, and

$$
\\frac{1}{2}
- \\sqrt{x}
$$

| left | right |
|:-----|------:|
| `a`  | **1** |

---

- [x] done
  ```sh
  ls
  ```

3. three
"""

# A conversation with everything in it.
SPECIMEN = [
    {"role": "user", "content": "Show **all** of it"},
    {
        "role": "assistant",
        "content": MARKDOWN,
        "reasoning": "First I **think**.\n\nThen I answer.",
        "calls": [{"name": "weather", "arguments": '{"city": "Bergen"}'}],
        "stats": {"first": 0.21, "last": 3.4, "thought": 1.5, "tokens": 181, "prompt": 41, "cached": 32},
        "end": "stop",
    },
]

# How often each selector must match in MARKDOWN.
EXPECTED = {
    "h3": 1,
    "p strong": 2,
    "p > em": 1,
    ".math": 2,
    ".math.display math": 1,
    ".math:not(.display) math msup": 1,
    "strong > em": 1,
    "p code": 1,
    "p s": 1,
    "a[href]": 2,
    "ol": 2,
    "ol[start='3']": 1,
    "ol > li > ul > li > ul > li": 1,
    "blockquote li": 1,
    "figure.code": 2,
    "li figure.code": 1,
    "table": 1,
    "th": 2,
    "td": 2,
    "td[style*=right] > strong": 1,
    "hr": 1,
}

# Texts that make careless patterns slow: a piece and how often it is repeated.
SLOW = [
    ("$a ", 20000),
    ("$$", 20000),
    ("\\(", 20000),
    ("\\[\n", 5000),
    ("$$\n", 5000),
    ("[", 30000),
    ("[a](", 20000),
    ("![[a]", 15000),
    ("*a _b ", 15000),
    ("***a ", 15000),
    ("`", 20000),
    ("` `` ``` ", 8000),
    ("> ", 20000),
    ("- ", 20000),
    ("* a\n", 10000),
    ("# #", 20000),
    ("# " + " " * 50000 + "#", 1),
    ("-" * 50000 + "x", 1),
    ("http://", 9000),
    ("<br", 20000),
    ("|" * 30000 + "\n" + "|-" * 30000, 1),
    ("| a " * 60 + "|\n" + "|-" * 60 + "|\n" + "|\n" * 3000, 1),
]

ANSWER = ".assistant > .markdown:not(.calls)"


def renders_markdown(page: Page) -> str:
    page.seed(SPECIMEN)
    page.until(lambda: page.count(f"{ANSWER} math") == 2, "the formulas are typeset")
    for selector, count in EXPECTED.items():
        found = page.count(f"{ANSWER} {selector}")
        want(found == count, f"Markdown: {found} of {selector}, want {count}")
    want("costs $5 and $10" in page.texts()[-1], "prices became a formula")
    code = page.find(f"{ANSWER} figure.code pre").text
    want(code == 'fn main() {\n    println!("```");\n}', f"a code block is {code!r}")
    want(page.find(f"{ANSWER} figcaption span").text == "rust", "a code block has no language")
    want(page.find(f"{ANSWER} figcaption .copy").is_displayed(), "a code block has no copy button")
    page.until(lambda: page.count(f"{ANSWER} .t-keyword") and page.count(f"{ANSWER} .t-string"), "code has colours")
    want(page.find(".said").text == "Show **all** of it", "what the user wrote is changed")
    want("weather" in page.text(".calls figcaption") and "Bergen" in page.text(".calls code"), "no tool call")
    want(not page.find(".thinking .markdown").is_displayed(), "the thoughts are open beside a finished answer")
    want("1.5 s" in page.text(".thinking summary"), f"the thinking has no time: {page.text('.thinking summary')!r}")
    page.click(".thinking summary")
    want(page.find(".thinking strong").is_displayed(), "the thoughts do not open")
    page.click(".thinking summary")
    # text rendered after every character must equal the same text rendered once
    differs = page.run(
        """const { MarkdownView } = await page("markdown/view.js");
        for (const text of [args[0], args[0].repeat(4)]) {
          const whole = new MarkdownView(), grown = new MarkdownView();
          whole.render(text, false);
          for (let end = 0; end <= text.length; end += 1 + (end > args[0].length)) grown.render(text.slice(0, end), true);
          grown.render(text, false);
          whole.node.normalize(); grown.node.normalize();
          if (!whole.node.isEqualNode(grown.node)) return [whole.node.innerHTML, grown.node.innerHTML];
        }""",
        MARKDOWN,
    )
    want(not differs, f"Markdown drawn while it grows ends differently: {differs!r}")
    slowest = 0.0
    draw = """const { MarkdownView } = await page("markdown/view.js");
      const t = performance.now(); new MarkdownView().render(args[0].repeat(args[1]), true); return performance.now() - t;"""
    for piece, times in SLOW:
        if page.browser == "chromium":
            took = page.processor_ms(lambda piece=piece, times=times: page.run(draw, piece, times))[1]["TaskDuration"]
        else:
            took = page.run(draw, piece, times)
        want(took < 2000, f"{piece[:20]!r}... ({len(piece) * times} characters) took {took:.0f} ms to draw, want below 2000")
        slowest = max(slowest, took)
    return f"{len(EXPECTED)} shapes, grown text equals whole text, slowest hostile text {slowest:.0f} ms"


# A text in each language and a kind of token that it must have.
LANGUAGES = {
    "javascript": ("const a = `x`; // c", "keyword"), "typescript": ("interface A { b: string }", "value"), "python": ("def f():\n  return 'x'", "keyword"),
    "rust": ("let x: u32 = 1;", "value"), "c": ("#include <a.h>\nint main() {}", "meta"), "c++": ("template <class T> x();", "keyword"),
    "java": ("@Override public void f() {}", "meta"), "kotlin": ("fun main() { val x = 1 }", "keyword"), "csharp": ("var x = $\"a\";", "string"),
    "go": ("func main() { x := nil }", "value"), "ruby": ("def f; @x = :y; end", "keyword"), "php": ("<?php echo $x;", "meta"),
    "swift": ("let x = \"a\"", "keyword"), "bash": ("if [ $x ]; then echo; fi # c", "comment"), "sql": ("SELECT 1 -- c", "comment"),
    "html": ("<a href=\"x\">", "tag"), "css": (".a { color: red }", "property"), "json": ('{"a": 1}', "property"), "yaml": ("a: 1", "property"),
    "toml": ("[a]\nb = 1", "tag"), "markdown": ("# A", "keyword"), "diff": ("+a\n-b", "deleted"), "lua": ("local x = nil", "value"),
    "r": ("f <- function(x) TRUE", "keyword"), "dockerfile": ("FROM x\nRUN y", "keyword"),
}  # fmt: skip
UNCLOSED = ['"', "'", "/*", "//", "`", "<!--", '"""', "a=", "#", "- ", "\\", "{;          ", "<a ", "@\"", 'br#"', "$", "[[", "(", "{", "a:"]


def highlights(page: Page) -> str:
    """Colours never change the text, and no text makes a language slow."""
    result = page.run(
        """const { tokens, KNOWN } = await page("highlight.js");
        const wrong = [];
        for (const [language, [text, kind]] of Object.entries(args[0])) {
          const found = tokens(language, text);
          if (!found.some(token => token.kind === kind)) wrong.push(`${language}: no ${kind} in ${text}`);
          for (let i = 0; i < found.length; i++) if (found[i].end <= found[i].start || (i && found[i].start < found[i - 1].end)) wrong.push(`${language}: parts overlap`);
        }
        if (tokens("nonsense", "x").length || tokens("constructor", "x").length) wrong.push("an unknown language has colours");
        let slowest = 0;
        for (const language of KNOWN) for (const piece of args[1]) {
          const text = piece.repeat(40000 / piece.length), begin = performance.now();
          tokens(language, text);
          const took = performance.now() - begin;
          if (took > 1500) wrong.push(`${language}: ${JSON.stringify(piece)} takes ${took} ms`);
          slowest = Math.max(slowest, took);
        }
        const { codeFigure, setCode } = await page("markdown/code.js");
        const text = Array.from({ length: 350 }, (_, i) => `let x${i} = "${i}"; // c`).join("\\n");
        const figure = codeFigure("rust", "", "rust", true);
        for (let end = 0; end <= text.length; end += 37) setCode(figure, text.slice(0, end), true);
        setCode(figure, text, false);
        await new Promise(resolve => setTimeout(resolve, 200)); // the highlighter is loaded with the first block
        if (figure.querySelector("code").textContent !== text) wrong.push("colours changed a growing text");
        if (figure.querySelectorAll(".t-keyword").length !== 350) wrong.push(`${figure.querySelectorAll(".t-keyword").length} of 350 keywords`);
        return [wrong, slowest];""",
        LANGUAGES, UNCLOSED,
    )  # fmt: skip
    want(not result[0], "; ".join(result[0]))
    return f"{len(LANGUAGES)} languages, slowest text {result[1]:.0f} ms"


def resists_injection(page: Page) -> str:
    messages: list[dict[str, object]] = []
    for text in [*HOSTILE, "\n\n".join(HOSTILE)]:
        answer = dict.fromkeys(("content", "reasoning", "error", "end", "model"), text)
        tokens = [[text, -1, [[text, -2]]]]
        messages.append({"role": "user", "content": text, "attachments": [{"name": text, "kind": "image", "url": f"javascript:{text}"}]})
        messages.append({"role": "assistant", "calls": [{"name": text, "arguments": text}], "tokens": tokens, **answer})
    page.seed(messages, {"system": HOSTILE[0]})
    page.until(lambda: len(page.texts()) == len(messages), "the hostile conversation is shown")
    page.js("all('.thinking').forEach(node => { node.open = true; })")
    page.run(
        """const { MarkdownView } = await page("markdown/view.js");
        for (const text of args[0]) {
          const view = new MarkdownView();
          byId("conversation").append(view.node);
          for (let end = 0; end <= text.length; end++) view.render(text.slice(0, end), true);
          view.render(text, false);
        }""",
        HOSTILE,
    )
    time.sleep(0.5)  # handlers of broken images and frames would run now
    want(page.js("return window.attacked") is None, "a script of the answer ran")
    nodes = page.js(
        """return all("#conversation *").map(node => [node.localName, [...node.attributes].map(({ name, value }) => [name, value])]);"""
    )
    links = 0
    for tag, attributes in nodes:
        want(tag in ELEMENTS, f"the answer made the element <{tag}>")
        for name, value in attributes:
            want(name in ATTRIBUTES, f"the answer made the attribute {name}={value!r} of <{tag}>")
            want(name != "style" or "url" not in value, f"the answer made style={value!r}")
            want(name != "href" or value.startswith(("http://", "https://")), f"the answer made a link to {value!r}")
        if tag == "a":
            links += 1
            want("noopener" in dict(attributes).get("rel", ""), f"a link without rel=noopener: {attributes}")
    want(links, "no link at all: the attacks on links tested nothing")
    want(HOSTILE[1] in page.texts()[3], "a hostile text is not shown as text")
    return f"{len(nodes)} elements, {links} links, no script"
