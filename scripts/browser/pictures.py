"""The pictures of docs/page.md: `scripts/browser_test.py --url URL --pictures docs/images` takes them again."""

from __future__ import annotations

import base64
from pathlib import Path

from .driver import Page, want
from .files import drop
from .looks import DESKTOP, PHONE

# What the sidebar lists, with the age in days.
LISTED = [
    ("Names for a small boat", 0, True), ("Packing list for Lofoten", 0, False), ("Regular expression for dates", 1, False),
    ("Explain backpropagation", 4, False), ("Letter to the landlord", 12, False), ("Sourdough that does not rise", 40, False),
]  # fmt: skip

QUESTION = "How far does an Arctic tern fly in a year, and how is that computed?"
ANSWER = """An Arctic tern flies from the Arctic to the Antarctic and back. Trackers of **11 birds** recorded about 70,900 km:

| leg | distance | days |
|:--|--:|--:|
| south, with a stop in the Atlantic | 34,600 km | 93 |
| in the Antarctic | 10,900 km | 5 months |
| north | 25,700 km | 40 |

The distance between two positions is that of a great circle, with the radius $R$ of the Earth:

$$
d = 2R \\arcsin \\sqrt{\\sin^2\\frac{\\Delta\\varphi}{2} + \\cos\\varphi_1 \\cos\\varphi_2 \\sin^2\\frac{\\Delta\\lambda}{2}}
$$

```python
from math import asin, cos, radians, sin, sqrt

def distance(a, b, radius=6371):  # kilometres
    (p1, l1), (p2, l2) = [map(radians, place) for place in (a, b)]
    h = sin((p2 - p1) / 2) ** 2 + cos(p1) * cos(p2) * sin((l2 - l1) / 2) ** 2
    return 2 * radius * asin(sqrt(h))
```
"""
THOUGHTS = "The user asks for a distance and a method. A table for the legs, then the formula, then code."
STATS = {"first": 0.31, "last": 6.9, "thought": 1.4, "tokens": 412, "prompt": 61, "cached": 32}
TALK = [
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": ANSWER, "reasoning": THOUGHTS, "stats": STATS, "end": "stop"},
]
TOOL_TALK = [
    {"role": "user", "content": "What is the weather in Tromsø? Should I bring an umbrella?"},
    {"role": "assistant", "content": "", "calls": [{"id": "c1", "name": "weather", "arguments": '{"city": "Tromsø"}'}], "end": "tool_calls"},
]
# What waits for the end of an answer.
WAITING = ["And how far does it fly in its whole life?", "Write both as one sentence for children."]
TOKENS = [["Yes", -0.3, [["Yes", -0.3], ["No", -1.6], ["It", -3.4]]], [",", -0.02, [[",", -0.02]]], [" the", -0.9, [[" the", -0.9], [" a", -1.1]]],
          [" small", -1.7, [[" small", -1.7], [" Arctic", -0.9], [" little", -2.2]]], [" tern", -0.2, [[" tern", -0.2], [" bird", -1.9]]],
          [" dives", -0.8, [[" dives", -0.8], [" catches", -1.2]]], [" for", -0.1, [[" for", -0.1]]], [" fish", -0.05, [[" fish", -0.05]]],
          [" near", -2.9, [[" in", -0.4], [" near", -2.9]]], [" the", -0.1, [[" the", -0.1]]], [" coast", -1.2, [[" coast", -1.2], [" shore", -0.8]]], [".", -0.1, [[".", -0.1]]]]  # fmt: skip


def save(page: Page, folder: Path, name: str) -> None:
    page.frames()
    data = base64.b64decode(page.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"])
    want(len(data) < 200_000, f"{name}.png has {len(data)} bytes, want below 200 kB")
    (folder / f"{name}.png").write_bytes(data)


def shape(page: Page, size: tuple[int, int], scheme: str) -> None:
    page.screen(None, scheme, reduced=True)
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def seed(page: Page, messages: list[dict[str, object]]) -> None:
    """Shows a conversation, and removes the one before it."""
    page.run("const { store } = await page('store.js'); for (const { id } of await store.conversations()) if (!id.startsWith('picture-')) await store.remove(id);")
    page.seed(messages)


def show(page: Page, messages: list[dict[str, object]]) -> None:
    seed(page, messages)
    page.until(lambda: messages is not TALK or (page.count(".t-keyword") and page.count("math")), "colours and formulas are shown")
    page.run("await document.fonts.ready")
    page.js("byId('scroller').scrollTop = 0; document.activeElement.blur()")


def for_docs(page: Page, pictures: Path) -> str:
    pictures.mkdir(parents=True, exist_ok=True)
    page.run(
        """const { store } = await page("store.js");
        for (const [i, [title, days, pinned]] of args[0].entries()) {
          const at = Date.now() - 86400000 * days - 60000 * i, id = `picture-${i}`;
          await store.putAll({ id, title, pinned, created: at, updated: at, leaf: `${id}-m`, settings: {} },
            [{ id: `${id}-m`, conversation: id, parent: "", role: "user", content: title, at, rev: "r" }]);
        }""",
        LISTED,
    )
    shape(page, DESKTOP, "light")
    show(page, TALK)
    save(page, pictures, "page")
    page.click("#open-settings")
    page.until(lambda: page.count("#other-parameters input"), "all parameters are known")
    save(page, pictures, "page-settings")
    page.click("#close-settings")
    page.click("#open-panel")
    page.until(lambda: "tokens/s" in page.text("#state-facts"), "the state is shown")
    save(page, pictures, "page-server")
    page.click("#close-panel")
    shape(page, DESKTOP, "dark")
    show(page, TALK)
    page.js("all('.thinking').forEach(node => { node.open = true; })")
    save(page, pictures, "page-dark")
    shape(page, DESKTOP, "light")
    seed(page, TOOL_TALK)
    page.until(lambda: page.count(".results textarea"), "the fields of results are shown")
    drop(page, [("forecast.csv", "text/csv", b"hour,rain\n" + b"12,0.4\n" * 300), ("notes.md", "text/markdown", "Umbrella is broken.\n".encode())])
    page.until(lambda: page.text("#files small").count("tokens") == 2, "the files have token counts")
    save(page, pictures, "page-tools-and-files")
    seed(page, [{"role": "user", "content": "Continue: does the bird dive?"}, {"role": "assistant", "content": "".join(token for token, *_ in TOKENS), "tokens": TOKENS, "end": "stop", "stats": STATS}])  # fmt: skip
    page.menu(".message:last-child .more", "Show probabilities")
    page.js("all('.probabilities p > span')[3].dispatchEvent(new MouseEvent('mouseover', { bubbles: true }))")
    save(page, pictures, "page-probabilities")
    seed(page, TALK)
    page.run(
        """const { app } = await page("app.js");
        const { enqueue } = await page("queue.js");
        [app.chat.run, app.chat.running] = [new AbortController(), app.chat.last]; // as if the answer still grew
        app.emit("chat", { end: true });
        app.emit("state");
        for (const content of args[0]) enqueue({ content, attachments: [] });
        document.activeElement.blur();""",
        WAITING,
    )
    save(page, pictures, "page-queue")
    page.open()
    shape(page, PHONE, "light")
    show(page, TALK)
    save(page, pictures, "page-phone")
    return ", ".join(f"{file.name} ({file.stat().st_size // 1000} kB)" for file in sorted(pictures.glob("page*.png")))
