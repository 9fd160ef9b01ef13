#!/usr/bin/env python3
"""Tests the chat page in a real browser: normal use, and answers with hostile content.

    scripts/browser_test.py --url http://127.0.0.1:8080                      check the page of a running `tern serve`
    scripts/browser_test.py --url http://127.0.0.1:8080 --screenshots DIR    and leave pictures of it in DIR
    scripts/browser_test.py --url http://127.0.0.1:8080 --api-key KEY        for a server that wants a key
    scripts/browser_test.py --url http://127.0.0.1:8080 --no-template        for one whose model only continues texts
    scripts/browser_test.py --url http://127.0.0.1:8080 --several            for one with several models, none loaded

Needs `chromium` and `chromedriver` in PATH (Debian: chromium, chromium-driver) and the Python package
selenium. Any chat model works if its answers have a few dozen tokens. Every wait has a timeout; all checks
take less than two minutes.

Exit status: 0 if every check passed, 1 with the reason otherwise.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlsplit

try:
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.remote.webelement import WebElement
except ImportError:
    sys.exit("error: the Python package selenium is missing: pip install selenium")

WHOLE_TEST_S = 110
ONE_WAIT_S = 15
SHORT_ANSWER = "48"  # max_tokens of the answers that are waited for
PHONE = (375, 700)
SLOW_NETWORK = 8_000  # bytes/s: a small model answers within a frame, and then nothing is seen to grow

# The elements and attributes an answer may contain: everything else in the conversation is an injection.
ELEMENTS = set(
    "a article blockquote br button code details div em figcaption figure h3 h4 h5 h6 hr i li ol p pre s span strong "
    "summary table tbody td th thead tr ul".split()
)
ATTRIBUTES = set("aria-label aria-level class hidden href open rel role start style target type".split())

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


class Failed(Exception):
    """A failed check; the message has what was expected and what was found."""


def want(holds: object, words: str) -> None:
    if not holds:
        raise Failed(words)


class Page:
    """The page as displayed to a user."""

    def __init__(self, url: str, api_key: str | None, screenshots: Path | None) -> None:
        parts = urlsplit(url)
        want(parts.scheme in ("http", "https") and parts.netloc, f"--url {url}: want http://HOST:PORT")
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.headers = {}
        self.address = f"{self.origin}/"
        if api_key is not None:
            self.headers["Authorization"] = "Basic " + base64.b64encode(f"tern:{api_key}".encode()).decode()
            self.address = f"{parts.scheme}://tern:{quote(api_key, safe='')}@{parts.netloc}/"
        self.screenshots = screenshots
        self.deadline = time.monotonic() + WHOLE_TEST_S
        self.driver = start_browser()
        self.driver.set_page_load_timeout(ONE_WAIT_S)
        self.driver.set_script_timeout(ONE_WAIT_S)

    def fetch(self, path: str) -> tuple[str, str]:
        """A route's body and Content-Security-Policy, without the browser."""
        request = urllib.request.Request(self.origin + path, headers=self.headers)
        try:
            with urllib.request.urlopen(request, timeout=ONE_WAIT_S) as answer:
                return answer.read().decode(), answer.headers.get("content-security-policy", "")
        except (urllib.error.URLError, OSError) as error:
            raise Failed(f"GET {self.origin}{path}: {error}") from error

    def open(self) -> None:
        self.driver.get(self.address)

    def js(self, code: str, *arguments: object) -> object:
        return self.driver.execute_script(code, *arguments)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def until(self, holds: Callable[[], object], words: str) -> None:
        end = min(time.monotonic() + ONE_WAIT_S, self.deadline)
        while not holds():
            want(time.monotonic() < end, f"{words}: not within {ONE_WAIT_S} s ({WHOLE_TEST_S} s for the whole test)")
            time.sleep(0.02)

    def running(self) -> bool:
        return bool(self.js("return document.body.classList.contains('running')"))

    def settled(self) -> None:
        """Waits for the end of the answer and for the frame that draws it."""
        self.until(lambda: not self.running(), "the answer ends")
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

    def send(self, text: str) -> None:
        self.find("#input").send_keys(text + Keys.ENTER)

    def texts(self) -> list[str]:
        """The text of the messages, without buttons and statistics."""
        selector = ".message .said, .message > .markdown:not(.calls)"
        return self.js("return [...document.querySelectorAll(arguments[0])].map(node => node.textContent)", selector)

    def stats(self) -> str:
        return self.find(".message:last-child .stats").text

    def set_parameter(self, name: str, value: str) -> None:
        """Fills in one field of the settings panel."""
        self.find("#open-settings").click()
        field = self.find(f"#{name}")
        field.clear()
        field.send_keys(value)
        self.find("#close-settings").click()

    def seed(self, messages: list[dict[str, object]]) -> None:
        """Opens the page with this conversation in the tab."""
        chat = json.dumps({"at": 0, "version": "seed", "messages": messages})
        self.js("localStorage.setItem('tern.chat.seed', arguments[0]); sessionStorage.setItem('tern.tab', 'seed')", chat)
        self.open()

    def new_tab(self) -> str:
        """Opens the page in a new tab and returns it."""
        self.driver.switch_to.new_window("tab")
        self.open()
        return self.driver.current_window_handle

    def to_tab(self, tab: str) -> None:
        self.driver.switch_to.window(tab)

    def earlier(self) -> list[str]:
        """The titles of the listed chats."""
        return self.js("return [...document.querySelectorAll('.earlier')].map(node => node.firstChild.textContent)")

    def screen(self, size: tuple[int, int] | None, scheme: str = "light") -> None:
        """The size of the screen (None: the window's own) and the system's colour scheme."""
        if size is None:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        else:
            shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 2, "mobile": True}
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def network(self, offline: bool = False, bytes_per_s: int = -1) -> None:
        shape = {"offline": offline, "latency": 0, "downloadThroughput": bytes_per_s, "uploadThroughput": -1}
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", shape)

    def picture(self, name: str) -> None:
        if self.screenshots:
            want(self.driver.save_screenshot(str(self.screenshots / f"{name}.png")), f"{name}.png could not be written")


