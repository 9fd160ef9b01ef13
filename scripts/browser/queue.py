"""Messages that are written during an answer: they wait, can be removed and edited, and are sent after it."""

from selenium.webdriver.common.keys import Keys

from .driver import Page, want
from .files import drop
from .settings import Scripted, delta


def waiting(page: Page) -> list[str]:
    return page.js("return all('#queued-list li').map(node => node.textContent)")


def begin(page: Page, script: Scripted, question: str) -> None:
    """An answer that does not end until `script.gate` is set."""
    script.gate.clear()
    count = len(page.texts())
    page.send(question)
    page.until(lambda: page.texts()[count:] == [question, "One."] and page.running(), f"the answer to {question!r} begins")
    page.until(lambda: page.count(".chat:has([aria-current])"), "its conversation is listed")


def queues_messages(page: Page, script: Scripted) -> str:
    script.chunks = [delta(content="One."), delta(end="stop")]
    page.new_chat()
    want(not page.find("#queued").is_displayed(), "a page without waiting messages shows some")
    begin(page, script, "First")
    asked = len(script.requests)
    shown = page.js("return ['.copy', '.edit'].map(name => document.querySelector(`.user ${name}`).checkVisibility({ visibilityProperty: true }))")
    want(shown == [True, False], f"during an answer a message can be copied, but not edited: {shown}")
    want(not page.find("#enqueue").is_displayed(), "an empty message can be queued")
    page.send("Second")
    page.until(lambda: waiting(page) == ["Second"], f"a message waits: {waiting(page)}")
    want(page.find("#input").get_attribute("value") == "", "the message that waits is still in the input")
    want(page.text("#queued-note") == "Sent after this answer", f"the note is {page.text('#queued-note')!r}")
    page.find("#input").send_keys("Third")
    page.find("#enqueue").click()
    drop(page, [("notes.txt", "text/plain", b"Terns migrate.")])
    page.until(lambda: page.count("#files .file") == 1, "a file can be attached")
    page.send("Fourth")
    page.until(lambda: waiting(page) == ["Second", "Third", "FourthFiles: 1"], f"three messages wait: {waiting(page)}")
    page.picture("queued")
    page.click("#queued-list li:nth-child(2) .remove")
    page.until(lambda: waiting(page) == ["Second", "FourthFiles: 1"], f"a message can be removed: {waiting(page)}")
    page.click("#queued-list li:nth-child(2) .edit")
    page.until(lambda: page.find("#input").get_attribute("value") == "Fourth" and page.count("#files .file") == 1, "a message can be edited, with its file")
    page.send(" and more")
    page.until(lambda: len(waiting(page)) == 2, "the edited message waits again")
    want(len(script.requests) == asked, "a message was sent during an answer")
    script.gate.set()
    page.until(lambda: page.texts() == ["First", "One.", "Second", "One.", "Fourth and more", "One."] and not page.running(), f"the messages are sent in order: {page.texts()}")
    want(waiting(page) == [] and not page.find("#queued").is_displayed(), "messages that were sent still wait")
    want(len(script.requests) == asked + 2, f"{len(script.requests) - asked} requests were sent for 2 messages")
    roles = [message["role"] for message in script.last["messages"]]
    want(roles == ["user", "assistant"] * 2 + ["user"], f"the roles of the last request are {roles}")
    want("Terns migrate." in script.last["messages"][-1]["content"], "the file of a message that waited is not sent")
    # a stopped answer is followed by nothing until the reader asks for it
    begin(page, script, "Fifth")
    page.send("Sixth")
    page.until(lambda: waiting(page) == ["Sixth"], "a message waits")
    page.find("#input").send_keys(Keys.ESCAPE)
    page.settled()
    script.gate.set()
    page.until(lambda: page.find("#queued-send button").is_displayed(), "after a stop a button sends what waits")
    want(waiting(page) == ["Sixth"] and page.text("#queued-note") == "Not sent yet", "a stop sends or loses what waits")
    page.click("#queued-send button")
    page.until(lambda: page.texts()[-2:] == ["Sixth", "One."] and not page.running(), "the button sends the message")
    # it is sent although another conversation is shown
    begin(page, script, "Seventh")
    page.send("Eighth")
    page.until(lambda: waiting(page) == ["Eighth"], "a message waits")
    title, asked = page.text(".open-chat[aria-current]"), len(script.requests)
    page.new_chat()
    want(waiting(page) == [], "the message waits in another conversation")
    script.gate.set()
    page.until(lambda: len(script.requests) == asked + 1 and not page.count(".chat .dot"), "the message is sent behind another conversation")
    want(page.texts() == [], f"another conversation shows {page.texts()}")
    page.open_chat(title)
    page.until(lambda: page.texts()[-4:] == ["Seventh", "One.", "Eighth", "One."], f"the conversation has {page.texts()[-4:]}")
    # what still waits when the page is left becomes the draft
    begin(page, script, "Ninth")
    page.send("Tenth")
    page.until(lambda: waiting(page) == ["Tenth"], "a message waits")
    page.reload()
    script.gate.set()
    page.until(lambda: page.find("#input").get_attribute("value") == "Tenth", "after a reload what waited is the draft")
    page.find("#input").clear()
    page.find("#input").send_keys("x", Keys.BACKSPACE)
    return f"{len(script.requests)} requests"


def deletes_while_answering(page: Page, script: Scripted) -> str:
    """A conversation that is deleted during an answer stays deleted, with what waits; an undo brings it back."""
    script.chunks = [delta(content="One."), delta(end="stop")]
    page.new_chat()
    begin(page, script, "To be deleted")
    page.send("Never sent")
    page.until(lambda: waiting(page) == ["Never sent"], "a message waits")
    asked = len(script.requests)
    page.menu(".chat:has([aria-current]) .more", "Delete")
    script.gate.set()
    page.until(lambda: page.texts() == [] and "To be deleted" not in page.listed(), "the conversation is gone")
    # what the answer's end would store is stored before a later write
    page.run("const { store } = await page('store.js'); await store.putPreset({ name: 'after' }); await store.removePreset('after');")
    page.reload()
    want("To be deleted" not in page.listed(), "the end of its answer stored a deleted conversation again")
    left = page.js("return Object.values(localStorage).filter(text => text.includes('Never sent'))")
    want(not left, f"of what waited this is left: {left}")
    page.new_chat()
    begin(page, script, "To be restored")
    page.menu(".chat:has([aria-current]) .more", "Delete")
    page.until(lambda: "To be restored" not in page.listed(), "the conversation is gone")
    script.gate.set()
    page.click(".toast:last-child .plain")
    page.until(lambda: page.texts() == ["To be restored", "One."], f"an undo brings it back with what was generated: {page.texts()}")
    want(len(script.requests) == asked + 1, "a message of a deleted conversation was sent")
    page.reload()
    want(page.texts() == ["To be restored", "One."], f"after a reload it has {page.texts()}")
    return "2 conversations"
