"""Settings of a conversation, and what they add to its requests: recorded by the proxy, which also gives the answers."""

from __future__ import annotations

import json
import threading

from .driver import ONE_WAIT_S, Page, want
from .proxy import Handler, Proxy


class Scripted:
    """Answers chats with prepared chunks, and records what was requested."""

    def __init__(self, proxy: Proxy) -> None:
        self.requests: list[dict[str, object]] = []
        self.chunks: list[dict[str, object]] | None = None
        self.gate = threading.Event()  # while it is not set, answers stay at their first chunk
        self.gate.set()
        proxy.scripted.append(self.answer)

    def answer(self, handler: Handler, body: bytes) -> bool:
        if handler.path != "/v1/chat/completions":
            return False
        self.requests.append(json.loads(body))
        if self.chunks is None:
            return False
        handler.begin(200, [("content-type", "text/event-stream")])
        for chunk in self.chunks:
            handler.piece(f"data: {json.dumps(chunk)}\n\n".encode())
            self.gate.wait(ONE_WAIT_S)
        handler.piece(b"data: [DONE]\n\n")
        handler.piece(b"")
        return True

    @property
    def last(self) -> dict[str, object]:
        return self.requests[-1]


def delta(end: str | None = None, logprobs: object = None, **values: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": values, "logprobs": logprobs, "finish_reason": end}]}


def usage(prompt: int, tokens: int, cached: int = 0) -> dict[str, object]:
    counts = {"prompt_tokens": prompt, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": cached}}
    return {"choices": [], "usage": counts}


def sends_settings(page: Page, script: Scripted) -> str:
    script.chunks = [delta(content="Fine."), delta(end="stop"), usage(10, 2)]
    page.new_chat()
    page.ask("No settings")
    want(set(script.last) == {"model", "stream", "stream_options", "messages"}, f"without settings the request has {sorted(script.last)}")
    page.settings(
        system="Be brief.", p_temperature="0.3", p_top_p="0.9", p_top_k="5", p_min_p="0.1", p_repetition_penalty="1.1",
        p_max_tokens="7", p_seed="42", p_dry_multiplier="0.5", effort="low", logprobs=True, format="json_schema",
        constraint='{"type": "object"}',
    )  # fmt: skip
    want("changed" in page.find("#open-settings").get_attribute("class"), "the button does not show that settings differ")
    page.ask("All settings")
    sent = script.last
    for name, value in {
        "temperature": 0.3, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "max_tokens": 7, "seed": 42,
        "dry_multiplier": 0.5, "reasoning_effort": "low", "logprobs": True, "top_logprobs": 5,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}},
    }.items():  # fmt: skip
        want(sent.get(name) == value, f"{name} is sent as {sent.get(name)!r}, want {value!r}")
    want(sent["messages"][0] == {"role": "system", "content": "Be brief."}, f"the messages begin with {sent['messages'][0]}")
    for kind, text, value in (("json_object", "", {"response_format": {"type": "json_object"}}),
                              ("regex", "[a-z]+", {"structured_outputs": {"regex": "[a-z]+"}}),
                              ("grammar", 'root ::= "a"', {"structured_outputs": {"grammar": 'root ::= "a"'}})):  # fmt: skip
        page.settings(format=kind, constraint=text)
        page.ask(kind)
        found = {name: script.last.get(name) for name in value}
        want(found == value, f"format {kind} is sent as {found}")
    page.settings(format="json_schema", constraint="{nonsense")
    want("Not JSON" in page.text("#constraint-problem"), f"a wrong schema is explained as {page.text('#constraint-problem')!r}")
    page.ask("wrong schema")
    want("response_format" not in script.last, "a schema that is not JSON is sent")
    # presets, defaults and reset
    page.click("#open-settings")
    page.menu("#presets", "Save as a preset")
    page.find("dialog.ask input").send_keys("Mine")
    page.click("dialog.ask .strong")
    page.until(lambda: "saved" in page.toasts(), "the preset is saved")
    page.click("#reset-settings")
    want(page.find("#system").get_attribute("value") == "", "Reset leaves the system prompt")
    page.menu("#presets", "Mine")
    page.until(lambda: page.find("#system").get_attribute("value") == "Be brief.", "the preset brings the system prompt back")
    page.picture("settings")
    page.click("#keep-settings")
    page.new_chat()
    page.ask("By default")
    want(script.last.get("seed") == 42, "new conversations do not begin with the settings that were chosen for them")
    page.js("localStorage.removeItem('tern.settings')")
    # the defaults of the model are shown, and what arrives later leaves the other fields as they are
    page.reload()
    page.new_chat()
    page.run(
        """const before = byId("p-seed") ?? null, { openSettings } = await page("settings.js");
        if (before) throw new Error("the fields exist before the settings are opened");
        openSettings();
        window.typed = byId("p-seed");
        typed.focus();"""
    )
    page.until(lambda: page.count("#other-parameters input"), "all parameters are shown")
    want(page.js("return document.activeElement === typed && typed.isConnected"), "parameters that arrive later end what is typed in a field")
    props = json.loads(page.fetch("/props")[0])["default_generation_settings"]["params"]
    page.until(lambda: page.js("return byId('p-temperature').placeholder") == f"{props['temperature']:.2f}", "the default temperature is shown")
    page.click("#close-settings")
    return f"{len(sent)} members of a request"


