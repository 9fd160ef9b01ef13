"""How the page looks: screenshots compared with recorded ones, as grids of brightness.

A look is a picture of the page in cells of 20 by 20 pixels, each one of 36 levels, dark to light: small enough to read
in a diff, and blunt enough for a glyph to move by a pixel. Only cells that are not the ground of the page or of the list count. `scripts/browser_test.py --record-looks` writes `looks.txt`
again; read the diff. Recorded with Debian's chromium and its fonts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .conversations import talk
from .driver import Page, want
from .texts import SPECIMEN

FILE = Path(__file__).with_name("looks.txt")
CELL = 20
DESKTOP, PHONE = (1000, 700), (380, 700)
# Cells may differ by this many levels, and this share of those with something on them by more.
LEVELS, SHARE = 1, 0.05
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

SHRINK = """const image = new Image();
image.src = `data:image/png;base64,${args[0]}`;
await image.decode();
const canvas = document.createElement("canvas");
[canvas.width, canvas.height] = [image.width, image.height];
const context = canvas.getContext("2d", { willReadFrequently: true });
context.drawImage(image, 0, 0);
const rows = [];
for (let y = 0; y < image.height; y += args[1]) {
  const row = [];
  for (let x = 0; x < image.width; x += args[1]) {
    const { data } = context.getImageData(x, y, args[1], args[1]);
    let sum = 0;
    for (let i = 0; i < data.length; i += 4) sum += .2126 * data[i] + .7152 * data[i + 1] + .0722 * data[i + 2];
    row.push(Math.min(35, Math.floor(sum / (data.length / 4) / 7.1)));
  }
  rows.push(row);
}
return rows;"""

# What depends on the server, on other checks or on time.
STILL = """byId("model").textContent = "model";
byId("empty-model").textContent = "You are talking to a model.";
all("#settings input").forEach(node => { node.placeholder = ""; });
document.activeElement.blur();"""


def settings(page: Page) -> None:
    page.click("#open-settings")
    page.until(lambda: page.count("#other-parameters input"), "all parameters are known")


# Name, size of the screen, messages, and what is done before the picture.
LOOKS: list[tuple[str, tuple[int, int], list[dict[str, object]], Callable[[Page], None] | None]] = [
    ("empty", DESKTOP, [], None),
    ("conversation", DESKTOP, SPECIMEN, None),
    ("short", DESKTOP, talk("What is a tern?", "A **seabird**."), None),
    ("settings", DESKTOP, [], settings),
    ("phone", PHONE, SPECIMEN, None),
    ("phone-conversations", PHONE, talk("What is a tern?"), lambda page: page.click("#toggle-sidebar")),
]


def read() -> dict[str, list[str]]:
    """The recorded looks, by name."""
    looks: dict[str, list[str]] = {}
    for line in FILE.read_text().splitlines():
        if line.startswith("# "):
            rows = looks.setdefault(line[2:], [])
        elif line:
            rows.append(line)
    return looks


def prepared(page: Page, size: tuple[int, int], messages: list[dict[str, object]], prepare: Callable[[Page], None] | None) -> None:
    """Opens the page with these messages as the only conversation."""
    page.run("const { store } = await page('store.js'); for (const { id } of await store.conversations()) await store.remove(id);")
    shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
    if messages:
        page.seed(messages)
        page.until(lambda: messages is not SPECIMEN or (page.count(".t-keyword") and page.count("math")), "colours and formulas are shown")
        page.js("byId('scroller').scrollTop = 0")
    else:
        page.open()
    page.until(lambda: page.text("#model"), "the model is known")
    if prepare:
        prepare(page)
    page.run("await document.fonts.ready")


def take(page: Page, scheme: str) -> list[str]:
    features = [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    page.js(STILL)
    page.frames()
    picture = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    return ["".join(DIGITS[level] for level in row) for row in page.run(SHRINK, picture, CELL)]


def differing(now: list[str], recorded: list[str]) -> float:
    """The share of cells that differ by more than `LEVELS`, of those that are not the ground in one of both."""
    if [len(row) for row in now] != [len(row) for row in recorded]:
        return 1.0
    cells = [int(cell, 36) for row in recorded for cell in row]
    ground = [level for level in set(cells) if cells.count(level) > len(cells) / 8]
    pairs = [(a, b) for a, b in zip((int(cell, 36) for row in now for cell in row), cells) if a != b or a not in ground]
    return sum(abs(a - b) > LEVELS for a, b in pairs) / len(pairs)


def looks_as_recorded(page: Page, record: bool) -> str:
    recorded = {} if record else read()
    lines, worst = [], 0.0
    for name, size, messages, prepare in LOOKS:
        prepared(page, size, messages, prepare)
        for scheme in ("light", "dark"):
            look = take(page, scheme)
            title = f"{name}, {scheme}"
            lines += [f"# {title}", *look, ""]
            if record:
                continue
            share = differing(look, recorded.get(title, []))
            text = "\n".join(look)
            want(share <= SHARE, f"{title}: {100 * share:.1f} % of the cells differ from {FILE.name}, at most {100 * SHARE:.0f} % may; now it is\n{text}")
            worst = max(worst, share)
    if record:
        FILE.write_text("\n".join(lines))
    page.screen(None)
    return f"{len(LOOKS) * 2} looks recorded" if record else f"{len(LOOKS) * 2} looks, at most {100 * worst:.1f} % differ"
