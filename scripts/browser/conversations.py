"""Conversations: they are stored, found, renamed, pinned, deleted, exported and imported, in one tab and in several."""

import json
from html.parser import HTMLParser

from selenium.webdriver.common.keys import Keys

from .driver import Page, want
from .files import drop
from .texts import ATTACK, HOSTILE, MARKDOWN, SPECIMEN

# Catches the files that the page saves, as [name, text].
CATCH_FILES = """window.saved = [];
const make = URL.createObjectURL.bind(URL);
URL.createObjectURL = blob => { blob.text().then(text => saved.push(text)); return make(blob); };
HTMLAnchorElement.prototype.click = function () { if (!this.download) this.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true })); };"""


# Imports a text as a file.
GIVE_FILE = """const transfer = new DataTransfer();
  transfer.items.add(new File([arguments[0]], "c.json", { type: "application/json" }));
  byId("import-input").files = transfer.files;
  byId("import-input").dispatchEvent(new Event("change"));"""

# The same conversation as three programs export it: two branches of an answer, of which the second is shown.
OTHER_EXPORTS = {
    "llama.cpp": [{
        "conv": {"id": "c", "name": "From llama.cpp", "lastModified": 1700000000000, "currNode": "a2"},
        "messages": [
            {"id": "r", "convId": "c", "type": "root", "role": "system", "content": "", "parent": None, "children": ["s"], "timestamp": 1700000000000},
            {"id": "s", "convId": "c", "type": "text", "role": "system", "content": "Be kind.", "parent": "r", "children": ["u"], "timestamp": 1700000000001},
            {"id": "u", "convId": "c", "type": "text", "role": "user", "content": "Q", "parent": "s", "children": ["a1", "a2"], "timestamp": 1700000000002},
            {"id": "a1", "convId": "c", "type": "text", "role": "assistant", "content": "First", "parent": "u", "children": [], "timestamp": 1700000000003},
            {"id": "a2", "convId": "c", "type": "text", "role": "assistant", "content": "Second", "thinking": "Why", "parent": "u", "children": [], "timestamp": 1700000000004},
        ],
    }],
    "Open WebUI": [{"created_at": 1700000000, "chat": {"title": "From Open WebUI", "history": {"currentId": "a2", "messages": {
        "u": {"id": "u", "parentId": None, "role": "user", "content": "Q", "timestamp": 1700000000},
        "a1": {"id": "a1", "parentId": "u", "role": "assistant", "content": "First", "timestamp": 1700000001},
        "a2": {"id": "a2", "parentId": "u", "role": "assistant", "content": "Second", "timestamp": 1700000002},
    }}}}],
    "ChatGPT": [{"title": "From ChatGPT", "create_time": 1700000000.5, "current_node": "a2", "mapping": {
        "root": {"id": "root", "parent": None, "message": None},
        "s": {"id": "s", "parent": "root", "message": {"author": {"role": "system"}, "content": {"content_type": "text", "parts": [""]}}},
        "u": {"id": "u", "parent": "s", "message": {"author": {"role": "user"}, "create_time": 1700000001.5, "content": {"parts": ["Q"]}}},
        "a1": {"id": "a1", "parent": "u", "message": {"author": {"role": "assistant"}, "create_time": 1700000002.5, "content": {"parts": ["First"]}}},
        "a2": {"id": "a2", "parent": "u", "message": {"author": {"role": "assistant"}, "create_time": 1700000003.5, "content": {"parts": ["Second"]}}},
    }}],
}  # fmt: skip


def talk(text: str, answer: str = "Yes.") -> list[dict[str, object]]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": answer, "end": "stop"}]


