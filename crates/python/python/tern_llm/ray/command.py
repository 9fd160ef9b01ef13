"""``tern-llm serve-ray CONFIG``: serves a configuration on a Ray cluster until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from typing import Any

DESCRIPTION = (
    "Serve models on Ray: the cluster of RAY_ADDRESS or of this machine, or a new one on this machine."
)


def main(args: list[str]) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="tern-llm serve-ray", description=DESCRIPTION)
    parser.add_argument("config", metavar="CONFIG", help="a YAML file with the settings of docs/ray.md")
    parser.add_argument("--name", default="tern", help="name of the application (default: %(default)s)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address of the HTTP proxies (default: %(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=8000, help="port of the HTTP proxies (default: %(default)s)"
    )
    parser.add_argument("--print", action="store_true", help="print the file for `serve deploy` and exit")
    given = parser.parse_args(args)
    try:
        settings = _read(given.config)
        return _print(given, settings) if given.print else _serve(given, settings)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # one sentence: what is wrong is in it
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        print(f"tern-llm: {lines[0]}", file=sys.stderr)
        return 1


def _read(path: str) -> dict[str, Any]:
    import yaml

    from .config import Config, ConfigError

    try:
        with open(path, encoding="utf-8") as file:
            settings = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
    try:
        Config.parse(settings)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return settings


def _print(given: argparse.Namespace, settings: dict[str, Any]) -> int:
    import yaml

    application = {
        "name": given.name,
        "route_prefix": settings.get("route_prefix", "/"),
        "import_path": "tern_llm.ray.serve:build",
        "args": settings,
    }
    whole = {"http_options": {"host": given.host, "port": given.port}, "applications": [application]}
    yaml.safe_dump(whole, sys.stdout, sort_keys=False)
    return 0


def _serve(given: argparse.Namespace, settings: dict[str, Any]) -> int:
    import ray
    from ray import serve

    from .serve import build

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    ray.init(address=None, log_to_driver=True, ignore_reinit_error=True)
    serve.start(http_options={"host": given.host, "port": given.port})
    serve.run(build(settings), name=given.name, route_prefix=settings.get("route_prefix", "/"))
    print(f"tern-llm: serving on http://{given.host}:{given.port}; press Ctrl-C to stop", file=sys.stderr)
    stop.wait()
    serve.delete(given.name)
    return 0
