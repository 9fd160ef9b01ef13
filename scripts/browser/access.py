"""Access: keyboard, screen readers, contrast, phones, themes, languages, right-to-left texts."""

from __future__ import annotations

import re
from pathlib import Path

from selenium.webdriver.common.keys import Keys

from .conversations import talk
from .driver import Page, want
from .proxy import UI
from .texts import MARKDOWN, SPECIMEN

PHONE = (375, 700)


def uses_keys(page: Page) -> str:
    page.seed(talk("First", "One") + talk("Second", "Two"))
    body = page.find("body")
    page.js("document.activeElement.blur()")
    body.send_keys("?")
    page.until(lambda: page.find("#shortcuts").is_displayed(), "? shows the shortcuts")
    count = page.count("#shortcut-list kbd")
    want(count > 15, f"{count} keys are listed")
    page.picture("shortcuts")
    body.send_keys(Keys.ESCAPE)
    page.until(lambda: not page.find("#shortcuts").is_displayed(), "Escape closes the shortcuts")
    page.js("document.activeElement.blur()")
    body.send_keys("/")
    want(page.js("return document.activeElement.id") == "input", "/ does not lead to the message field")
    page.find("#input").send_keys("?e")
    want(page.find("#input").get_attribute("value") == "?e", "a shortcut works while something is written")
    page.find("#input").clear()
    page.find("#input").send_keys(Keys.CONTROL, "k")
    page.until(lambda: page.js("return document.activeElement.id") == "search", "Ctrl+K leads to the search")
    page.find("#search").send_keys(Keys.CONTROL, ",")
    page.until(lambda: page.find("#settings").is_displayed(), "Ctrl+, opens the settings")
    page.find("#settings").send_keys(Keys.ESCAPE)
    page.until(lambda: not page.find("#settings").is_displayed(), "Escape closes the settings")
    page.js("document.activeElement.blur()")
    body.send_keys("e")
    page.until(lambda: page.count(".editor") and page.find(".editor").get_attribute("value") == "Second", "e edits the last message")
    page.find(".editor").send_keys(Keys.ESCAPE)
    page.until(lambda: not page.count(".editor"), "Escape ends the edit")
    page.find("#input").send_keys(Keys.CONTROL, "b")
    page.until(lambda: not page.find("#sidebar").is_displayed(), "Ctrl+B hides the conversations")
    page.find("#input").send_keys(Keys.CONTROL, "b")
    # a menu by keys alone
    page.js("document.querySelector('.message:last-child .more').focus()")
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    page.until(lambda: page.count("#menu"), "Enter opens a menu")
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    want(page.js("return document.activeElement.getAttribute('role')") == "menuitem", "the arrow keys do not move in a menu")
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    page.until(lambda: not page.count("#menu"), "Escape closes a menu")
    want("more" in page.js("return document.activeElement.className"), "after a menu the focus is lost")
    page.find("#input").send_keys(Keys.CONTROL, Keys.SHIFT, "o")
    page.until(lambda: page.texts() == [], "Ctrl+Shift+O begins a conversation")
    return f"{count} keys"


def reads_answers_aloud(page: Page) -> str:
    """Screen readers read finished paragraphs aloud, politely, and not every token."""
    page.new_chat()
    heard = page.run(
        """const { app } = await page("app.js");
        const heard = [];
        new MutationObserver(() => heard.push(byId("announcer").textContent)).observe(byId("announcer"), { childList: true, characterData: true, subtree: true });
        const question = app.chat.add({ role: "user", content: "Q" }), message = app.chat.add({ role: "assistant" });
        app.chat.running = message;
        app.emit("chat", { end: true });
        for (const piece of ["First ", "paragraph.", "\\n\\nSec", "ond.", "\\n\\n", "Third"]) {
          app.emit("message", message);
          message.content += piece;
          app.emit("message", message);
          await new Promise(resolve => setTimeout(resolve, 20));
        }
        app.chat.running = null;
        message.end = "stop";
        app.emit("message", message);
        app.emit("state");
        await new Promise(resolve => setTimeout(resolve, 600));
        return heard;"""
    )
    want([text.strip() for text in heard] == ["First paragraph.", "Second.", "Third"], f"a screen reader hears {heard}")
    want(page.find("#announcer").get_attribute("role") == "status", "announcements are not polite")
    return f"{len(heard)} announcements"