def mixes_adapters(page: Page, script: Scripted, proxy: Proxy) -> str:
    """A model with two adapters: the list of models comes from the proxy."""

    def models(handler: Handler, body: bytes) -> bool:
        if handler.path != "/v1/models":
            return False
        base = {"id": "base", "root": "base", "capabilities": ["completion", "chat"], "status": {"value": "loaded"}}
        adapters = [{"id": name, "root": name, "parent": "base"} for name in ("pirate", "poet")]
        handler.reply(200, json.dumps({"object": "list", "data": [base, *adapters]}).encode(), "application/json")
        return True

    proxy.scripted.append(models)
    script.chunks = [delta(content="Arr."), delta(end="stop")]
    page.open()
    page.until(lambda: page.text("#model") == "base", "the model is shown, and adapters are no models")
    page.click("#open-settings")
    page.until(lambda: page.count("#adapters input") == 2, "the adapters have fields")
    want(page.text("#adapters") == "piratepoet", f"the adapters are {page.text('#adapters')!r}")
    page.find("#adapters label:nth-child(2) input").send_keys("0.5")
    page.click("#close-settings")
    page.ask("Ahoy")
    want(script.last.get("lora") == [{"name": "poet", "scale": 0.5}], f"the adapters are sent as {script.last.get('lora')}")
    page.reload()
    page.until(lambda: page.text("#model") == "base", "the model is shown after a reload")
    page.click("#open-settings")
    page.until(lambda: page.count("#adapters input") == 2 and page.find("#adapters label:nth-child(2) input").get_attribute("value") == "0.5", "the conversation keeps its adapters")
    page.click("#close-settings")
    proxy.scripted.remove(models)
    page.open()
    return "2 adapters"


def thinks(page: Page, script: Scripted) -> str:
    script.chunks = [delta(reasoning_content="I think. "), delta(reasoning_content="Still."), delta(content="Done."), delta(end="stop"), usage(20, 9, 16)]
    page.new_chat()
    script.gate.clear()
    page.send("Think")
    page.until(lambda: page.running() and "Thinking" in page.text(".thinking summary"), "the thoughts are shown while they stream")
    want(page.js("return document.title").startswith("… "), "the tab does not show that an answer is generated")
    script.gate.set()
    page.settled()
    want(page.js("return document.title").startswith("Think"), "the tab does not show that the answer is complete")
    want(page.text(".thinking summary").startswith("Thought for"), f"the thinking is shown as {page.text('.thinking summary')!r}")
    want(not page.find(".thinking .markdown").is_displayed(), "the thoughts are not folded after the answer")
    want("16 cached" in page.stats() and "9 tokens" in page.stats(), f"the figures are {page.stats()!r}")
    return page.stats()