def start_browser() -> webdriver.Chrome:
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    want(browser, "chromium is not in PATH (Debian: apt-get install chromium)")
    want(driver, "chromedriver is not in PATH (Debian: apt-get install chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (
        "--headless=new",
        "--no-sandbox",  # Chromium refuses to run as root with one
        "--disable-dev-shm-usage",  # containers have a small /dev/shm
        "--disable-background-networking",
        "--no-first-run",
        "--window-size=1000,900",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


def opens(page: Page) -> str:
    body, policy = page.fetch("/")
    want("default-src 'none'" in policy, f"GET /: Content-Security-Policy is {policy!r}, want default-src 'none' in it")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        want(word not in body, f"the page uses {word}: text of a model must never be parsed")
    model = json.loads(page.fetch("/v1/models")[0])["data"][0]["id"]
    page.open()
    page.until(lambda: page.find("#model").text == model, f"the model's name {model} is shown")
    want(page.find("#empty").is_displayed(), "a page without a conversation explains nothing")
    want(not page.find("#send").is_enabled(), "an empty message can be sent")
    want(page.js("return document.activeElement.id") == "input", "the input has no focus on a page that was opened")
    page.picture("empty")
    return f"model {model}"


def streams(page: Page) -> str:
    page.set_parameter("temperature", "0")  # no luck in what a small model says
    page.set_parameter("max_tokens", SHORT_ANSWER)
    page.js(
        """window.lengths = [];
        new MutationObserver(() => {
          const now = document.querySelector(".assistant:last-child > .markdown")?.textContent.length ?? 0;
          if (document.body.classList.contains("running") && now !== lengths.at(-1)) lengths.push(now);
        }).observe(document.getElementById("conversation"), { childList: true, characterData: true, subtree: true });"""
    )
    page.find("#input").send_keys("Tell me a story", Keys.SHIFT, Keys.ENTER, Keys.NULL, "about the sea.")
    want(page.find("#input").get_attribute("value") == "Tell me a story\nabout the sea.", "Shift+Enter is no new line")
    page.network(bytes_per_s=SLOW_NETWORK)
    page.find("#input").send_keys(Keys.ENTER)
    page.settled()
    question, answer = page.texts()
    want(question == "Tell me a story\nabout the sea.", f"the message sent is shown as {question!r}")
    want(answer.strip(), f"no answer came: {page.find('.message:last-child').text!r}")
    lengths = page.js("return lengths")
    want(len([n for n in lengths if n]) >= 3, f"the text did not grow while it streamed: its lengths were {lengths}")
    stats = page.stats()
    want("tokens/s" in stats and "first after" in stats and "prompt" in stats, f"the figures are {stats!r}")
    want(page.find("#input").get_attribute("value") == "", "the sent message is still in the input")
    return f"{len(lengths)} sizes seen; {stats}"


def stops(page: Page) -> str:
    page.set_parameter("max_tokens", "")
    for prompt in ("Count from one to one thousand.", "Write a very long story.", "List all animals you know."):
        page.js(
            """window.clicked = "";
            const watcher = new MutationObserver(() => {
              const text = document.querySelector(".assistant:last-child > .markdown")?.textContent ?? "";
              if (!document.body.classList.contains("running") || text.length < 12 || clicked) return;
              const { left, top, width, height } = document.getElementById("send").getBoundingClientRect();
              const target = document.elementFromPoint(left + width / 2, top + height / 2).closest("button");
              window.clicked = target?.getAttribute("aria-label") || "nothing";
              target?.click();
              watcher.disconnect();
            });
            const changes = { childList: true, characterData: true, subtree: true };
            watcher.observe(document.getElementById("conversation"), changes);"""
        )  # in the page, at once: a model of a test may answer faster than a driver clicks
        page.send(prompt)
        page.settled()
        clicked, partial, stats = page.js("return clicked"), page.texts()[-1], page.stats()
        if clicked and "stopped" in stats:
            break
    else:
        raise Failed(f"three answers ended before they could be stopped; the last: {partial!r}, {stats}")
    want(clicked == "Stop", f"the button in the composer was {clicked!r}, want 'Stop'")
    want(partial.strip(), "the text before the stop is gone")
    time.sleep(0.3)
    want(page.texts()[-1] == partial, "the text grew after the stop")
    page.find("#input").send_keys("x")
    send = page.find("#send")
    want(send.is_enabled() and send.get_attribute("aria-label") == "Send", "after a stop the page cannot send")
    page.find("#input").send_keys(Keys.BACKSPACE)
    return f"stopped after {len(partial)} characters"


def regenerates(page: Page) -> str:
    page.network()
    page.set_parameter("max_tokens", SHORT_ANSWER)
    before = page.texts()
    page.find(".message:last-child .regenerate").click()
    want(page.running() or page.texts() != before, "the button does nothing")
    page.settled()
    after = page.texts()
    want(len(after) == len(before), f"{len(before)} messages became {len(after)}")
    want(after[:-1] == before[:-1], "more than the last answer changed")
    want(after[-1].strip() and "stopped" not in page.stats(), f"the answer is {after[-1]!r}, {page.stats()}")
    return page.stats()


def edits(page: Page) -> str:
    before = page.texts()
    page.find(".message:nth-last-child(2) .edit").click()
    want(page.find("#input").get_attribute("value") == before[-2], "the message is not in the input")
    page.send(" Briefly.")
    page.settled()
    after = page.texts()
    want(len(after) == len(before), f"{len(before)} messages became {len(after)}")
    want(after[-2] == before[-2] + " Briefly.", f"the edited message is {after[-2]!r}")
    return f"{len(after)} messages as before"


def survives_reload(page: Page) -> str:
    before = page.texts()
    page.driver.refresh()
    page.until(lambda: page.texts() == before, "the conversation is there after a reload")
    want(page.find("#max_tokens").get_attribute("value") == SHORT_ANSWER, "the settings are gone after a reload")
    page.find("#new-chat").click()
    want(page.texts() == [] and page.find("#empty").is_displayed(), "New chat leaves messages")
    page.find(".earlier").click()
    want(page.texts() == before, "the last chat does not come back")
    return f"{len(before)} messages"


def keeps_drafts(page: Page) -> str:
    """What is written and not sent belongs to its chat, and survives a reload."""
    written = lambda: page.find("#input").get_attribute("value")
    open_earlier = lambda: page.js("document.querySelector('.earlier').click()")  # the list is drawn again at any time
    page.find("#input").send_keys("Not sent", Keys.SHIFT, Keys.ENTER, Keys.NULL, "yet")
    page.driver.refresh()
    page.until(lambda: written() == "Not sent\nyet", "the draft is there after a reload")
    want(page.find("#send").is_enabled(), "a draft cannot be sent after a reload")
    page.find(".message:nth-last-child(2) .edit").click()
    page.find("#input").send_keys(" edited")
    page.find("#cancel-edit").click()
    want(written() == "Not sent\nyet", f"after an edit the draft is {written()!r}")
    page.find("#new-chat").click()
    want(written() == "", f"the draft of another chat is in a new one: {written()!r}")
    page.find("#input").send_keys("First words")
    page.driver.refresh()
    page.until(lambda: written() == "First words", "the draft of a chat without messages is there after a reload")
    open_earlier()
    want(written() == "Not sent\nyet", f"back in its chat the draft is {written()!r}")
    page.find("#input").clear()
    page.find("#input").send_keys("Sent", Keys.ENTER)
    page.settled()
    page.driver.refresh()
    want(written() == "", f"a message that was sent is still a draft: {written()!r}")
    page.find("#new-chat").click()
    page.find("#input").clear()
    page.find("#input").send_keys("x", Keys.BACKSPACE)
    want(page.js("return memory.names(DRAFT)") == [], "an empty draft is stored")
    open_earlier()
    return "two chats"


def aligns_and_orders(page: Page) -> str:
    """Fields of a row are at one height, and headings have no gaps between their levels."""
    page.find("#open-settings").click()
    fields = page.js(
        """return [...document.querySelectorAll("#parameters input")].map(field => {
          const { left, right, top, bottom } = field.getBoundingClientRect();
          return { row: Math.round(field.parentNode.getBoundingClientRect().top), left, right, top, bottom }; });"""
    )
    rows = {}
    for field in fields:
        rows.setdefault(field["row"], []).append(field)
    for row in rows.values():
        want(len({(field["top"], field["bottom"]) for field in row}) == 1, f"the fields of a row are at {row}")
    want(len(rows) < len(fields) and len({field["left"] for field in fields}) == 2, f"the fields are at {fields}")
    page.picture("settings")
    levels = """return [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter(node => node.checkVisibility())
        .map(node => Number(node.getAttribute("aria-level") ?? node.localName[1]));"""

    def check(where: str) -> int:
        found = page.js(levels)
        gaps = [pair for pair in zip(found, found[1:]) if pair[1] > pair[0] + 1]
        want(found[:2] == [1, 2] and not gaps, f"{where}: the levels of the headings are {found}")
        return len(found)

    check("settings")
    page.find("#close-settings").click()
    page.find("#new-chat").click()
    count = check("an empty page")
    text = "### Third\n\n# First\n\n##### Fifth\n\n> ###### Sixth\n\n## Second"
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": text, "end": "stop"}]
    page.seed(talk * 2)
    page.until(lambda: len(page.texts()) == 4, "the conversation is shown")
    return f"{len(fields)} fields, {count + check('a conversation')} headings"


def keeps_every_chat(page: Page) -> str:
    for text in ("First of three", "Second of three", "Third of three"):
        page.find("#new-chat").click()
        page.send(text)
        page.settled()
    page.find("#new-chat").click()
    listed = page.earlier()
    want(listed[:3] == ["Third of three", "Second of three", "First of three"], f"the chats listed are {listed}")
    page.picture("earlier")
    page.find("#chats li:nth-child(3) .earlier").click()
    want(page.texts()[0] == "First of three", "the chat before the last two is gone")
    # a chat that is left during an answer is stored up to that point
    page.set_parameter("max_tokens", "")
    page.network(bytes_per_s=SLOW_NETWORK)
    page.find("#new-chat").click()
    page.send("Write a very long story.")
    page.until(lambda: len(page.texts()) == 2 and len(page.texts()[-1]) > 12, "the answer begins")
    page.find("#new-chat").click()
    page.network()
    page.until(lambda: page.earlier()[:1] == ["Write a very long story."], "the chat that was left is listed")
    page.find(".earlier").click()
    want(len(page.texts()) == 2 and page.texts()[-1].strip(), f"its answer is gone: {page.texts()}")
    page.set_parameter("max_tokens", SHORT_ANSWER)
    page.find("#new-chat").click()
    page.find(".forget").click()
    page.find(".forget").click()
    want("Write a very long story." not in page.earlier(), "a deleted chat is still listed")
    page.find("#chats li:nth-child(1) .earlier").click()
    return f"{len(listed)} chats listed"


def tabs_do_not_lose_chats(page: Page) -> str:
    first = page.driver.current_window_handle
    before = page.texts()
    second = page.new_tab()
    want(page.texts() == [], "a new tab shows another tab's chat")
    page.send("From the second tab")
    page.settled()
    page.to_tab(first)
    want(page.texts() == before, "a tab shows what was written in another")
    page.send("From the first tab")
    page.settled()
    for tab, text in ((first, "From the first tab"), (second, "From the second tab")):
        page.to_tab(tab)
        page.driver.refresh()
        page.until(lambda: text in page.texts(), f"{text!r} is there after a reload of its tab")
    # the same chat in both tabs: each shows the other's turns, and simultaneous turns are both kept
    page.to_tab(first)
    page.find("#new-chat").click()
    page.until(lambda: "From the second tab" in page.earlier(), "the other tab's chat is listed")
    page.js("[...document.querySelectorAll('.earlier')].find(n => n.textContent.startsWith('From the second')).click()")
    page.send("A turn in the other tab")
    page.settled()
    shared = page.texts()
    page.to_tab(second)
    page.until(lambda: page.texts() == shared, "a chat that went on in another tab is shown as it is now")
    page.js("localStorage.setItem('tern.chat.' + state.chat.id, JSON.stringify({ at: 1, version: 'other', messages: "
            "[{ role: 'user', content: 'Written behind this tab' }] }))")
    page.send("A turn in this tab")
    page.settled()
    want(page.texts()[:-2] == shared, "the turns before the last are gone")
    page.find("#new-chat").click()
    page.until(lambda: "Written behind this tab" in page.earlier(), "the version of the other tab is gone")
    want(page.earlier().count("From the second tab") == 1, f"this tab's version is gone: {page.earlier()}")
    page.driver.close()
    page.to_tab(first)
    page.find("#new-chat").click()
    return f"{len(page.earlier())} chats in two tabs"


def adopts_the_chats_of_earlier_pages(page: Page) -> str:
    talk = lambda text: [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes.", "end": "stop"}]
    old = json.dumps({"messages": talk("Kept before"), "previous": talk("Put away before")})
    page.js("localStorage.setItem('tern.chat', arguments[0]); sessionStorage.clear()", old)
    page.open()
    want(page.texts() == ["Put away before", "Yes."] or page.texts() == ["Kept before", "Yes."], f"{page.texts()}")
    page.find("#new-chat").click()
    listed = page.earlier()
    want({"Kept before", "Put away before"} <= set(listed), f"the chats listed are {listed}")
    want(page.js("return localStorage.getItem('tern.chat')") is None, "the old key is still there")
    return "both"


def says_errors(page: Page) -> str:
    page.find("#new-chat").click()
    page.network(offline=True)
    page.send("Are you there?")
    retry = "return document.querySelector('.failure .retry') !== null"
    page.until(lambda: page.js(retry), "a lost server is reported with a retry")
    words = page.find(".failure").text
    want("cannot be reached" in words, f"a lost server is reported as {words!r}")
    page.picture("error")
    page.network()
    page.find(".failure .retry").click()
    page.settled()
    want(page.texts()[-1].strip(), f"the retry gave no answer: {page.find('.message:last-child').text!r}")
    return words.splitlines()[0]


def follows_the_end(page: Page) -> str:
    tall = "Top" + "\n" * 60 + "bottom"  # few tokens: the model has to read it
    page.seed([{"role": role, "content": tall, "end": "stop"} for role in ("user", "assistant") * 2])
    left = "const s = document.getElementById('scroller'); return s.scrollHeight - s.clientHeight - s.scrollTop"
    page.until(lambda: page.js(left) < 5, "a long conversation opens at its end")
    page.send("Say something short.")
    page.js("document.getElementById('scroller').scrollTop = 0")
    page.settled()
    want(page.js(left) > 500, "the page jumped to the end although the reader had scrolled up")
    page.find("#latest").click()
    page.until(lambda: page.js(left) < 5, "the button leads to the end")
    page.until(lambda: not page.find("#latest").is_displayed(), "the button to the end goes away there")
    return "stays where the reader is"


def renders_markdown(page: Page) -> str:
    page.seed(SPECIMEN)
    answer = ".assistant > .markdown:not(.calls)"
    for selector, count in EXPECTED.items():
        found = page.js("return document.querySelectorAll(arguments[0]).length", f"{answer} {selector}")
        want(found == count, f"Markdown: {found} of {selector}, want {count}")
    code = page.find(f"{answer} figure.code pre").text
    want(code == 'fn main() {\n    println!("```");\n}', f"a code block is {code!r}")
    want(page.find(f"{answer} figcaption span").text == "rust", "a code block has no language")
    want(page.find(f"{answer} figcaption .copy").is_displayed(), "a code block has no copy button")
    want(page.find(".said").text == "Show **all** of it", "what the user wrote is changed")
    want("weather" in page.find(".calls figcaption").text and "Bergen" in page.find(".calls code").text, "no tool call")
    want(not page.find(".thinking .markdown").is_displayed(), "the thoughts are open beside a finished answer")
    page.find(".thinking summary").click()
    want(page.find(".thinking strong").is_displayed(), "the thoughts do not open")
    page.find(".thinking summary").click()
    # text rendered after every character must equal the same text rendered once
    differs = page.js(
        """const [text] = arguments, whole = new MarkdownView(), grown = new MarkdownView();
        whole.render(text, false);
        for (let end = 0; end <= text.length; end++) grown.render(text.slice(0, end), true);
        grown.render(text, false);
        whole.node.normalize(); grown.node.normalize();
        return whole.node.isEqualNode(grown.node) ? "" : grown.node.textContent;""",
        MARKDOWN,
    )
    want(not differs, f"Markdown drawn while it grows ends differently: {differs!r}")
    slowest = 0.0
    draw = "const t = performance.now(); new MarkdownView().render(arguments[0], true); return performance.now() - t"
    for piece, times in SLOW:
        took = page.js(draw, piece * times)
        want(
            took < 2000,
            f"{piece[:20]!r}... ({len(piece) * times} characters) took {took:.0f} ms to draw, want below 2000",
        )
        slowest = max(slowest, took)
    return f"{len(EXPECTED)} shapes, grown text equals whole text, slowest hostile text {slowest:.0f} ms"


def resists_injection(page: Page) -> str:
    messages: list[dict[str, object]] = []
    for text in [*HOSTILE, "\n\n".join(HOSTILE)]:
        answer = dict.fromkeys(("content", "reasoning", "error", "end"), text)
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "calls": [{"name": text, "arguments": text}], **answer})
    page.seed(messages)
    page.until(lambda: len(page.texts()) == len(messages), "the hostile conversation is shown")
    page.js("document.querySelectorAll('.thinking').forEach(node => { node.open = true; })")
    page.js(
        """for (const text of arguments[0]) {
          const view = new MarkdownView();
          document.getElementById("conversation").append(view.node);
          for (let end = 0; end <= text.length; end++) view.render(text.slice(0, end), true);
        }""",
        HOSTILE,
    )
    time.sleep(0.5)  # handlers of broken images and frames would run now
    want(page.js("return window.attacked") is None, "a script of the answer ran")
    nodes = page.js(
        """return [...document.querySelectorAll("#conversation *")].map(node => [node.localName,
        [...node.attributes].map(({ name, value }) => [name, value])]);"""
    )
    links = 0
    for tag, attributes in nodes:
        want(tag in ELEMENTS, f"the answer made the element <{tag}>")
        for name, value in attributes:
            want(name in ATTRIBUTES, f"the answer made the attribute {name}={value!r} of <{tag}>")
            want(name != "style" or value in STYLES, f"the answer made style={value!r}")
            want(name != "href" or value.startswith(("http://", "https://")), f"the answer made a link to {value!r}")
        if tag == "a":
            links += 1
            want("noopener" in dict(attributes).get("rel", ""), f"a link without rel=noopener: {attributes}")
    want(links, "no link at all: the attacks on links tested nothing")
    want(HOSTILE[1] in page.texts()[3], "a hostile text is not shown as text")
    return f"{len(nodes)} elements, {links} links, no script"