def survives_reload(page: Page) -> str:
    page.new_chat()
    page.settings(p_max_tokens="8", p_temperature="0", system="Be brief.")
    page.ask("What is a tern?")
    before = page.texts()
    page.reload()
    page.until(lambda: page.texts() == before, "the conversation exists after a reload")
    page.click("#open-settings")
    found = page.js("return ['p-max_tokens', 'system'].map(id => byId(id).value)")  # at once: the fields may be drawn again
    want(found == ["8", "Be brief."], f"after a reload the settings are {found}")
    page.click("#close-settings")
    page.new_chat()
    page.click("#open-settings")
    want(page.find("#system").get_attribute("value") == "", "the settings of one conversation apply to another")
    page.click("#close-settings")
    page.open_chat("What is a tern?")
    want(page.texts() == before, "the conversation does not come back")
    page.driver.back()
    page.until(lambda: page.texts() == [], "back leads to the new conversation")
    page.driver.forward()
    page.until(lambda: page.texts() == before, "forward leads to the conversation again")
    return f"{len(before)} messages"


def keeps_drafts(page: Page) -> str:
    """What is written and not sent belongs to its conversation, and survives a reload."""
    written = lambda: page.find("#input").get_attribute("value")
    page.find("#input").send_keys("Not sent", Keys.SHIFT, Keys.ENTER)
    page.find("#input").send_keys("yet")
    page.reload()
    page.until(lambda: written() == "Not sent\nyet", "the draft exists after a reload")
    want(page.find("#send").is_enabled(), "a draft cannot be sent after a reload")
    page.new_chat()
    page.until(lambda: written() == "", f"the draft of another conversation is in a new one: {written()!r}")
    page.find("#input").send_keys("First words")
    page.reload()
    page.until(lambda: written() == "First words", "the draft of a conversation without messages exists after a reload")
    page.open_chat("What is a tern?")
    page.until(lambda: written() == "Not sent\nyet", f"in its conversation the draft is {written()!r}")
    page.find("#input").clear()
    page.ask("Sent")
    page.reload()
    want(written() == "", f"a message that was sent is still a draft: {written()!r}")
    page.new_chat()
    page.until(lambda: written() == "First words", "the draft of a new conversation is gone")
    # an address with a text, as of a browser's search keyword
    asked = len(page.listed())
    page.open("?q=What%20is%20<b>this?")
    want(written() == "First words\n\nWhat is <b>this?", f"with a text in the address the draft is {written()!r}")
    want(page.texts() == [] and len(page.listed()) == asked, "a text in the address is sent")
    page.reload()
    want(written() == "First words\n\nWhat is <b>this?", f"a reload adds the text of the address again: {written()!r}")
    page.find("#input").clear()
    page.find("#input").send_keys("x", Keys.BACKSPACE)
    want(page.js("return Object.keys(localStorage).filter(name => name.startsWith('tern.draft.'))") == [], "an empty draft is stored")
    return "two conversations"


