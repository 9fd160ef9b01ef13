#!/usr/bin/env python3
"""Checks the workflows and forms of .github: against their schemas, and that the files they name exist.

    scripts/check_workflows.py

Needs the PyPI package check-jsonschema, which has the schemas; what is missing is skipped with a message.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GITHUB = ROOT / ".github"
SCHEMAS = [
    ("github-workflows", sorted((GITHUB / "workflows").glob("*.yml"))),
    ("github-issue-forms", sorted(set((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) - {GITHUB / "ISSUE_TEMPLATE/config.yml"})),
    ("github-issue-config", [GITHUB / "ISSUE_TEMPLATE/config.yml"]),
]


def main():
    faults = []
    for schema, files in SCHEMAS:
        if not files:
            faults.append(f".github: no files for the schema {schema}")
        for path in files:
            for name in re.findall(r"(?:^|[ \"])((?:scripts|deploy|crates|\.ci)/[\w./-]+)", path.read_text(), re.M):
                if not (ROOT / name).exists():
                    faults.append(f"{path.relative_to(ROOT)}: {name} does not exist")
    try:
        import check_jsonschema  # noqa: F401
    except ImportError:
        print("skipped: check-jsonschema is missing")
    else:
        for schema, files in SCHEMAS:
            command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
            ran = subprocess.run(command, capture_output=True, text=True)
            if ran.returncode:
                faults.append(ran.stdout + ran.stderr)
            print(f"{schema}: {len(files)} files")
    if faults:
        sys.exit("\n".join(f"error: {fault}" for fault in faults))


if __name__ == "__main__":
    main()