def fits_a_phone(page: Page) -> str:
    wide = "A `" + "long_" * 60 + "` " + "unbroken" * 40 + " https://example.org/" + "path/" * 50
    row = "| unbroken " * 20 + "|\n"
    shapes = [wide, f"```\n{wide}\n```", row + "|-" * 20 + "|\n" + row, f"- {wide}", f"> ## {wide}", MARKDOWN]
    talk = [{"role": "user", "content": wide}, {"role": "assistant", "content": "\n\n".join(shapes), "end": "stop"}]
    page.screen(PHONE)
    page.seed(talk)
    page.until(lambda: len(page.texts()) == 2, "the conversation is shown")
    for what in ("documentElement", "body", "getElementById('scroller')"):
        over = page.js(f"return document.{what}.scrollWidth - document.{what}.clientWidth")
        want(over <= 0, f"at {PHONE[0]} pixels {what} is {over} pixels too wide")
    edges = page.js(
        """return [...document.querySelectorAll("#conversation :is(p, figure, pre, .table, .said, h4, button)")]
          .filter(node => node.getBoundingClientRect().right > innerWidth).map(node => node.outerHTML.slice(0, 80));"""
    )
    want(not edges, f"at {PHONE[0]} pixels these reach over the edge: {edges}")
    shape = page.js(
        """const { top, bottom, left, right } = document.getElementById("input").getBoundingClientRect();
        return { inside: top >= 0 && left >= 0 && bottom <= innerHeight && right <= innerWidth,
                 font: parseFloat(getComputedStyle(document.getElementById("input")).fontSize) };"""
    )
    want(shape["inside"], "the input is not in sight on a phone")
    want(shape["font"] >= 16, f"the input's font has {shape['font']} pixels: phones zoom in below 16")
    page.picture("phone")
    page.find("#open-settings").click()
    over = page.js("const d = document.getElementById('settings'); return d.scrollWidth - d.clientWidth")
    want(over <= 0, f"at {PHONE[0]} pixels the settings are {over} pixels too wide")
    page.picture("phone-settings")
    page.find("#close-settings").click()
    return f"{PHONE[0]}x{PHONE[1]} without a sideways scroll"