def lists_and_finds(page: Page) -> str:
    for text, answer in (("Alpha one", "The needle is here"), ("Beta two", "Nothing"), ("Gamma three", "Nothing")):
        page.seed(talk(text, answer))
    listed = page.listed()
    want(listed[:3] == ["Gamma three", "Beta two", "Alpha one"], f"the conversations listed are {listed}")
    want(page.text("#chats summary").startswith("Today"), f"the folders are {page.text('#chats summary')!r}")
    page.find("#search").send_keys("NEEDLE")
    page.until(lambda: page.listed() == ["Alpha one"], f"a search in the messages finds {page.listed()}")
    want(page.text(".found mark") == "needle", f"the found words are {page.text('.found')!r}")
    page.click(".found")
    page.until(lambda: page.texts() == ["Alpha one", "The needle is here"], "the found message is shown")
    page.find("#search").send_keys(Keys.ESCAPE)
    page.until(lambda: len(page.listed()) >= 3, "Escape ends the search")
    page.find("#search").send_keys("no such words")
    page.until(lambda: page.listed() == [] and page.find("#no-chats").is_displayed(), "nothing found is said")
    page.find("#search").send_keys(Keys.ESCAPE)
    # rename and pin
    page.until(lambda: "Beta two" in page.listed(), "all are listed again")
    more = lambda title: f".chat:has(.open-chat[title='{title}']) .more"
    page.menu(more("Beta two"), "Rename")
    field = page.find("dialog.ask input")
    want(field.get_attribute("value") == "Beta two", "the field of a new name is empty")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("Second letter", Keys.ENTER)
    page.until(lambda: "Second letter" in page.listed(), f"the renamed conversation is listed: {page.listed()}")
    page.menu(more("Second letter"), "Pin")
    page.until(lambda: page.listed()[0] == "Second letter", "a pinned conversation is first")
    want(page.text("#chats summary").startswith("Pinned"), "pinned conversations have no folder")
    page.picture("conversations")
    page.reload()
    want(page.listed()[0] == "Second letter", "after a reload the pin or the name is gone")
    # delete with undo
    page.open_chat("Gamma three")
    count = len(page.listed())
    page.menu(more("Gamma three"), "Delete")
    page.until(lambda: "Gamma three" not in page.listed() and page.texts() == [], "a deleted conversation is gone")
    page.click(".toast .plain")
    page.until(lambda: page.texts() == ["Gamma three", "Nothing"], "an undo brings the conversation back")
    want(len(page.listed()) == count, f"after the undo {len(page.listed())} conversations are listed, were {count}")
    page.menu(more("Gamma three"), "Delete")
    page.until(lambda: "Gamma three" not in page.listed(), "it can be deleted again")
    page.reload()
    want("Gamma three" not in page.listed(), "a deleted conversation is listed after a reload")
    return f"{count} conversations"


def folders_by_date(page: Page) -> str:
    days = {"Today": 0, "Yesterday": 1, "Last 7 days": 4, "Last 30 days": 20, "month": 100}
    page.run(
        """const { store } = await page("store.js");
        for (const [name, days] of Object.entries(args[0])) {
          const id = `date-${days}`, at = new Date().setHours(0, 0, 0, 1) - days * 86400000;
          await store.putAll({ id, title: `Of ${name}`, pinned: false, created: at, updated: at, leaf: `${id}-m`, settings: {} },
            [{ id: `${id}-m`, conversation: id, parent: "", role: "user", content: "x", at, rev: "r" }]);
        }""",
        days,
    )
    page.open()
    found = dict(page.js("return all('#chats li').map(node => [node.querySelector('.open-chat').textContent, node.closest('details').dataset.folder])"))
    for name in list(days)[:4]:
        want(found[f"Of {name}"] == name, f"a conversation of {name} is in {found[f'Of {name}']!r}")
    want(any(char.isdigit() for char in found["Of month"]), f"an old conversation is in {found['Of month']!r}")
    page.run("const { store } = await page('store.js'); for (const days of args[0]) await store.remove(`date-${days}`);", list(days.values()))
    return ", ".join(days)


