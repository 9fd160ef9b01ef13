"""Messages: edit, branches, answer again, delete, copy, and conversations of thousands of messages."""

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.keys import Keys

from .driver import ONE_WAIT_S, Page, want


def edits_and_branches(page: Page) -> str:
    page.new_chat()
    page.settings(p_temperature="0", p_max_tokens="8")
    page.ask("First question")
    page.ask("Second question")
    before = page.texts()
    page.click(".message:nth-last-child(2) .edit")
    editor = page.until(lambda: page.count(".editor") and page.find(".editor"), "a field for the edited message")
    want(editor.get_attribute("value") == "Second question", "the message is not in the field")
    page.frames()
    want(page.js("return document.activeElement.className") == "editor", "the field has no focus")
    editor.send_keys(Keys.ESCAPE)
    page.until(lambda: page.texts() == before, "Escape leaves the message as it was")
    page.click(".message:nth-last-child(2) .edit")
    page.frames()
    page.find(".editor").send_keys(" and more", Keys.CONTROL, Keys.ENTER)
    page.until(lambda: page.texts()[2:3] == ["Second question and more"], "the edited message is sent")
    page.settled()
    want(len(page.texts()) == 4, f"{len(before)} messages became {len(page.texts())}")
    edited = page.texts()
    arrows = ".message:nth-last-child(2) .branches"
    want(page.text(arrows) == "2/2", f"the arrows show {page.text(arrows)!r}")
    page.click(f"{arrows} button:first-child")
    page.until(lambda: page.texts() == before, "the arrow leads to the message before the edit, with its answer")
    page.click(f"{arrows} button:last-child")
    page.until(lambda: page.texts() == edited, "the arrow leads back")
    # an answer can be edited too, and is sent as it is then
    page.click(".message:last-child .edit")
    page.frames()
    page.find(".editor").clear()
    page.find(".editor").send_keys("I was edited.")
    page.click(".save-edit")
    page.until(lambda: page.texts()[-1] == "I was edited.", "the edited answer is shown")
    want(page.text(".message:last-child .branches") == "2/2", "the answer before the edit is gone")
    page.reload()
    want(page.texts()[-1] == "I was edited.", "after a reload the edit is gone")
    # the first message: each branch is a separate conversation
    page.click(".message:first-child .edit")
    page.frames()
    page.find(".editor").send_keys(" again", Keys.CONTROL, Keys.ENTER)
    page.until(lambda: page.texts()[:1] == ["First question again"], "the first message is edited")
    page.settled()
    want(len(page.texts()) == 2, f"after an edit of the first message: {page.texts()}")
    page.picture("branches")
    page.click(".message:first-child .branches button:first-child")
    page.until(lambda: page.texts()[-1] == "I was edited.", "the first branch has its messages")
    return "3 edits"


