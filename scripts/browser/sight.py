"""Pictures with a model that sees, chosen, dropped and pasted: each is answered as `transformers` answers."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from selenium.webdriver.common.keys import Keys

from .driver import Page, want
from .files import drop

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures/pictures/held-out.json"


def choose(page: Page, file: Path) -> None:
    page.find("#file-input").send_keys(str(file))


def drop_file(page: Page, file: Path) -> None:
    """A file from outside of the browser; Firefox's driver has no such drags."""
    if page.browser == "firefox":
        return drop(page, [(file.name, "image/png", file.read_bytes())])
    for kind in ("dragEnter", "dragOver", "drop"):
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        page.driver.execute_cdp_cmd("Input.dispatchDragEvent", {"type": kind, "x": 600, "y": 300, "data": data})


def paste(page: Page, file: Path) -> None:
    """A picture from the clipboard, which has no name. Firefox lets scripts put none there."""
    if page.browser == "firefox":
        return drop(page, [("image.png", "image/png", file.read_bytes())], "paste")
    page.driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
    page.run(
        """const bytes = Uint8Array.from(atob(args[0]), c => c.charCodeAt(0));
        await navigator.clipboard.write([new ClipboardItem({ "image/png": new Blob([bytes], { type: "image/png" }) })]);""",
        base64.b64encode(file.read_bytes()).decode(),
    )
    page.find("#input").send_keys(Keys.CONTROL, "v")


def sees_pictures(page: Page) -> str:
    right = {one["answer"]: one for one in json.loads(FIXTURE.read_text()) if one["transformers"] == one["answer"]}
    want(len(right) >= 3, "the pictures of the fixture have the same answers")
    page.open()
    page.until(lambda: "image/*" in (page.find("#file-input").get_attribute("accept") or ""), "pictures can be chosen")
    page.settings(p_temperature="0", p_max_tokens="16")
    with TemporaryDirectory() as folder:
        for attach, one in zip((choose, drop_file, paste), right.values()):
            file = Path(folder, f"{attach.__name__}.png")
            file.write_bytes(base64.b64decode(one["image"]))
            page.new_chat()
            page.settings(p_temperature="0", p_max_tokens="16")
            attach(page, file)
            page.until(lambda: page.count("#files .picture") == 1, f"{attach.__name__}: the picture is shown: {page.toasts()!r}")
            page.ask(one["question"])
            want(page.texts() == [one["question"], one["answer"]], f"{attach.__name__}: {page.texts()}, want {one['answer']!r}")
            want(page.count(".user .picture") == 1 and page.count("#files .picture") == 0, f"{attach.__name__}: the picture is not part of the message")
    page.picture("sees")
    page.reload()
    page.until(lambda: page.count(".user .picture") == 1, "the picture exists after a reload")
    page.click(".message:last-child .regenerate")
    page.settled()
    if page.browser == "chromium":  # the camera of a phone
        want(not page.find("#camera").is_displayed(), "a desktop offers a camera")
        page.screen((375, 700))
        page.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
        page.reload()
        page.until(lambda: page.find("#camera").is_displayed(), "a phone offers its camera")
        kinds = [page.find("#camera-input").get_attribute(name) for name in ("accept", "capture")]
        want(kinds == ["image/*", "environment"], f"the camera's field has {kinds}")
        page.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
        page.screen(None)
    want(page.texts()[-1] == one["answer"], f"answered again after a reload: {page.texts()}, want {one['answer']!r}")
    return ", ".join(list(right)[:3])