def has_no_violations(page: Page, axe: Path) -> str:
    """axe-core finds nothing, in every state of the page; in the dark theme only its colours differ."""
    source = axe.read_text()
    checked = 0

    def check(state: str) -> None:
        nonlocal checked
        if not page.js("return Boolean(window.axe)"):
            page.js(source)
        rules = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}} if state.startswith("dark") else {}
        # the rule about `region` reports texts of toasts, which are announced by their role
        found = page.run("const { violations } = await axe.run(document, { resultTypes: ['violations'], ...args[0] }); return violations.map(one => `${one.id}: ${one.nodes.map(node => node.html).slice(0, 3).join(' ')}`)", rules)
        want(not found, f"{state}: axe finds {found}")
        checked += 1

    for scheme in ("light", "dark"):
        page.screen(None, scheme)
        page.open()
        check(f"{scheme}, empty")
        page.seed([*SPECIMEN, *talk("More", MARKDOWN), {"role": "user", "content": "Q", "attachments": [{"name": "a.txt", "kind": "text", "text": "a", "bytes": 1}]},
                   {"role": "assistant", "error": "It failed.", "end": "error"}])  # fmt: skip
        page.until(lambda: page.count(".t-keyword") and page.count("math"), "colours and formulas are shown")
        page.js("all('.thinking').forEach(node => { node.open = true; })")
        check(f"{scheme}, conversation")
        page.run("const { enqueue } = await page('queue.js'); enqueue({ content: 'This waits', attachments: [] });")
        page.until(lambda: page.count("#queued-list li"), "a message waits")
        check(f"{scheme}, queue")
        page.click("#queued-list .remove")
        page.click(".message:nth-child(1) .edit")
        check(f"{scheme}, editing")
        page.find(".editor").send_keys(Keys.ESCAPE)
        page.click(".user .chip")
        check(f"{scheme}, file")
        page.click(".file-view .icon")
        page.click(".message:nth-child(2) .more")
        check(f"{scheme}, menu")
        page.js("byId('menu').hidePopover()")
        page.click("#open-settings")
        page.js("all('#settings details').forEach(node => { node.open = true; })")
        page.until(lambda: page.count("#other-parameters input"), "all parameters are shown")
        check(f"{scheme}, settings")
        page.click("#close-settings")
        page.click("#open-panel")
        page.until(lambda: page.count("#state-facts dd"), "the state is shown")
        check(f"{scheme}, server")
        page.click("#close-panel")
        page.click("#open-shortcuts")
        check(f"{scheme}, shortcuts")
        page.click("#close-shortcuts")
        page.menu(".chat:has([aria-current]) .more", "Delete")
        page.until(lambda: page.count(".toast"), "the deletion can be undone")
        check(f"{scheme}, toast")
        page.screen(PHONE, scheme)
        page.open()
        page.click("#toggle-sidebar")
        check(f"{scheme}, phone with conversations")
        page.click("#toggle-sidebar")
    page.screen(None)
    return f"{checked} states"


def levels_headings(page: Page) -> str:
    """Headings have no gaps between their levels."""
    levels = """return all("h1, h2, h3, h4, h5, h6").filter(node => node.checkVisibility())
        .map(node => Number(node.getAttribute("aria-level") ?? node.localName[1]));"""

    def check(where: str) -> int:
        found = page.js(levels)
        gaps = [pair for pair in zip(found, found[1:]) if pair[1] > pair[0] + 1]
        want(found[:2] == [1, 2] and not gaps, f"{where}: the levels of the headings are {found}")
        return len(found)

    page.open()
    count = check("an empty page")
    text = "### Third\n\n# First\n\n##### Fifth\n\n> ###### Sixth\n\n## Second"
    page.seed(talk("a", text) * 2)
    return f"{count + check('a conversation')} headings"