def regenerates_and_deletes(page: Page) -> str:
    before = page.texts()
    page.click(".message:last-child .regenerate")
    page.settled()
    after = page.texts()
    want(len(after) == len(before) and after[:-1] == before[:-1], "more than the last answer changed")
    want(page.text(".message:last-child .branches") == "3/3", f"the arrows show {page.text('.message:last-child .branches')!r}")
    page.click(".message:nth-child(2) .regenerate")  # an answer in the middle
    page.settled()
    want(len(page.texts()) == 2 and page.text(".message:nth-child(2) .branches") == "2/2", "an answer in the middle is not generated again")
    page.click(".message:nth-child(2) .branches button:first-child")
    page.until(lambda: page.texts() == after, "the earlier branch has its messages")
    page.menu(".message:nth-child(3) .more", "Delete")
    page.until(lambda: len(page.texts()) == 4 and page.texts()[2] == "Second question", "what is deleted gives way to the branch beside it")
    page.click(".toast .plain")
    page.until(lambda: page.texts() == after, "an undo brings the messages back")
    page.menu(".message:nth-child(3) .more", "Delete")
    page.until(lambda: page.texts() != after, "it can be deleted again")
    page.menu(".message:nth-child(3) .more", "Delete")
    page.until(lambda: len(page.texts()) == 2, "the last branch can be deleted")
    page.reload()
    want(len(page.texts()) == 2, f"after a reload deleted messages exist: {page.texts()}")
    # again with other settings, which are chosen first
    page.menu(".message:nth-child(2) .more", "Answer again with other settings")
    page.until(lambda: page.find("#answer-again").is_displayed(), "the settings open, with a button to answer again")
    page.js("const field = byId('p-max_tokens'); field.value = '3'; field.dispatchEvent(new Event('input', { bubbles: true }))")
    page.click("#answer-again")
    page.settled()
    want("3 tokens" in page.stats(), f"the answer with other settings has {page.stats()!r}")
    page.click("#open-settings")
    want(not page.find("#answer-again").is_displayed(), "the settings offer to answer again although they were opened for no answer")
    page.click("#close-settings")
    title = page.text(".open-chat[aria-current]")
    page.menu(".message:nth-child(2) .more", "New conversation from here")
    page.until(lambda: page.text(".open-chat[aria-current]") == f"{title} (copy)", "the copy is shown")
    want(len(page.texts()) == 2, "the copy lacks messages")
    page.menu(".chat:has([aria-current]) .more", "Delete")
    page.open_chat(title)
    return "4 answers"


def copies(page: Page) -> str:
    text = "**Bold** and `code`\n\n```js\nlet a = 1;\n```"
    page.seed([{"role": "user", "content": "Q"}, {"role": "assistant", "content": text, "end": "stop"}])
    page.js(
        """window.copied = [];
        Object.defineProperty(navigator, "clipboard", { configurable: true, value: { writeText: async text => { copied.push(text); } } });
        window.saved = []; const make = URL.createObjectURL.bind(URL);
        URL.createObjectURL = blob => { blob.text().then(text => saved.push(text)); return make(blob); };"""
    )
    page.click(".assistant > .foot .copy")
    page.until(lambda: page.js("return copied[0]") == text, f"an answer is copied as {page.js('return copied')}")
    page.click("figcaption .copy")
    page.until(lambda: page.js("return copied[1]") == "let a = 1;", "a code block is copied")
    page.menu(".assistant .more", "Copy the conversation")
    page.until(lambda: "##  You\n\nQ" in (page.js("return copied[2]") or ""), "the conversation is copied")
    page.click("figcaption .save")
    page.until(lambda: page.js("return saved[0]") == "let a = 1;", "a code block is saved")
    # outside https and localhost the browser has no clipboard API
    page.js("Object.defineProperty(navigator, 'clipboard', { value: undefined }); document.execCommand = name => { window.old = name; return true; }")
    page.click(".assistant > .foot .copy")
    page.until(lambda: page.js("return window.old") == "copy", "without the API nothing is copied")
    return "4 kinds"


def keeps_the_place(page: Page) -> str:
    """Who scrolls up through messages of unknown heights sees them move by what was scrolled, and no more."""
    messages: list[dict[str, object]] = []
    for i in range(100):
        messages.append({"role": "user", "content": f"Question {i}"})
        messages.append({"role": "assistant", "content": f"Answer {i}\n\n" + ("words " * 120 + "\n\n") * (1 + i % 5), "end": "stop"})
    page.seed(messages)
    # the message in the middle, and then where that one is
    at = """if (arguments[0]) window.watched = document.elementFromPoint(innerWidth * .6, 400)?.closest(".message");
        return window.watched?.getBoundingClientRect().top ?? null;"""
    jumps: list[float] = []
    wheel = ScrollOrigin.from_viewport(700, 400)
    for _ in range(60):  # by the wheel, as a reader does
        before, place = page.js(at, True), page.js("return byId('scroller').scrollTop")
        ActionChains(page.driver, duration=0).scroll_from_origin(wheel, 0, -400).perform()
        page.until(lambda place=place: page.js("return byId('scroller').scrollTop") != place, "the wheel scrolls")
        page.run(
            """const frames = () => new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)));
            for (let last = NaN; last !== byId("scroller").scrollTop; await frames()) last = byId("scroller").scrollTop;"""
        )
        if before is not None:
            jumps.append(abs(page.js(at, False) - before - 400))
    want(len(jumps) > 30 and max(jumps) < 3, f"while scrolling the messages jump by up to {max(jumps):.0f} pixels")
    return f"{len(jumps)} steps, at most {max(jumps):.0f} pixels beside"