def exports_and_imports(page: Page) -> str:
    page.seed([*talk("To keep", "**Bold** answer"), *talk("And more", "`code`")])
    page.js(CATCH_FILES)
    more = ".chat:has([aria-current]) .more"
    page.menu(more, "Export as Markdown")
    markdown = page.until(lambda: page.js("return saved[0]"), "the Markdown is saved")
    want(markdown.startswith("#  To keep\n") and "**Bold** answer" in markdown and "##  You" in markdown, f"the Markdown is {markdown!r}")
    page.menu(more, "Export as JSON")
    exported = json.loads(page.until(lambda: page.js("return saved[1]"), "the JSON is saved"))
    want(len(exported["conversations"]) == 1 and len(exported["conversations"][0]["messages"]) == 4, f"the JSON is {exported}")
    page.menu("#list-menu", "Export all")
    everything = json.loads(page.until(lambda: page.js("return saved[2]"), "all conversations are saved"))
    want(len(everything["conversations"]) == len(page.listed()), "not all conversations are exported")
    page.menu("#list-menu", "Export all conversations (Markdown)")
    together = page.until(lambda: page.js("return saved[3]"), "all conversations are saved as Markdown")
    want(together.count("\n---\n\n#  ") == len(page.listed()) - 1 and markdown in together, "not all conversations are in the Markdown")
    before = page.listed()
    page.js(GIVE_FILE, json.dumps(exported))
    page.until(lambda: len(page.listed()) == len(before) + 1, "the imported conversation is listed")
    page.until(lambda: page.count(".message") == 4, "the imported conversation is shown")
    want(page.listed().count("To keep") == before.count("To keep") + 1, "an import replaced a conversation")
    attack = {"role": "assistant", "id": "m", "parent": "m", "content": 7, "calls": "x", "stats": [], "attachments": [{"kind": "image", "url": "https://evil.test/x.png"}]}
    for text, words in (
        ("nonsense", "neither JSON nor"),
        ('{"format": "other"}', "no exported conversations"),
        (json.dumps({**exported, "version": 99}), "newer version"),
        (json.dumps({**exported, "conversations": [{"id": {}, "title": 5, "leaf": "m", "settings": {"values": 3}, "messages": [attack, None]}]}), "imported: 1"),
    ):
        page.js(GIVE_FILE, text)
        page.until(lambda words=words: words in page.toasts(), f"an import of {text[:60]} says {words!r}: {page.toasts()!r}")
    page.until(lambda: page.count(".message"), "a hostile import is shown")
    want(page.count("#conversation img") == 0, "an imported picture asks another host")
    page.js("all('.toast button[aria-label=Close]').forEach(node => node.click())")
    page.menu(".chat:has([aria-current]) .more", "Delete")
    return f"{len(markdown)} characters of Markdown, {len(everything['conversations'])} conversations"


def imports_markdown(page: Page) -> str:
    """What was exported as Markdown comes back, whatever the texts contain; other texts are divided."""
    heading = "Look:\n\n##  You\n\n# Title\n\n```\n## You"  # and a fence that never closes
    call = {"id": "c", "name": "weather", "arguments": '{\n  "city": "Kiel"\n}'}
    page.seed([
        {"role": "user", "content": "To read again", "attachments": [{"name": "a b.md", "kind": "text", "text": "## You\n```\nx\n```", "bytes": 19}]},
        {"role": "assistant", "content": heading, "model": "some-model", "end": "stop"},
        {"role": "user", "content": "And the weather?\n\n---"},
        {"role": "assistant", "content": "", "calls": [call, {**call, "id": "d", "name": "wind"}], "model": "some-model", "end": "tool_calls"},
        {"role": "tool", "content": "", "results": [{"id": "c", "name": "weather", "content": "rain\n```\n###  Result of x"}, {"id": "d", "name": "wind", "content": "none"}]},
        {"role": "assistant", "content": "It rains.\n\n---", "model": "some-model", "end": "stop"},
    ], {"system": "Be kind.\n\n#  Always"})  # fmt: skip
    page.js(CATCH_FILES)
    page.menu("#list-menu", "Export all conversations (Markdown)")
    text = page.until(lambda: page.js("return saved[0]"), "the Markdown is saved")
    before = page.listed()
    page.js(GIVE_FILE, text)
    page.until(lambda: f"imported: {len(before)}" in page.toasts(), f"an import of {len(before)} conversations says {page.toasts()!r}")
    page.until(lambda: sorted(page.listed()) == sorted(before * 2), f"the conversations are {page.listed()}, want each of {before} twice")
    read = """const { store } = await page("store.js");
        const { openChat } = await page("chat.js");
        const found = [];
        for (const { id, title, first } of await store.conversations()) {
          if ((title || first) !== "To read again") continue;
          const chat = await openChat(id);
          found.push([chat.record.settings.system, ...chat.path.map(one => [one.role, one.content, one.model, one.end, one.calls.map(({ name, arguments: text }) => [name, text]),
            one.results.map(({ name, content }) => [name, content]), one.attachments.map(({ name, text }) => [name, text])])]);
          if (!title) continue;
          const last = chat.path.findLast(one => one.calls.length), ids = chat.path.flatMap(one => one.results.map(({ id }) => id));
          if (last.calls.map(({ id }) => id).join() !== ids.join()) found.push("the results are not those of the calls");
        }
        return found;"""
    found = page.run(read)
    one_space = json.loads(json.dumps(found[0]).replace("#  ", "# "))  # the only change
    want(len(found) == 2 and one_space == json.loads(json.dumps(found[1]).replace("#  ", "# ")), f"what was exported differs: {found}")
    want(len(found[0]) == 7 and any("#  " in json.dumps(one) for one in found), "the specimen has no text to change")
    page.run(
        """const { store } = await page("store.js");
        for (const { id, title } of await store.conversations()) if (title) await store.remove(id);"""
    )
    page.open()
    foreign = "# Notes\n\n## User\nWhy?\n\n## gpt-x\n\n## Reasons\n\n```\n## User\n```\n\n## Human\nMore\n## gpt-x\nEnd"
    page.js(GIVE_FILE, foreign)
    page.until(lambda: page.text(".open-chat[aria-current]") == "Notes", f"a text of another program is shown: {page.toasts()!r}")
    found = page.run("const { app } = await page('app.js'); return app.chat.path.map(({ role, content, model }) => [role, content, model])")
    want(found == [["user", "Why?", ""], ["assistant", "## Reasons\n\n```\n## User\n```", "gpt-x"], ["user", "More", ""], ["assistant", "End", "gpt-x"]], f"it has the messages {found}")
    page.menu(".chat:has([aria-current]) .more", "Delete")
    return f"{len(before)} conversations, {len(text)} characters"