def fits_a_phone(page: Page) -> str:
    wide = "A `" + "long_" * 60 + "` " + "unbroken" * 40 + " https://example.org/" + "path/" * 50 + " $" + "x+" * 120 + "y$"
    row = "| unbroken " * 20 + "|\n"
    shapes = [wide, f"```\n{wide}\n```", row + "|-" * 20 + "|\n" + row, f"- {wide}", f"> ## {wide}", MARKDOWN]
    page.screen(PHONE)
    page.seed(talk(wide, "\n\n".join(shapes)))
    for what in ("documentElement", "body", "getElementById('scroller')"):
        over = page.js(f"return document.{what}.scrollWidth - document.{what}.clientWidth")
        want(over <= 0, f"at {PHONE[0]} pixels {what} is {over} pixels too wide")
    edges = page.js(
        """return all("#conversation :is(p, figure, pre, .table, .said, h4, button)")
          .filter(node => node.checkVisibility() && node.getBoundingClientRect().right > innerWidth + 1).map(node => node.outerHTML.slice(0, 80));"""
    )
    want(not edges, f"at {PHONE[0]} pixels these reach over the edge: {edges}")
    shape = page.js(
        """const { top, bottom, left, right } = byId("input").getBoundingClientRect();
        return { inside: top >= 0 && left >= 0 && bottom <= innerHeight && right <= innerWidth,
                 font: parseFloat(getComputedStyle(byId("input")).fontSize) };"""
    )
    want(shape["inside"], "the input is not in sight on a phone")
    want(shape["font"] >= 16, f"the input's font has {shape['font']} pixels: phones zoom in below 16")
    page.picture("phone")
    for button, dialog in (("#open-settings", "settings"), ("#open-panel", "server-panel")):
        page.click(button)
        over = page.js(f"const d = byId('{dialog}'); return d.scrollWidth - d.clientWidth")
        want(over <= 0, f"at {PHONE[0]} pixels {dialog} is {over} pixels too wide")
        page.picture(f"phone-{dialog}")
        page.js(f"byId('{dialog}').close()")
    want(not page.find("#sidebar").is_displayed(), "the conversations cover a phone")
    page.click("#toggle-sidebar")
    want(page.find("#sidebar").is_displayed() and page.js("return byId('content').inert"), "the conversations do not open on a phone")
    page.picture("phone-conversations")
    page.click("#shade")
    want(not page.find("#sidebar").is_displayed(), "a tap beside the conversations does not close them")
    small = page.js("return all('.message .foot button').filter(node => node.checkVisibility() && node.getBoundingClientRect().height < 24).length")
    want(small == 0, f"{small} buttons are lower than 24 pixels")
    if page.browser == "chromium":  # a keyboard of a touch screen has no Shift+Enter
        page.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
        page.reload()
        count = len(page.texts())
        page.find("#input").send_keys("One", Keys.ENTER, "two")
        want(page.find("#input").get_attribute("value") == "One\ntwo", "Enter is no new line on a touch screen")
        want(page.js("return byId('input').enterKeyHint") == "enter" and len(page.texts()) == count, "Enter sends on a touch screen")
        page.click("#toggle-sidebar")
        want(page.js("return document.activeElement.id") == "new-chat", "the list of conversations opens with a keyboard over it")
        page.click("#shade")
        page.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
    want(page.find("#new-chat-here").is_displayed(), "on a phone a new conversation needs the list of conversations")
    page.click("#new-chat-here")
    page.until(lambda: page.texts() == [], "the button begins a conversation")
    page.screen(None)
    want(not page.find("#new-chat-here").is_displayed(), "two buttons begin a conversation on a desktop")
    return f"{PHONE[0]}x{PHONE[1]} without a sideways scroll"


