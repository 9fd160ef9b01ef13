"""The models of the server and its state."""

from __future__ import annotations

import json
import threading

from .driver import ONE_WAIT_S, Page, want
from .proxy import Handler, Proxy


def shows_the_server(page: Page) -> str:
    page.new_chat()
    page.click("#open-panel")
    page.until(lambda: page.count("#state-facts dd") >= 6, "the state is shown")
    page.until(lambda: "KV cache" in page.text("#kv-text"), "the use of the KV cache is shown")
    facts = dict(page.js("return all('#state-facts > div').map(node => [...node.children].map(one => one.textContent))"))
    want(facts["Running streams"] == "0" and facts["Queued requests"] == "0", f"the state is {facts}")
    page.until(lambda: "B in memory" in page.text("#model-list small"), "the memory of the model is shown")
    details = json.loads(page.fetch("/api/tags")[0])["models"][0]["details"]
    kind = f"{details['family']} {details['parameter_size']} {details['quantization_level']}"
    want(f" · {kind} · " in page.text("#model-list small"), f"the model is {page.text('#model-list')!r}, want {kind!r}")
    want("loaded" in page.text("#model-list small") and "context of" in page.text("#model-list small"), f"the model is {page.text('#model-list')!r}")
    page.until(lambda: "tokens/s" in page.text("#state-facts"), "the speeds are shown after the second reading")
    page.picture("server")
    page.click("#close-panel")
    return page.text("#model-list small")


def pulls(page: Page, proxy: Proxy) -> str:
    """A download with its progress, from the proxy; and the refusal of the server itself."""
    page.click("#open-panel")
    page.find("#pull-name").send_keys("smollm2")
    page.click("#pull-button")
    page.until(lambda: page.text("#panel-note"), "a download that the server does not allow is explained")
    refusal = page.text("#panel-note")
    want(len(refusal) > 20 and "{" not in refusal, f"the refusal is {refusal!r}")
    asked = []
    seen = threading.Event()  # the progress, which would go away at the end

    def pull(handler: Handler, body: bytes) -> bool:
        if handler.path != "/api/pull":
            return False
        asked.append(json.loads(body))
        handler.begin(200, [("content-type", "application/x-ndjson")])
        handler.piece(b'{"status": "pulling manifest"}\n{"status": "pulling", "total": 1000000, "completed": 600000}\n')
        seen.wait(ONE_WAIT_S)
        handler.piece(b'{"status": "success"}\n')
        handler.piece(b"")
        return True

    proxy.scripted.append(pull)
    page.js("byId('pull-name').value = 'smollm2'")
    page.click("#pull-button")
    page.until(lambda: "600 kB of 1.0 MB" in page.text("#panel-note"), f"the progress is shown: {page.text('#panel-note')!r}")
    want(page.find("#pull-progress").is_displayed() and page.js("return byId('pull-progress').position") == 0.6, "the bar does not show the progress")
    seen.set()
    page.until(lambda: "is downloaded" in page.text("#panel-note"), "the end of the download is shown")
    want(asked == [{"model": "smollm2"}], f"the requests were {asked}")
    proxy.scripted.remove(pull)
    page.click("#close-panel")
    return refusal


def picks_models(page: Page) -> str:
    """Several models: each is selected by name, loaded by its first message, and still selected after a reload."""
    listed = lambda: json.loads(page.fetch("/v1/models")[0])["data"]
    names = [model["id"] for model in listed()]
    want(len(names) > 1, f"want a server with several models, got {names}")
    page.open()
    page.until(lambda: page.find("#models").is_displayed(), "the picker is shown")
    want(not page.find("#model").is_displayed(), "a name is shown beside the picker")
    options = lambda: page.js("return [...byId('models').options].map(option => [option.value, option.textContent])")
    want([value for value, _ in options()] == names, f"the picker has {options()}, the server {names}")
    want(all("(not loaded)" in label for _, label in options()), f"nothing is loaded, but the picker shows {options()}")
    for name in (names[1], names[0]):
        page.new_chat()
        page.js("const p = byId('models'); p.value = arguments[0]; p.dispatchEvent(new Event('change'))", name)
        want(name in page.js("return document.title"), f"the title is not {name}'s")
        page.settings(p_max_tokens="8")
        page.ask("One")
        want(page.texts()[-1].strip(), f"{name} gave no answer: {page.text('.message:last-child')!r}")
        loaded = [model["id"] for model in listed() if model["status"]["value"] == "loaded"]
        want(name in loaded, f"{name} was selected, but {loaded} are loaded")
        page.until(lambda name=name: dict(options())[name] == name, f"the picker shows that {name} is loaded")
    page.picture("models")
    page.menu(".message:last-child .more", f"Answer again with {names[1]}")
    page.settled()
    want(page.text(".message:last-child .branches") == "2/2" and names[1] in page.stats(), f"the other model's answer: {page.stats()!r}")
    page.reload()
    page.until(lambda: page.js("return byId('models').value") == names[1], "the model of the conversation is remembered")
    # load and unload in the panel
    page.click("#open-panel")
    # the list is filled when the server has answered
    row = "const row = all('#model-list li').find(node => node.textContent.includes(arguments[0]));"
    label = lambda: page.js(row + "return row?.querySelector('button')?.textContent", names[0])
    press = lambda: page.js(row + "row.querySelector('button').click()", names[0])
    status = lambda: {model["id"]: model["status"]["value"] for model in listed()}
    page.until(lambda: label() == "Unload", f"the panel shows that {names[0]} is loaded")
    press()
    page.until(lambda: status()[names[0]] == "unloaded", f"{names[0]} is unloaded")
    page.until(lambda: label() == "Load", "the panel shows that it is not loaded")
    page.picture("panel-models")
    press()
    page.until(lambda: status()[names[0]] == "loaded", f"{names[0]} is loaded again")
    page.click("#close-panel")
    return ", ".join(names)