def imports_other_exports(page: Page) -> str:
    for program, file in OTHER_EXPORTS.items():
        page.js(GIVE_FILE, json.dumps(file))
        page.until(lambda program=program: page.text(".open-chat[aria-current]") == f"From {program}", f"the conversation of {program} is shown")
        page.until(lambda: page.texts()[-2:] == ["Q", "Second"], f"{program}: the messages are {page.texts()}")
        want(page.text(".message:last-child .branches") == "2/2", f"{program}: the other branch is missing")
        found = page.run("const { app } = await page('app.js'); return [app.chat.record.settings.system, app.chat.last.reasoning, app.chat.record.updated]")
        want(found[0] == ("Be kind." if program == "llama.cpp" else ""), f"{program}: the system prompt is {found[0]!r}")
        want(found[1] == ("Why" if program == "llama.cpp" else ""), f"{program}: the thoughts are {found[1]!r}")
        want(1.69e12 < found[2] < 1.71e12, f"{program}: the time is {found[2]}")
        page.menu(".chat:has([aria-current]) .more", "Delete")
    page.js("all('.toast button[aria-label=Close]').forEach(node => node.click())")
    cycle = {"mapping": {"a": {"id": "a", "parent": "b", "message": {"author": {"role": "user"}, "content": {"parts": [7, {"text": "x"}, None]}}}, "b": {"id": "b", "parent": "a"}, "c": 7, "d": None}, "title": {}, "current_node": 5}
    page.js(GIVE_FILE, json.dumps([cycle, 5, {"mapping": []}]))
    page.until(lambda: "imported: 1" in page.toasts(), f"a damaged export says {page.toasts()!r}")
    page.menu(".chat:has([aria-current]) .more", "Delete")
    return ", ".join(OTHER_EXPORTS)