def has_two_themes(page: Page) -> str:
    contrast = """
      const light = color => { const [r, g, b] = color.match(/[\\d.]+/g).map(n => n / 255)
        .map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
      const ground = light(getComputedStyle(document.body).backgroundColor);
      const text = ["body", ".stats", "#model", ".markdown a", ".thinking"].map(selector => {
        const ink = light(getComputedStyle(document.querySelector(selector)).color);
        return (Math.max(ink, ground) + .05) / (Math.min(ink, ground) + .05); });
      return [ground, Math.min(...text)];"""
    worst = 21.0
    for scheme, other in (("light", "dark"), ("dark", "light")):
        page.screen(None, scheme)
        page.seed(SPECIMEN)
        for toggled in (False, True):
            if toggled:
                page.find("#theme").click()
            ground, least = page.js(contrast)
            dark = (other if toggled else scheme) == "dark"
            want((ground < 0.2) == dark, f"system {scheme}, toggled {toggled}: the page's luminance is {ground:.2f}")
            want(least >= 4.5, f"system {scheme}, toggled {toggled}: contrast {least:.1f}, want 4.5")
            worst = min(worst, least)
        page.driver.refresh()
        want((page.js(contrast)[0] < 0.2) == (other == "dark"), "the chosen theme is gone after a reload")
        page.find("#theme").click()
        page.js("document.querySelector('.thinking').open = true; document.getElementById('scroller').scrollTop = 0")
        page.picture(scheme)
    return f"least contrast {worst:.1f}"


