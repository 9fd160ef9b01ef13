"""Answers: they stream, stop, fail and continue, and the view follows them."""

import json
import time

from selenium.webdriver.common.keys import Keys

from .driver import SHORT_ANSWER, SLOW_NETWORK, Page, want


def opens(page: Page) -> str:
    _, policy = page.fetch("/")
    want("default-src 'none'" in policy, f"GET /: Content-Security-Policy is {policy!r}, want default-src 'none' in it")
    want("unsafe" not in policy, f"GET /: the policy allows inline scripts or styles: {policy!r}")
    model = json.loads(page.fetch("/v1/models")[0])["data"][0]["id"]
    page.open()
    page.until(lambda: page.find("#model").text == model, f"the model's name {model} is shown")
    want(page.find("#empty").is_displayed(), "a page without a conversation explains nothing")
    want(not page.find("#send").is_enabled(), "an empty message can be sent")
    want(page.js("return document.activeElement.id") == "input", "the input has no focus on a page that was opened")
    page.picture("empty")
    return f"model {model}"


def streams(page: Page) -> str:
    page.settings(p_temperature="0", p_max_tokens=SHORT_ANSWER)  # no luck in what a small model generates
    page.js(
        """window.lengths = [];
        new MutationObserver(() => {
          const now = document.querySelector(".assistant:last-child > .markdown")?.textContent.length ?? 0;
          if (document.body.classList.contains("running") && now !== lengths.at(-1)) lengths.push(now);
        }).observe(byId("conversation"), { childList: true, characterData: true, subtree: true });"""
    )
    page.find("#input").send_keys("Tell me a story", Keys.SHIFT, Keys.ENTER)
    page.find("#input").send_keys("about the sea.")
    want(page.find("#input").get_attribute("value") == "Tell me a story\nabout the sea.", "Shift+Enter is no new line")
    page.network(bytes_per_s=SLOW_NETWORK)
    page.find("#input").send_keys(Keys.ENTER)
    page.until(lambda: len(page.texts()) == 2, "the message and its answer are shown")
    page.settled()
    page.network()
    question, answer = page.texts()
    want(question == "Tell me a story\nabout the sea.", f"the message sent is shown as {question!r}")
    want(answer.strip(), f"no answer came: {page.text('.message:last-child')!r}")
    lengths = page.js("return lengths")
    want(len([n for n in lengths if n]) >= 3, f"the text did not grow while it streamed: its lengths were {lengths}")
    stats = page.stats()
    want("tokens/s" in stats and "first after" in stats and "prompt" in stats, f"the figures are {stats!r}")
    want(page.find("#input").get_attribute("value") == "", "the sent message is still in the input")
    page.until(lambda: "#" in page.driver.current_url, "the address names the conversation")
    page.until(lambda: page.find("#meter").is_displayed(), "the context meter is shown")
    want(" of " in page.text("#meter-text"), f"the context meter shows {page.text('#meter-text')!r}")
    return f"{len(lengths)} sizes seen; {stats}"


def stops(page: Page) -> str:
    page.settings(p_max_tokens="")
    for prompt in ("Count from one to one thousand.", "Write a very long story.", "List all animals you know."):
        page.js(
            """window.clicked = "";
            const watcher = new MutationObserver(() => {
              const text = document.querySelector(".assistant:last-child > .markdown")?.textContent ?? "";
              if (!document.body.classList.contains("running") || text.length < 12 || clicked) return;
              const { left, top, width, height } = byId("send").getBoundingClientRect();
              const target = document.elementFromPoint(left + width / 2, top + height / 2).closest("button");
              window.clicked = target?.getAttribute("aria-label") || "nothing";
              target?.click();
              watcher.disconnect();
            });
            const changes = { childList: true, characterData: true, subtree: true };
            watcher.observe(byId("conversation"), changes);"""
        )  # in the page, at once: a model of a test may answer faster than a driver clicks
        page.ask(prompt)
        clicked, partial, stats = page.js("return clicked"), page.texts()[-1], page.stats()
        if clicked and "stopped" in stats:
            break
    else:
        want(False, f"three answers ended before they could be stopped; the last: {partial!r}, {stats}")
    want(clicked == "Stop", f"the button in the composer was {clicked!r}, want 'Stop'")
    want(partial.strip(), "the text before the stop is gone")
    time.sleep(0.3)
    want(page.texts()[-1] == partial, "the text grew after the stop")
    page.reload()
    want(page.texts()[-1] == partial, f"after a reload the stopped text is {page.texts()[-1]!r}, was {partial!r}")
    page.find("#input").send_keys("x")
    send = page.find("#send")
    want(send.is_enabled() and send.get_attribute("aria-label") == "Send", "after a stop the page cannot send")
    page.find("#input").send_keys(Keys.BACKSPACE)
    return f"stopped after {len(partial)} characters"