def shows_probabilities(page: Page, script: Scripted) -> str:
    token = lambda text, p: {"token": text, "logprob": p, "top_logprobs": [{"token": text, "logprob": p}, {"token": "Else", "logprob": -3}]}
    script.chunks = [delta(content="A", logprobs={"content": [token("A", -0.1)]}), delta(content=" b", logprobs={"content": [token(" b", -2.0)]}), delta(end="stop")]
    page.new_chat()
    page.ask("Probabilities")
    page.menu(".message:last-child .more", "Show probabilities")
    want(page.text(".probabilities p") == "A b", f"the tokens are {page.text('.probabilities p')!r}")
    page.js("all('.probabilities p > span')[1].dispatchEvent(new MouseEvent('mouseover', { bubbles: true }))")
    want("13.5 %" in page.text(".probabilities .note") and "Else" in page.text(".probabilities .note"), f"a token shows {page.text('.probabilities .note')!r}")
    page.js("all('.probabilities p')[0].focus(); all('.probabilities p')[0].dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowLeft', bubbles: true }))")
    want("90.5 %" in page.text(".probabilities .note"), f"an arrow key leads to {page.text('.probabilities .note')!r}")
    page.picture("probabilities")
    page.menu(".message:last-child .more", "Hide probabilities")
    want(page.find(".message:last-child > .markdown").is_displayed(), "the text does not come back")
    return "2 tokens"


def calls_tools(page: Page, script: Scripted) -> str:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": '}}
    script.chunks = [delta(tool_calls=[call]), delta(tool_calls=[{"index": 0, "function": {"arguments": '"Oslo"}'}}]), delta(end="tool_calls")]
    page.new_chat()
    page.settings(tools='{"name": "weather", "parameters": {"type": "object"}}')
    page.ask("Weather?")
    want(script.last["tools"] == [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}], f"the tools are {script.last['tools']}")
    want("weather" in page.text(".calls figcaption") and "Oslo" in page.text(".calls code"), f"the call is {page.text('.calls')!r}")
    page.until(lambda: page.count(".results textarea"), "a field for the result")
    page.run("const { app } = await page('app.js'); app.emit('chat', {}); app.emit('chat', {});")
    page.frames()
    want(page.count(".results") == 1, f"{page.count('.results')} forms for the results of one answer")
    page.find(".results textarea").send_keys("4 degrees")
    script.chunks = [delta(content="It is 4 degrees."), delta(end="stop")]
    page.click(".send-results")
    page.until(lambda: page.texts()[-1:] == ["It is 4 degrees."], "the answer after the result")
    page.settled()
    turns = script.last["messages"]
    want(turns[-1] == {"role": "tool", "tool_call_id": "c1", "content": "4 degrees"}, f"the result is sent as {turns[-1]}")
    want(turns[-2]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}, f"the call is sent as {turns[-2]}")
    page.picture("tools")
    # other results: a branch beside the first ones
    page.click(".message.tool .edit")
    page.until(lambda: page.count(".tool .results textarea"), "the results can be edited")
    want(page.find(".tool .results textarea").get_attribute("value") == "4 degrees", "the results are not in their fields")
    page.find(".tool .results textarea").clear()
    page.find(".tool .results textarea").send_keys("5 degrees")
    script.chunks = [delta(content="It is 5 degrees."), delta(end="stop")]
    page.click(".tool .send-results")
    page.until(lambda: page.texts()[-1:] == ["It is 5 degrees."], "the answer after the edited result")
    page.settled()
    want(script.last["messages"][-1]["content"] == "5 degrees" and page.text(".tool .branches") == "2/2", f"the edited result is sent as {script.last['messages'][-1]}")
    page.settings(tools="[1]")
    want("name" in page.text("#tools-problem"), f"wrong tools are explained as {page.text('#tools-problem')!r}")
    return "typed result"