def stays_smooth(page: Page) -> str:
    """5,000 messages, and an answer of 100,000 tokens."""
    messages = []
    for i in range(2500):
        messages.append({"role": "user", "content": f"Question {i}"})
        messages.append({"role": "assistant", "content": f"Answer **{i}** with `code`\n\n- a\n- b\n\n" + "words " * 40, "end": "stop"})
    page.seed(messages)
    drawn = page.count(".message")
    want(40 <= drawn <= 200, f"{drawn} of 5,000 messages are drawn")
    show = """const { show } = await page("app.js");
        const id = location.hash.slice(1);
        await show("");
        const begin = performance.now();
        await show(id);
        await new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)));
        return performance.now() - begin;"""
    # processor time of the page's thread: other programs do not count
    opened, parts = page.processor_ms(lambda: page.run(show))
    want(parts["TaskDuration"] < 3000, f"5,000 messages take {parts['TaskDuration']:.0f} ms of processor time to open")
    for _ in range(5):
        before = page.count(".message")
        page.js("byId('scroller').scrollTop = 0")
        page.until(lambda: page.count(".message") > before, "more messages are drawn above")
    want(page.js("return byId('scroller').scrollTop") > 100, "the view jumped to the top")
    # an answer of 100,000 tokens streams; its text is that of prose, lists, tables and code
    paragraph = "A tern is a **seabird** of the family [Laridae](https://example.org) with `code` and $x^2$. " * 6
    part = f"## Part\n\n{paragraph}\n\n- one\n- two\n  - three\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```rust\nfn main() {{ let x = 1; }}\n```\n\n"
    page.driver.set_script_timeout(60)
    page.run(
        """const { app } = await page("app.js");
        const { toEnd } = await page("thread.js");
        const message = app.chat.add({ role: "assistant" });
        app.chat.run = new AbortController();
        app.chat.running = message;
        app.emit("chat", { end: true });
        const part = args[0];
        window.whole = part.repeat(Math.ceil(420000 / part.length));
        message.content = whole.slice(0, 380000); // what was generated so far: the end is where drawing is slowest
        app.emit("message", message);
        toEnd();
        await new Promise(resolve => setTimeout(resolve, 1500));""",
        part,
    )
    stream = """const { app } = await page("app.js");
        const message = app.chat.running, sizes = new Set();
        let end = message.content.length;
        for (let frame = 0; frame < 120; frame++) { // 8 tokens per frame are 480 per second
          end += 32;
          message.content = whole.slice(0, end);
          app.emit("message", message);
          await new Promise(requestAnimationFrame);
          sizes.add(document.querySelector(".assistant:last-child > .markdown").lastChild.textContent.length);
        }
        app.chat.run = app.chat.running = null;
        message.end = "stop";
        app.emit("message", message);
        return [120, sizes.size, end / 4];"""
    (frames, sizes, tokens), parts = page.processor_ms(lambda: page.run(stream))
    parts = {name: round(took / frames, 1) for name, took in parts.items()}
    work = parts["TaskDuration"]
    page.driver.set_script_timeout(ONE_WAIT_S)
    want(work < 12, f"at {tokens:.0f} tokens a frame takes {work:.1f} ms of processor time, want below 12 of 16.7: {parts}")
    want(sizes > 3, f"the text was drawn at {sizes} sizes only")
    return f"opened in {opened:.0f} ms; at {tokens:.0f} tokens a frame takes {work:.1f} ms of processor time"