def saves_as_page(page: Page) -> str:
    """A conversation as one HTML file: complete, without scripts, and hostile texts are text in it too."""
    page.seed([*SPECIMEN, *talk("</title><script>window.attacked=1</script>", "\n\n".join(HOSTILE))])
    page.js(CATCH_FILES)
    page.menu(".chat:has([aria-current]) .more", "Save as a web page")
    text = page.until(lambda: page.js("return saved[0]"), "the page is saved")
    want("<script" not in text and "default-src 'none'" in text, "the saved page has scripts, or no policy")
    tags: list[tuple[str, dict[str, str | None]]] = []
    reader = HTMLParser()
    reader.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))  # type: ignore[method-assign]
    reader.handle_startendtag = reader.handle_starttag  # type: ignore[method-assign]
    reader.feed(text)
    count = lambda name: sum(tag == name for tag, _ in tags)
    want(count("article") == 4 and count("title") == 1 and not count("button"), f"the saved page has {count('article')} messages, {count('button')} buttons")
    for tag, attributes in tags:
        bad = [name for name, value in attributes.items() if name.startswith("on") or name == "src" or (value or "").startswith("javascript:")]
        want(tag not in ("script", "iframe", "base", "object", "link") and not bad, f"the saved page has <{tag}> with {bad}")
    want(count("math") >= 2 and 'class="t-keyword"' in text, "the saved page lacks colours or formulas")
    want("<title>Show **all** of it</title>" in text, "the saved page has no title")
    want(MARKDOWN.splitlines()[0][2:] in text and ATTACK in text, "a part of the conversation is missing")
    page.menu(".chat:has([aria-current]) .more", "Delete")
    return f"{len(text)} characters"


