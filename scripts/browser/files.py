"""Attachments: text, code, CSV and PDF as context, pictures for models that see, and what is refused."""

from __future__ import annotations

import base64
import json
import struct
import zlib

from selenium.webdriver.common.keys import Keys

from .driver import Page, want
from .proxy import Handler, Proxy
from .settings import Scripted, delta

DROP = """const transfer = new DataTransfer();
  for (const [name, type, data] of arguments[0]) {
    transfer.items.add(new File([Uint8Array.from(atob(data), c => c.charCodeAt(0))], name, { type }));
  }
  const target = arguments[1] === "paste" ? byId("input") : document.body;
  const event = new Event(arguments[1], { bubbles: true, cancelable: true });
  // Firefox makes no event of a clipboard with files
  Object.defineProperty(event, arguments[1] === "paste" ? "clipboardData" : "dataTransfer", { value: transfer });
  target.dispatchEvent(event);"""


def pdf(objects: list[bytes], packed: bool = False, extra: bytes = b"") -> bytes:
    """A PDF of these objects; `packed` puts those without streams into an object stream, as newer files have them."""
    plain = {i: text for i, text in enumerate(objects, 1) if b"stream" not in text}
    body = b"%PDF-1.5\n"
    for i, text in enumerate(objects, 1):
        if not (packed and i in plain):
            body += b"%d 0 obj\n%s\nendobj\n" % (i, text)
    if not packed:
        return body + b"trailer\n<< /Root 1 0 R %s >>\n%%%%EOF" % extra
    head, texts = b"", b""
    for i, text in plain.items():
        head += b"%d %d " % (i, len(texts))
        texts += text + b" "
    data = zlib.compress(head + texts)
    number = len(objects) + 1
    body += b"%d 0 obj\n<< /Type /ObjStm /N %d /First %d /Filter /FlateDecode /Length %d >>\nstream\n%s\nendstream\nendobj\n" % (
        number, len(plain), len(head), len(data), data)  # fmt: skip
    row = zlib.compress(b"\2" + bytes(5))
    body += b"%d 0 obj\n<< /Type /XRef /Root 1 0 R /W [1 2 2] /Filter /FlateDecode /DecodeParms << /Predictor 12 /Columns 5 >> /Length %d >>\nstream\n%s\nendstream\nendobj\n" % (
        number + 1, len(row), row)  # fmt: skip
    return body + b"startxref\n0\n%%EOF"


def stream(content: bytes, entries: bytes = b"") -> bytes:
    data = zlib.compress(content)
    return b"<< /Filter /FlateDecode /Length %d %s >>\nstream\n%s\nendstream" % (len(data), entries, data)


def letters(packed: bool = False) -> bytes:
    """Two pages: a plain font with an encoding and kerning, and a font of two bytes with a map to Unicode."""
    cmap = b"1 beginbfrange <0001> <0003> <0041> endbfrange 1 beginbfchar <0010> <00FC> endbfchar"
    return pdf([
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R 4 0 R] /Count 2 /Resources << /Font << /F1 5 0 R /F2 6 0 R >> >> >>",
        b"<< /Type /Page /Parent 2 0 R /Contents 7 0 R >>",
        b"<< /Type /Page /Parent 2 0 R /Contents [8 0 R] >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /FirstChar 32 /Widths [278] /Encoding << /Differences [228 /adieresis] >> >>",
        b"<< /Type /Font /Subtype /Type0 /ToUnicode 9 0 R /DescendantFonts [<< /DW 1000 >>] >>",
        stream(b"BT /F1 12 Tf 72 720 Td (Hello \\(wor) Tj [(ld\\) ) -20 (f\\344r)] TJ 0 -14 Td (second line) Tj ET"),
        stream(b"BT /F2 10 Tf 72 700 Td <00010002> Tj <00030010> Tj ET"),
        stream(cmap),
    ], packed)  # fmt: skip