def continues(page: Page) -> str:
    """The last answer continues where it ended, in the same message."""
    page.settings(p_max_tokens="6", p_temperature="0")
    page.new_chat()
    page.settings(p_max_tokens="6", p_temperature="0")
    page.ask("Tell me about the sea.")
    before = page.texts()
    page.click(".message:last-child .continue")
    page.settled()
    after = page.texts()
    want(len(after) == 2 and after[1].startswith(before[1].rstrip()) and len(after[1]) > len(before[1]), f"{before} became {after}")
    page.settings(p_max_tokens=SHORT_ANSWER)
    return f"{len(before[1])} and then {len(after[1])} characters"


def says_errors(page: Page) -> str:
    page.new_chat()
    page.settings(p_temperature="0", p_max_tokens="8")
    page.network(offline=True)
    page.send("Are you there?")
    page.until(lambda: page.count(".failure .retry"), "a lost server is reported with a retry")
    words = page.text(".failure")
    want("cannot be reached" in words, f"a lost server is reported as {words!r}")
    page.picture("error")
    page.network()
    page.click(".failure .retry")
    page.settled()
    want(page.texts()[-1].strip(), f"the retry gave no answer: {page.text('.message:last-child')!r}")
    want(page.text(".message:last-child .branches") == "2/2", "the answer that failed is gone")
    return words.splitlines()[0]


def follows_the_end(page: Page) -> str:
    tall = "Top" + "\n" * 60 + "bottom"  # few tokens for the prefill
    short = {"values": {"temperature": "0", "max_tokens": "8"}}
    page.seed([{"role": role, "content": tall, "end": "stop"} for role in ("user", "assistant") * 2], short)
    left = "const s = byId('scroller'); return s.scrollHeight - s.clientHeight - s.scrollTop"
    page.until(lambda: page.js(left) < 5, "a long conversation opens at its end")
    page.send("Generate something short.")
    page.until(lambda: page.running() or len(page.texts()) == 6, "the answer begins")
    page.js("byId('scroller').scrollTop = 0")
    page.settled()
    want(page.js(left) > 500, "the page jumped to the end although the reader had scrolled up")
    page.click("#latest")
    page.until(lambda: page.js(left) < 5, "the button leads to the end")
    page.until(lambda: not page.find("#latest").is_displayed(), "the button to the end goes away there")
    return "stays where the reader is"


def continues_texts(page: Page) -> str:
    """A model without a chat template: the page explains that it completes text instead, and does so."""
    page.open()
    page.until(lambda: "continues each text" in page.text("#empty"), "the page says that the model continues texts")
    want(page.find("#input").get_attribute("placeholder") == "Text to continue", "the input asks for a message")
    page.settings(p_temperature="0")
    want(not page.find("#system").is_enabled(), "a system prompt can be written that nothing reads")
    page.picture("continues-empty")
    for text in ("Once upon a time", "One day"):
        page.ask(text)
        want(page.texts()[-1].strip(), f"no continuation came: {page.text('.message:last-child')!r}")
        want("tokens/s" in page.stats(), f"the figures are {page.stats()!r}")
    page.picture("continues")
    page.settings(p_max_tokens="4")
    page.click(".message:last-child .regenerate")
    page.settled()
    want("4 tokens" in page.stats(), f"Max tokens does nothing: {page.stats()!r}")
    before = page.texts()[-1]
    page.click(".message:last-child .continue")
    page.settled()
    want(page.texts()[-1].startswith(before) and len(page.texts()[-1]) > len(before), f"{before!r} became {page.texts()[-1]!r}")
    # as if the server had been started again with this model
    page.run("const { models } = await page('models.js'); models.list[0].continues = false;")
    page.click(".message:last-child .regenerate")
    page.settled()
    want(page.texts()[-1].strip(), f"the page does not notice the other model: {page.text('.message:last-child')!r}")
    return page.texts()[1][:40]
