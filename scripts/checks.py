"""What tests of a running server share: assertions, and the loop that runs every check of a module."""

import argparse
import sys
import time
import traceback


def want(condition, *words):
    if not condition:
        raise AssertionError(" ".join(str(word) for word in words))


def refused(kind, call, *words):
    """The error of this kind that the call must raise, with these words in it."""
    try:
        answer = call()
    except kind as error:
        text = f"{error} {getattr(error, 'body', '')}"  # newer versions of `openai` print the message only
        for word in words:
            want(word in text, "want", repr(word), "in", text)
        return error
    raise AssertionError(f"want {kind.__name__}, got {answer}")


def options(description):
    """The options of every such test."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--only", default="", help="run the checks whose name contains this")
    return parser


def run(module, only, missing=lambda name: None, require=False):
    """Runs every `test_...` of a module whose name contains `only`, and exits with the number of failures.

    `missing` names the package that a check lacks: it is skipped, or fails if `require` is set.
    """
    failed = 0
    for name, check in list(module.items()):
        if not name.startswith("test_") or only not in name:
            continue
        package = missing(name)
        if package and not require:
            print(f"skipped {name[5:]}: {package} is not installed")
            continue
        start = time.monotonic()
        try:
            want(not package, f"{package} is not installed")
            check()
            print(f"ok      {name[5:]} ({time.monotonic() - start:.1f} s)")
        except Exception:
            failed += 1
            print(f"FAILED  {name[5:]}")
            traceback.print_exc(limit=-3, file=sys.stdout)
        sys.stdout.flush()
    sys.exit(f"{failed} checks failed" if failed else 0)