def png(width: int, height: int) -> bytes:
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = zlib.compress((b"\0" + b"\x20\x80\xff" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def drop(page: Page, files: list[tuple[str, str, bytes]], how: str = "drop") -> None:
    page.js(DROP, [(name, kind, base64.b64encode(data).decode()) for name, kind, data in files], how)


def attaches_texts(page: Page, script: Scripted) -> str:
    script.chunks = [delta(content="Read."), delta(end="stop")]
    page.new_chat()
    drop(page, [("notes.txt", "text/plain", "Grüße\n".encode()), ("table.csv", "text/csv", b"a,b\n1,2\n"), ("code.rs", "", b"let x = `1`;\n```\n")])
    page.until(lambda: page.count("#files .file") == 3, "three files are shown")
    page.until(lambda: page.text("#files .chip:first-child small").count("tokens") >= 1, "the files have token counts before they are sent")
    want(page.find("#send").is_enabled(), "files without words cannot be sent")
    page.picture("files")
    want("3 of 10 files" in page.text("#files") and "8.4 MB" in page.text("#files"), f"the limits are shown as {page.text('#files')!r}")
    want("1.0 MB" in page.find("#attach").get_attribute("title"), "the button to attach does not have the limits")
    page.click("#files .file:nth-child(3) .chip")
    page.until(lambda: page.text(".file-view pre") == "let x = `1`;\n```\n", f"a file is shown: {page.text('.file-view')!r}")
    page.click(".file-view .icon")
    page.until(lambda: not page.count(".file-view"), "the file is closed")
    page.reload()
    page.until(lambda: page.count("#files .file") == 3, "the files of a draft are there after a reload")
    page.click("#files .file:nth-child(2) .small")
    page.until(lambda: page.count("#files .file") == 2, "a file can be removed")
    page.ask("What do they say?")
    sent = script.last["messages"][-1]["content"]
    want("File notes.txt:\n```\nGrüße\n```" in sent and sent.endswith("What do they say?"), f"the message is sent as {sent!r}")
    want("File code.rs:\n````\n" in sent, f"a fence in a file ends its own fence: {sent!r}")
    want(page.count(".user .chip") == 2 and page.count("#files .file") == 0, "the files are not part of the message")
    drop(page, [("pasted.md", "text/markdown", b"# P")], "paste")
    page.until(lambda: page.count("#files .file") == 1, "a file can be pasted")
    page.click("#files .file .small")
    drop(page, [("utf16.txt", "text/plain", "Ünï".encode("utf-16")), ("latin.txt", "text/plain", "Ünï".encode("latin-1"))])
    page.until(lambda: page.count("#files .file") == 2, "texts in other encodings are read")
    want(page.js("return all('#files .chip').every(node => node.title === 'Ünï')"), "a text in another encoding is read wrongly")
    page.click("#files .file .small")
    page.click("#files .file .small")
    return f"{len(sent)} characters"


def pastes_long_texts(page: Page, script: Scripted) -> str:
    """A long text from the clipboard becomes a file, or text of the message if the reader prefers that."""
    words = "\n".join(f"Line {i} of a long log" for i in range(300))
    written = lambda: page.find("#input").get_attribute("value")

    def paste(text: str) -> None:
        page.js("byId('input').value = arguments[0]", text)
        page.find("#input").send_keys(Keys.CONTROL, "ax")
        page.until(lambda: written() == "", "the text is cut")
        page.find("#input").send_keys("Why? ", Keys.CONTROL, "v")

    page.new_chat()
    paste("A short text")
    page.until(lambda: written() == "Why? A short text", f"a short text is pasted as {written()!r}")
    paste(words)
    page.until(lambda: page.text("#files .chip b") == "pasted.txt", "a long text becomes a file")
    want(written() == "Why? ", f"the long text is in the message as well: {len(written() or '')} characters")
    page.find("#input").clear()
    paste(words)
    page.until(lambda: page.text("#files .chip b") == "pasted.txt\npasted-2.txt", f"a second text has another name: {page.text('#files .chip b')!r}")
    page.click(".toast:last-child .plain")
    page.until(lambda: written() == f"Why? {words}", "the text is inserted on demand")
    want(page.text("#files .chip b") == "pasted.txt", "the file remains beside its text")
    page.find("#input").clear()
    script.chunks = [delta(content="Because."), delta(end="stop")]
    page.ask("Explain")
    sent = script.last["messages"][-1]["content"]
    want(sent == f"File pasted.txt:\n```\n{words}\n```\n\nExplain", f"the message is sent as {sent[:80]!r}...")
    page.js("all('.toast button').forEach(node => node.click())")
    return f"{len(words)} characters"


def reads_pdfs(page: Page) -> str:
    read = "const { pdfText } = await page('pdf.js'); try { return await pdfText(Uint8Array.from(atob(args[0]), c => c.charCodeAt(0))); } catch (error) { return `${error.code}: ${error.message}`; }"
    text = lambda data: page.run(read, base64.b64encode(data).decode())
    for packed in (False, True):
        found = text(letters(packed))
        want(found == "Hello (world) för".replace("ö", "ä") + "\nsecond line\n\nABCü", f"packed {packed}: the PDF's text is {found!r}")
    want(text(pdf([b"<< /Pages 2 0 R >>"], extra=b"/Encrypt 5 0 R")) == "pdf: pdf_encrypted", "an encrypted PDF is read")
    for name, data in {
        "no PDF": b"hello", "empty": b"%PDF-1.4", "a cycle": pdf([b"2 0 R", b"1 0 R"]), "pages that contain themselves": pdf([b"<< /Pages 2 0 R >>", b"<< /Kids [2 0 R 2 0 R] >>"]),
        "deep arrays": pdf([b"<< /Pages " + b"[" * 5000]), "a form that contains itself": pdf([
            b"<< /Pages 2 0 R >>", b"<< /Kids [3 0 R] >>", b"<< /Contents 4 0 R /Resources << /XObject << /A 5 0 R >> >> >>",
            stream(b"/A Do"), stream(b"/A Do /A Do", b"/Subtype /Form")]),
        "a bomb": pdf([b"<< /Pages 2 0 R >>", b"<< /Kids [3 0 R] >>", b"<< /Contents 4 0 R >>", stream(b" " * (80 << 20))]),
        "cut off": letters()[:700], "nonsense": bytes(range(256)) * 400,
    }.items():  # fmt: skip
        found = text(data)
        want(found in ("", "pdf: pdf_damaged") or found.startswith("Hello") or "0 obj" not in found, f"{name}: {found!r}")
    return "2 files, 9 hostile ones"


def refuses_files(page: Page) -> str:
    page.new_chat()
    for files, words in (
        ([("a.bin", "application/octet-stream", bytes(100))], "not text"),
        ([("large.txt", "text/plain", b"x" * (2 << 20))], "limit"),
        ([("empty.txt", "text/plain", b"")], "empty"),
        ([("scan.pdf", "application/pdf", pdf([b"<< /Pages 2 0 R >>", b"<< /Kids [] >>"]))], "no text"),
        ([("broken.pdf", "application/pdf", b"nothing")], "damaged"),
        ([("a.png", "image/png", png(4, 4))], "does not see"),
        ([(f"{i}.txt", "text/plain", b"x") for i in range(12)], "10 files"),
    ):
        page.js("all('.toast button').forEach(node => node.click())")
        drop(page, files)
        page.until(lambda words=words: words in page.toasts(), f"{files[0][0]} is refused with {words!r}: {page.toasts()!r}")
    page.until(lambda: page.count("#files .file") == 10, "ten of twelve files are taken")
    page.js("while (document.querySelector('#files .small')) document.querySelector('#files .small').click()")
    folder = page.run(
        """const items = [{ kind: "file", webkitGetAsEntry: () => ({ isDirectory: true }), getAsFile: () => null }];
        const event = new Event("drop", { bubbles: true, cancelable: true });
        event.dataTransfer = { types: ["Files"], items, files: [] };
        document.body.dispatchEvent(event);
        return document.querySelector(".toast:last-child")?.textContent;"""
    )
    want("Folders" in (folder or ""), f"a folder is refused with {folder!r}")
    page.js("all('.toast button').forEach(node => node.click())")
    return "8 reasons"


def sends_pictures(page: Page, script: Scripted, proxy: Proxy) -> str:
    """A model that declares that it sees: the list of models comes from the proxy."""

    def models(handler: Handler, body: bytes) -> bool:
        if handler.path != "/v1/models":
            return False
        entry = {"id": "eyes", "root": "eyes", "max_model_len": 4096, "capabilities": ["completion", "chat", "vision"], "status": {"value": "loaded"}}
        handler.reply(200, json.dumps({"object": "list", "data": [entry]}).encode(), "application/json")
        return True

    proxy.scripted.append(models)
    page.open()
    page.until(lambda: page.text("#model") == "eyes", "the model that sees is shown")
    want("image/*" in page.find("#file-input").get_attribute("accept"), "pictures cannot be chosen")
    script.chunks = [delta(content="Blue."), delta(end="stop")]
    drop(page, [("small.png", "image/png", png(8, 8))])
    page.until(lambda: page.count("#files .picture") == 1, "the picture is shown")
    drop(page, [("large.png", "image/png", png(3000, 1500))], "paste")
    page.until(lambda: page.count("#files .picture") == 2, "a large picture is shown")
    page.ask("Which colour?")
    parts = script.last["messages"][-1]["content"]
    want([part["type"] for part in parts] == ["image_url", "image_url", "text"], f"the parts are {[part['type'] for part in parts]}")
    want(parts[0]["image_url"]["url"].startswith("data:image/png;base64,"), "a picture is not a data URI")
    want(parts[1]["image_url"]["url"].startswith("data:image/jpeg;base64,"), "a large picture is not made smaller")
    sizes = page.run("return await Promise.all(args[0].map(async url => { const image = new Image(); image.src = url; await image.decode(); return [image.width, image.height]; }))", [part["image_url"]["url"] for part in parts[:2]])
    want(sizes == [[8, 8], [2048, 1024]], f"the pictures have the sizes {sizes}")
    page.click(".user .shown-file")
    page.until(lambda: page.count(".file-view img"), "a picture is shown at its size")
    page.click(".file-view .icon")
    page.picture("pictures")
    page.reload()
    page.until(lambda: page.count(".user .picture") == 2, "the pictures exist after a reload")
    proxy.scripted.remove(models)
    page.open()
    return f"{len(parts[1]['image_url']['url'])} characters of a large picture"