def stays_at_home(page: Page) -> str:
    """Last: the browser's own logs of everything above."""
    asked = 0
    for entry in page.driver.get_log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] != "Network.requestWillBeSent":
            continue
        url = event["params"]["request"]["url"]
        asked += not url.startswith("data:")
        want(url.startswith((page.address, f"{page.origin}/", "data:")), f"the page asked for {url}")
    want(asked > 3, f"the browser logged {asked} requests: nothing was seen")
    for entry in page.driver.get_log("browser"):
        words = entry["message"]
        want(entry["source"] == "network" or entry["level"] != "SEVERE", f"the browser's console says: {words}")
        want("Content Security Policy" not in words, f"the page breaks its own policy: {words}")
    return f"{asked} requests, all to {page.origin}"


def continues_texts(page: Page) -> str:
    """A model without a chat template: the page explains that it completes text instead, and does so."""
    page.open()
    page.until(lambda: "continues each text" in page.find("#empty").text, "the page says that the model continues texts")
    want(page.find("#input").get_attribute("placeholder") == "Text to continue", "the input asks for a message")
    want(not page.find("#system").is_enabled(), "a system prompt can be written that nothing reads")
    page.picture("continues-empty")
    page.set_parameter("temperature", "0")
    for text in ("Once upon a time", "One day"):
        page.send(text)
        page.settled()
        want(page.texts()[-1].strip(), f"no continuation came: {page.find('.message:last-child').text!r}")
        want("tokens/s" in page.stats(), f"the figures are {page.stats()!r}")
    page.picture("continues")
    page.set_parameter("max_tokens", "4")
    page.find(".message:last-child .regenerate").click()
    page.settled()
    want("4 tokens" in page.stats(), f"Max tokens does nothing: {page.stats()!r}")
    page.js("state.continues = false")  # as if the server had been started again with this model
    page.find(".message:last-child .regenerate").click()
    page.settled()
    want(page.texts()[-1].strip() and page.js("return state.continues"), "the page does not notice the other model")
    return page.texts()[1][:40]