def has_two_themes(page: Page) -> str:
    luminance = """
      const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(n => n / 255)
        .map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
      return .2126 * r + .7152 * g + .0722 * b;"""
    for scheme, other in (("light", "dark"), ("dark", "light")):
        page.screen(None, scheme)
        page.seed(SPECIMEN)
        want((page.js(luminance) < 0.2) == (scheme == "dark"), f"system {scheme}: the page's luminance is {page.js(luminance):.2f}")
        page.settings(theme=other)
        want((page.js(luminance) < 0.2) == (other == "dark"), f"system {scheme}, chosen {other}: the luminance is {page.js(luminance):.2f}")
        page.reload()
        want((page.js(luminance) < 0.2) == (other == "dark"), "the chosen theme is gone after a reload")
        page.settings(theme="")
        page.js("all('.thinking').forEach(node => { node.open = true; }); byId('scroller').scrollTop = 0")
        page.until(lambda: page.count(".t-keyword") and page.count("math"), "colours and formulas are shown")
        page.picture(scheme)
    page.screen(None, reduced=True)
    moving = page.js("return document.getAnimations().length")
    want(moving == 0, f"{moving} animations run although motion is to be reduced")
    page.screen(None)
    return "light and dark"


def knows_languages(page: Page) -> str:
    """Every language has the texts of English, with the same values; the page is shown in each."""
    entry = re.compile(r"^  (\w+): \"((?:[^\"\\]|\\.)*)\",$", re.MULTILINE)
    read = lambda code: dict(entry.findall((UI / f"languages/{code}.js").read_text()))
    english = read("en")
    used = set(re.findall(r"\bt\(\"(\w+)\"", "".join(path.read_text() for path in UI.rglob("*.js") if "vendor" not in path.parts)))
    used |= set(re.findall(r"data-t(?:-label|-placeholder)?=\"(\w+)\"", (UI / "index.html").read_text()))
    want(used <= set(english), f"English lacks {sorted(used - set(english))}")
    codes = sorted(path.stem for path in (UI / "languages").glob("*.js"))
    values = lambda text: sorted(re.findall(r"\{\w+\}", text))
    for code in codes:
        texts = read(code)
        want(set(texts) == set(english), f"{code} lacks {sorted(set(english) - set(texts))}, and has {sorted(set(texts) - set(english))}")
        for name, text in texts.items():
            want(values(text) == values(english[name]), f"{code}, {name}: {text!r} has other values than {english[name]!r}")
        page.js("localStorage.setItem('tern.language', JSON.stringify(arguments[0]))", code)
        page.open()
        want(page.js("return document.documentElement.lang") == code, f"the page's language is not {code}")
        want(page.text("#empty-question") == texts["question"], f"{code}: the page asks {page.text('#empty-question')!r}")
        page.click("#open-settings")
        raw = page.js("return all('[data-t], [data-t-label]').map(node => node.textContent + node.getAttribute('aria-label')).filter(text => /\\{\\w+\\}|undefined/.test(text))")
        want(not raw, f"{code}: texts without values: {raw}")
        over = page.js("const d = byId('settings'); return d.scrollWidth - d.clientWidth")
        want(over <= 0, f"{code}: the settings are {over} pixels too wide")
        page.click("#close-settings")
        if code in ("de", "ja"):
            page.picture(f"language-{code}")
    page.js("localStorage.setItem('tern.language', JSON.stringify('en'))")
    page.open()
    return ", ".join(codes)


def writes_right_to_left(page: Page) -> str:
    page.seed(talk("مرحبا، كيف حالك؟", "أنا بخير.\n\nEnglish paragraph.\n\n- عنصر"))
    found = page.js(
        """const side = node => getComputedStyle(node).direction;
        return [side(document.querySelector(".said")), getComputedStyle(document.querySelector(".markdown p")).unicodeBidi];"""
    )
    want(found == ["rtl", "plaintext"], f"an Arabic text has {found}")
    page.find("#input").send_keys("مرحبا")
    want(page.js("return getComputedStyle(byId('input')).direction") == "rtl", "an Arabic draft is written from the left")
    page.find("#input").clear()
    page.find("#input").send_keys("x", Keys.BACKSPACE)
    page.picture("right-to-left")
    return "Arabic"
