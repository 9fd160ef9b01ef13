#!/usr/bin/env python3
"""Packs a binary and installs it: by install.sh from a release that a server on this machine has, and by dpkg.

    scripts/package_test.py TERN

dpkg runs on a copy of this machine's files that is dropped afterwards (an overlay in a namespace of mounts, which
needs root); without one only the contents of the package are compared.
"""

import functools
import http.server
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import package
import release

ROOT = package.ROOT
COMMANDS = ["tern.1", "tern-run.1", "tern-serve.1"]
FILES = ["bin/tern", *(f"share/man/man1/{name}" for name in COMMANDS), *(path for _, path in package.COMPLETIONS)]
# Installs, uses, upgrades, removes and purges the package; $1 is its path, $2 a folder for the mounts.
DPKG = """set -eu
mount -t tmpfs tmpfs "$2" && mkdir "$2/upper" "$2/work" "$2/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$2/upper,workdir=$2/work" "$2/root" 2>/dev/null || exit 42
mount --rbind /dev "$2/root/dev"
# the folder itself is below the overlay
cat "$1" >"$2/root/package.deb"
cat >"$2/root/check.sh" <<'END'
set -eu
rm -rf /etc/tern
dpkg -i /package.deb
[ "$(command -v tern)" = /usr/bin/tern ]
dpkg -V tern-llm
tern run -q -n 12 --temp 0 "Once upon a time"
[ "$(stat -c %a /etc/tern/tern.env)" = 600 ]
key=$(cat /etc/tern/tern.env)
[ ${#key} -gt 64 ]
dpkg -i /package.deb
[ "$(cat /etc/tern/tern.env)" = "$key" ]
dpkg -r tern-llm
[ ! -e /usr/bin/tern ] && [ -e /etc/tern/tern.env ]
dpkg -P tern-llm
[ ! -e /etc/tern ]
END
chroot "$2/root" env PATH=/usr/sbin:/usr/bin:/sbin:/bin sh /check.sh
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def check(what, right):
    if not right:
        sys.exit(f"error: {what}")


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)


def refused(what, done, words):
    check(f"{what}: expected an error with {words!r}, got {done.returncode}: {done.stderr}", done.returncode and words in done.stderr)


def tree(folder):
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*"))


def check_script(folder, site, home):
    """install.sh, from a server."""
    script = folder / "install.sh"
    prefix = home / "a folder"
    install = functools.partial(run, "sh", script, env={"HOME": str(home), "PATH": os.environ["PATH"]})
    done = install("--prefix", prefix)
    check(f"install.sh: {done.stderr}", done.returncode == 0 and "is not in PATH" in done.stdout)
    missing = [name for name in FILES if not (prefix / name).is_file()]
    check(f"install.sh: {missing} are missing", not missing)
    check("install.sh: bin/tern is not executable", (prefix / "bin/tern").stat().st_mode & stat.S_IXUSR)
    story = run(prefix / "bin/tern", "run", "-q", "-n", "12", "--temp", "0", "Once upon a time", stdin=subprocess.DEVNULL)
    check(f"the installed command: {story.stderr}", "girl" in story.stdout)
    # while it runs, and over what another version left
    running = subprocess.Popen([prefix / "bin/tern", "run", "-q", "Once"], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    done = install("--prefix", prefix)
    check(f"install.sh over a running command: {done.stderr}", done.returncode == 0 and running.wait() == 0)
    (prefix / "bin/mine").touch()
    done = install("--prefix", prefix, "--uninstall")
    left = [name for name in FILES if (prefix / name).exists()]
    check(f"--uninstall: {done.stderr} {left}", done.returncode == 0 and not left and (prefix / "bin/mine").exists())

    refused("an unknown version", install("--version", "9.9.9"), "9.9.9")
    refused("an unknown argument", install("--nowhere"), "unknown argument: --nowhere")
    refused("a relative prefix", install("--prefix", "here"), "absolute folder")
    refused("the script of the repository", run("sh", ROOT / "deploy/install.sh", env={"HOME": str(home)}), "TERN_RELEASES")
    archive = next(folder.glob("*.tar.gz"))
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    before = tree(home)
    refused("a changed archive", install(), "nothing was installed")
    check("a changed archive was installed", tree(home) == before)
    archive.write_bytes(whole)
    cut = home / "cut.sh"
    cut.write_text("\n".join(script.read_text().splitlines()[:-3]))
    check("a script that was cut off did something", run("sh", cut).returncode != 0 and tree(home) == [*before, "cut.sh"])
    print(f"install.sh: installed from {site}, removed; five wrong uses refused")


def check_deb(path, temporary):
    listed = run("dpkg-deb", "--contents", path)
    check(f"{path.name}: {listed.stderr}", listed.returncode == 0)
    for name in ["usr/bin/tern", "usr/share/man/man1/tern-serve.1.gz", "lib/systemd/system/tern.service"]:
        check(f"{path.name}: {name} is missing", f"./{name}\n" in listed.stdout)
    check(f"{path.name}: a file is not root's", all(" root/root " in line or " 0/0 " in line for line in listed.stdout.splitlines()))
    mounts = temporary / "mounts"
    mounts.mkdir()
    if os.geteuid() != 0 or not shutil.which("unshare"):
        print("skipped: dpkg needs root and unshare")
        return
    done = run("unshare", "-m", "sh", "-c", DPKG, "sh", path, mounts)
    if done.returncode == 42:
        print("skipped: dpkg needs an overlay")
        return
    check(f"{path.name}: {done.stdout}{done.stderr}", done.returncode == 0 and "girl" in done.stdout)
    print(f"{path.name}: installed, upgraded, removed, purged")


def main():
    tern = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name)
        folder, again, home = (temporary / part for part in ("release", "again", "home"))
        home.mkdir()
        pack = functools.partial(run, sys.executable, ROOT / "scripts/package.py")
        done = pack(tern, folder)
        check(f"package.py: {done.stderr}", done.returncode == 0)
        reproducible(pack, tern, again)
        handler = functools.partial(Quiet, directory=folder)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        site = f"http://127.0.0.1:{server.server_port}"
        refused("a release without macOS", run(sys.executable, ROOT / "scripts/release.py", folder, site), "apple-darwin")
        done = run(sys.executable, ROOT / "scripts/release.py", folder, site, "--partial")
        check(f"release.py: {done.stderr}", done.returncode == 0)
        names = {component["name"] for component in release.materials()["components"]}
        check("the bill of materials", {"tern-llm", "tokio"} <= names and not {"insta", "proptest", "pyo3"} & names)
        formula(again, site)
        check_script(folder, site, home)
        if shutil.which("dpkg"):
            check_deb(next(folder.glob("*.deb")), temporary)
        else:
            print("skipped: no dpkg")


def reproducible(pack, tern, folder):
    """Packs a small binary of another processor twice."""
    binary, files = folder / "tern", [folder / "one", folder / "two"]
    folder.mkdir()
    binary.write_bytes(b"\x7fELF" + bytes(100))
    for target in files:
        done = pack(binary, target, "--target", "aarch64-unknown-linux-gnu", "--pages", tern)
        check(f"package.py: {done.stderr}", done.returncode == 0)
    one, two = ({path.name: path.read_bytes() for path in target.iterdir()} for target in files)
    check(f"other bytes at the second time: {sorted(one)}", one == two and len(one) == 2)
    refused("a missing binary", pack(folder / "missing", folder), "no such file")


def formula(folder, site):
    """The formula, with archives that stand for those of other systems."""
    for target in ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "x86_64-apple-darwin", "aarch64-apple-darwin"):
        (folder / f"tern-{package.VERSION}-{target}.tar.gz").write_bytes(target.encode())
    text, missing = release.formula(folder, site, site)
    sums = [release.sha256(path) for path in folder.glob("*.tar.gz")]
    check("the formula", not missing and "@" not in text and len(sums) == 4 and all(one in text for one in sums))
    if shutil.which("ruby"):
        checked = run("ruby", "-c", "-", input=text)
        check(f"the formula: {checked.stderr}", checked.returncode == 0)


if __name__ == "__main__":
    main()