def picks_models(page: Page) -> str:
    """Several models: each is selected by name, loaded by its first message, and
    still selected after a reload."""
    listed = lambda: json.loads(page.fetch("/v1/models")[0])["data"]
    names = [model["id"] for model in listed()]
    want(len(names) > 1, f"want a server with several models, got {names}")
    page.open()
    page.until(lambda: page.find("#models").is_displayed(), "the picker is shown")
    want(not page.find("#model").is_displayed(), "a name is shown beside the picker")
    options = lambda: page.js("return [...byId('models').options].map(option => [option.value, option.textContent])")
    want([value for value, _ in options()] == names, f"the picker has {options()}, the server {names}")
    want(all("(unloaded)" in label for _, label in options()), f"nothing is loaded, but the picker shows {options()}")
    for name in (names[1], names[0]):
        page.js("const p = byId('models'); p.value = arguments[0]; p.dispatchEvent(new Event('change'))", name)
        want(page.js("return document.title").startswith(name), f"the title is not {name}'s")
        page.set_parameter("max_tokens", "8")
        page.send("One")
        page.settled()
        want(page.texts()[-1].strip(), f"{name} gave no answer: {page.find('.message:last-child').text!r}")
        loaded = [model["id"] for model in listed() if model["status"]["value"] == "loaded"]
        want(name in loaded, f"{name} was selected, but {loaded} are loaded")
        page.until(lambda: dict(options())[name] == name, f"the picker shows that {name} is loaded")
    page.picture("models")
    page.open()
    page.until(lambda: page.js("return byId('models').value") == names[0], "the selected model is remembered")
    return ", ".join(names)