def prints(page: Page) -> str:
    """Paper has the whole conversation, dark on light, without controls; its PDF is read by the page's own reader."""
    page.settings(theme="dark")
    page.seed([*(message for i in range(50) for message in talk(f"Question {i}", "Words.\n\n" * 8)), *SPECIMEN])
    drawn = page.count(".message")
    want(drawn < 102, f"{drawn} messages are drawn before: nothing is left to draw")
    printed = page.driver.print_page()
    text = page.run("const { pdfText } = await page('pdf.js'); return await pdfText(Uint8Array.from(atob(args[0]), c => c.charCodeAt(0)));", printed)
    lacking = [i for i in range(50) if f"Question {i}\n" not in text]
    want(not lacking and "fn main() {" in text, f"on paper these are missing: {lacking}, of {len(text)} characters")
    for control in ("Message", "Search conversations", "of 8,192 tokens", "181 tokens"):
        want(control not in text, f"paper has {control!r}")
    if page.browser == "chromium":
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        colours = page.js("return [getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        want(colours == ["rgb(28, 32, 36)", "rgb(255, 255, 255)"], f"in the dark theme paper has the colours {colours}")
    page.settings(theme="")
    page.menu(".chat:has([aria-current]) .more", "Delete")
    return f"{len(text)} characters on paper"


def shares_a_file(page: Page) -> str:
    """On systems with a menu for it, other programs get a conversation as a file that can be imported."""
    page.seed(talk("To share", "An answer"))
    more = ".chat:has([aria-current]) .more"
    page.js("Object.defineProperty(navigator, 'canShare', { configurable: true, value: undefined })")
    page.click(more)
    want("Export as JSON" in page.text("#menu") and "Share" not in page.text("#menu"), f"without a menu of the system the page offers {page.text('#menu')!r}")
    page.js("byId('menu').hidePopover()")
    page.js(
        """const set = (name, value) => Object.defineProperty(navigator, name, { configurable: true, value });
        set("canShare", ({ files }) => files.length === 1);
        set("share", async ({ files, title }) => { window.shared = [title, files[0].name, files[0].type, await files[0].text()]; });"""
    )
    page.menu(more, "Share as a file")
    title, name, kind, text = page.until(lambda: page.js("return window.shared"), "the conversation is shared")
    want([title, name, kind] == ["To share", "To-share.json", "application/json"], f"what is shared is {[title, name, kind]}")
    page.js(GIVE_FILE, text)
    page.until(lambda: page.listed().count("To share") == 2, "the shared file can be imported")
    want(page.texts() == ["To share", "An answer"], f"the shared file has {page.texts()}")
    page.menu(more, "Delete")
    return f"{len(text)} characters"


def tabs_do_not_lose_chats(page: Page) -> str:
    first = page.driver.current_window_handle
    page.seed(talk("Of the first tab"))
    address = page.driver.current_url
    second = page.new_tab()
    want(page.texts() == [], "a new tab shows another tab's conversation")
    page.driver.get(address)
    page.ready()
    page.settings(p_max_tokens="8", p_temperature="0")
    page.ask("A turn in the second tab")
    shared = page.texts()
    page.to_tab(first)
    page.until(lambda: page.texts() == shared, "a conversation that continues in another tab is shown as it is now")
    # both tabs continue at the same place at the same time: two branches, and neither is lost
    send = "byId('input').value = arguments[0]; byId('input').dispatchEvent(new Event('input')); byId('send').click();"
    page.js(send, "Both, first")
    page.to_tab(second)
    page.run("const { app } = await page('app.js'); app.chat.record.leaf = [...app.chat.tree.messages.values()].find(one => one.content === args[0])?.parent ?? app.chat.record.leaf;", "Both, first")
    page.js(send, "Both, second")
    page.settled()
    page.to_tab(first)
    page.settled()
    page.reload()
    counted = page.run(
        """const { store } = await page("store.js");
        const { app } = await page("app.js");
        return (await store.messages(app.chat.id)).filter(({ role }) => role === "user").map(({ content }) => content);"""
    )
    for text in ("Of the first tab", "A turn in the second tab", "Both, first", "Both, second"):
        want(text in counted, f"{text!r} is gone: {counted}")
    # what one tab changes under another: a record that was written since it was read is kept beside the new
    # one
    kept = page.run(
        """const { store } = await page("store.js");
        const { app } = await page("app.js");
        const mine = { ...app.chat.last }, theirs = { ...app.chat.last, content: "Written by another tab" };
        await store.putMessage(theirs, app.chat.record);
        await store.putMessage({ ...mine, content: "Written by this tab" }, app.chat.record);
        return (await store.messages(app.chat.id)).map(({ content }) => content);"""
    )
    want("Written by another tab" in kept and "Written by this tab" in kept, f"one tab overwrote the other: {kept}")
    # a conversation that another tab deletes during an answer is stored again
    page.to_tab(second)
    page.driver.close()
    page.to_tab(first)
    return f"{len(counted)} questions of two tabs"


def deletes_all(page: Page) -> str:
    """All conversations at once, after a question, and with an undo that brings every message and draft back."""
    page.seed(talk("With a draft"))
    page.find("#input").send_keys("To be continued")
    drop(page, [("notes.txt", "text/plain", b"Terns migrate.")])
    stored = "const { store } = await page('store.js'); return (await store.draft(location.hash.slice(1)))?.files.length"
    page.until(lambda: page.run(stored) == 1, "a file is attached to the draft")
    page.seed(talk("Shown"))
    before = page.listed()
    page.menu("#list-menu", "Delete all conversations")
    page.until(lambda: f"({len(before)})" in page.text("dialog.ask p"), "the question has the number of conversations")
    page.click("dialog.ask .row .plain:not(.strong)")
    page.until(lambda: not page.count("dialog.ask"), "the question can be cancelled")
    want(page.listed() == before, f"a cancelled deletion leaves {page.listed()}, want {before}")
    page.menu("#list-menu", "Delete all conversations")
    page.click("dialog.ask .strong")
    page.until(lambda: page.listed() == [] and page.texts() == [], f"nothing is left: {page.listed()}")
    page.click(".toast:last-child .plain")
    page.until(lambda: page.listed() == before, f"an undo brings back {page.listed()}, want {before}")
    page.until(lambda: page.texts() == ["Shown", "Yes."], f"the conversation that was shown has {page.texts()}")
    page.open_chat("With a draft")
    page.until(lambda: page.find("#input").get_attribute("value") == "To be continued", "a draft is gone after the undo")
    page.until(lambda: page.text("#files .chip b") == "notes.txt", "the file of a draft is gone after the undo")
    page.find("#input").clear()
    page.menu("#list-menu", "Delete all conversations")
    page.click("dialog.ask .strong")
    page.until(lambda: page.listed() == [], f"nothing is left: {page.listed()}")
    page.reload()
    left = page.run("const { store } = await page('store.js'); const found = []; await store.eachMessage(one => { found.push(one.content); }); return [...await store.conversations(), ...found];")
    want(page.listed() == [] and left == [], f"after a reload this is left: {page.listed()}, {left}")
    return f"{len(before)} conversations"


def migrates(page: Page) -> str:
    """What earlier versions stored: two keys, then one key per chat, then the first version of the database."""
    talk_of = lambda text: json.dumps(talk(text))
    page.js(
        """const chat = text => ({ at: 1700000000000, version: "x", messages: JSON.parse(text) });
        localStorage.setItem("tern.chat", JSON.stringify({ messages: JSON.parse(arguments[0]), previous: JSON.parse(arguments[1]) }));
        localStorage.setItem("tern.chat.abc", JSON.stringify(chat(arguments[2])));
        localStorage.setItem("tern.draft.abc", JSON.stringify("its draft"));
        localStorage.setItem("tern.settings", JSON.stringify({ system: "Old prompt", temperature: "0.5", top_p: "" }));""",
        talk_of("Kept before"), talk_of("Put away before"), talk_of("Of the third version"),
    )  # fmt: skip
    page.open()
    listed = page.listed()
    want({"Kept before", "Put away before", "Of the third version"} <= set(listed), f"the conversations listed are {listed}")
    want(page.js("return Object.keys(localStorage).filter(name => name.startsWith('tern.chat'))") == [], "the old keys remain")
    page.open_chat("Of the third version")
    page.until(lambda: page.find("#input").get_attribute("value") == "its draft", "its draft is gone")
    page.find("#input").clear()
    page.find("#input").send_keys("x", Keys.BACKSPACE)
    page.new_chat()
    page.click("#open-settings")
    found = page.js("return ['system', 'p-temperature'].map(id => byId(id).value)")
    want(found == ["Old prompt", "0.5"], f"the old settings are {found}")
    page.click("#close-settings")
    page.js("localStorage.removeItem('tern.settings')")
    # a database of version 1, from a page without presets
    # a text of the same origin, without a database
    page.driver.get(page.js("return document.querySelector('script[type=module]').src"))
    page.run(
        """await new Promise((resolve, reject) => {
          const removal = indexedDB.deleteDatabase("tern");
          removal.onblocked = removal.onerror = reject;
          removal.onsuccess = () => {
            const request = indexedDB.open("tern", 1);
            request.onupgradeneeded = () => {
              const db = request.result;
              db.createObjectStore("conversations", { keyPath: "id" }).put({ id: "one", title: "", updated: 1, created: 1, leaf: "m" });
              db.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
              request.transaction.objectStore("messages").put({ id: "m", conversation: "one", parent: "", role: "user", content: "Version one", at: 1, rev: "r" });
            };
            request.onsuccess = () => { request.result.close(); resolve(); };
          };
        });"""
    )
    page.open()
    want(page.listed() == ["Version one"], f"after the migration the conversations are {page.listed()}")
    stores = page.run("const db = await new Promise(resolve => { const r = indexedDB.open('tern'); r.onsuccess = () => resolve(r.result); }); const names = [...db.objectStoreNames]; db.close(); return names;")
    want("presets" in stores and "drafts" in stores, f"after the migration the stores are {stores}")
    return "three formats of localStorage, one of the database"