def uses_mcp(page: Page, script: Scripted, proxy: Proxy) -> str:
    """Tools of an MCP server: nothing is contacted before its use was allowed."""
    asked: list[dict[str, object]] = []

    def server(handler: Handler, body: bytes) -> bool:
        if handler.path != "/mcp":
            return False
        request = json.loads(body)
        asked.append(request)
        results = {
            "initialize": {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "test", "version": "1"}},
            "tools/list": {"tools": [{"name": "clock", "description": "The time", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "12:00"}]},
        }
        if "id" not in request:
            handler.reply(202, b"", "text/plain")
        elif request["method"] == "tools/call":  # as a stream, which servers may choose
            event = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": results[request["method"]]})
            handler.reply(200, f"event: message\ndata: {event}\n\n".encode(), "text/event-stream")
        else:
            text = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": results[request["method"]]})
            handler.reply(200, text.encode(), "application/json", {"mcp-session-id": "s1"})
        return True

    def flood(handler: Handler, body: bytes) -> bool:
        if handler.path != "/flood":
            return False
        handler.reply(200, b'{"x": "' + b"x" * (20 << 20) + b'"}', "application/json")
        return True

    proxy.scripted += [server, flood]
    page.new_chat()
    page.settings(mcp_server=f"{page.base}/mcp", tools="")
    page.click("#open-settings")
    page.js("byId('tools').closest('details').open = true")
    page.click("#fetch-tools")
    page.until(lambda: page.count("#mcp-tools .permission"), "permission is asked before the server is contacted")
    want(not asked, f"the server was contacted before that: {asked}")
    page.picture("mcp")
    page.click("#mcp-tools .permission button")
    page.until(lambda: "clock" in (page.find("#tools").get_attribute("value") or ""), "the tools of the server are taken over")
    page.click("#close-settings")
    script.chunks = [delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "clock", "arguments": "{}"}}]), delta(end="tool_calls")]
    page.ask("What time is it?")
    page.until(lambda: page.count(".run-tool"), "a button runs the tool on the server")
    want(len(asked) == 3, f"the server was contacted without a click: {[one['method'] for one in asked]}")
    page.click(".run-tool")
    page.until(lambda: page.find(".results textarea").get_attribute("value") == "12:00", "the result of the server is filled in")
    want(asked[-1]["params"] == {"name": "clock", "arguments": {}}, f"the call is {asked[-1]}")
    # a response without end does not fill the memory
    page.settings(mcp_server=f"{page.base}/flood")
    page.click("#open-settings")
    page.click("#fetch-tools")
    page.click("#mcp-tools .permission button")
    page.until(lambda: "16777216 B" in page.text("#mcp-tools"), f"a large response is refused: {page.text('#mcp-tools')!r}")
    page.click("#close-settings")
    # another origin needs a page whose policy allows it
    page.settings(mcp_server="http://127.0.0.1:9/mcp")
    page.click("#open-settings")
    page.click("#fetch-tools")
    page.until(lambda: "reloaded" in page.text("#mcp-tools"), "another origin needs a reload")
    page.reload(lambda: page.click("#mcp-tools .permission button"))
    want("connect=http%3A%2F%2F127.0.0.1%3A9" in page.driver.current_url, f"the page is loaded again without the permission: {page.driver.current_url}")
    page.click("#open-settings")
    want("may connect to http://127.0.0.1:9" in page.text("#mcp-permitted"), f"the permissions shown are {page.text('#mcp-permitted')!r}")
    page.reload(lambda: page.click("#mcp-permitted button"))
    want("connect=" not in page.driver.current_url, f"the permission is not withdrawn: {page.driver.current_url}")
    proxy.scripted.remove(server)
    proxy.scripted.remove(flood)
    return f"{len(asked)} requests"


def shows_server_errors(page: Page, script: Scripted) -> str:
    """What the server says about a request is shown beside it."""
    script.chunks = [delta(content="Half of"), {"error": {"message": "the engine failed <b>on purpose</b>"}}]
    page.new_chat()
    page.send("Fail")
    page.until(lambda: page.count(".failure .retry"), "the failure is shown")
    want("the engine failed <b>on purpose</b>" in page.text(".failure"), f"the failure is {page.text('.failure')!r}")
    want(page.texts()[-1] == "Half of", "the text before the failure is gone")
    script.chunks = None
    page.settings(p_temperature="0", p_max_tokens="100000000", system="word " * 20000)
    page.send("Too long")
    page.until(lambda: page.text(".message:last-child .failure"), "a prompt that is too long fails")
    want("tokens" in page.text(".message:last-child .failure"), f"it fails with {page.text('.message:last-child .failure')!r}")
    page.settings(system="", p_max_tokens="8")
    page.click(".message:last-child .retry")
    page.settled()
    want(page.texts()[-1].strip(), "after the setting is corrected it fails again")
    return page.text(".message:last-child .stats")