CHECKS = [
    opens,
    streams,
    stops,
    regenerates,
    edits,
    survives_reload,
    keeps_drafts,
    keeps_every_chat,
    tabs_do_not_lose_chats,
    adopts_the_chats_of_earlier_pages,
    says_errors,
    follows_the_end,
    resists_injection,
    renders_markdown,
    aligns_and_orders,
    fits_a_phone,
    has_two_themes,
    stays_at_home,
]


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks the chat page of a running server in headless Chromium.")
    parser.add_argument("--url", required=True, help="the server, as http://127.0.0.1:8080")
    parser.add_argument("--api-key", help="the key the server was started with")
    parser.add_argument("--screenshots", type=Path, help="folder for pictures of the page")
    parser.add_argument("--no-template", action="store_true", help="the server's model has no chat template")
    parser.add_argument("--several", action="store_true", help="the server has several models, and none is loaded")
    arguments = parser.parse_args()
    if arguments.screenshots:
        arguments.screenshots.mkdir(parents=True, exist_ok=True)
    page, name, begin = None, "start", time.monotonic()
    try:
        page = Page(arguments.url, arguments.api_key, arguments.screenshots)
        checks = [continues_texts, stays_at_home] if arguments.no_template else CHECKS
        for check in [picks_models] if arguments.several else checks:
            name, start = check.__name__.replace("_", " "), time.monotonic()
            found = check(page)
            print(f"{name}: passed in {time.monotonic() - start:.1f} s ({found})", flush=True)
            want(time.monotonic() < page.deadline, f"the whole test took more than {WHOLE_TEST_S} s")
    except (Failed, WebDriverException) as error:
        words = error.msg if isinstance(error, WebDriverException) else error
        print(f"error: {name}: {words}", file=sys.stderr)
        if page:
            page.picture("failure")
        return 1
    finally:
        if page:
            page.driver.quit()
    print(f"the chat page: all checks passed in {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
