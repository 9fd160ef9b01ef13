"""What a cluster serves: the arguments of ``tern_llm.ray.serve:build``, which are also the file of
``serve-ray``."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass, field
from typing import Any

#: How requests are distributed over the replicas of a model.
ROUTING = ("balanced", "session", "prefix")
#: Flags of ``tern serve`` that a replica sets itself.
OWN_FLAGS = ("host", "port", "api_key", "api_key_file", "model", "drain_timeout", "served_model_name")
#: What ``tern serve`` uses without the flag.
MAX_NUM_SEQS = 32


class ConfigError(ValueError):
    """What is wrong with a configuration, and what is expected."""


@dataclass(frozen=True)
class ModelConfig:
    """A model and its replicas."""

    #: a known name, a file, a folder, or ``org/repo[:QUANT]``; files must be on every node
    model: str
    #: the name in requests, by default that of the model
    name: str = ""
    #: replicas, if they are not scaled
    replicas: int = 1
    #: ``{"min": 1, "max": 4}``, and settings of Ray's ``autoscaling_config`` that differ from ours
    autoscale: dict[str, Any] | None = None
    #: of a replica: CPUs, which are also its threads, and GPUs
    num_cpus: float = 1
    num_gpus: float = 0
    #: other resources of Ray
    resources: dict[str, float] = field(default_factory=dict)
    #: bundles of a placement group, for a model that is split over devices
    placement_group: list[dict[str, float]] | None = None
    placement_strategy: str = "STRICT_PACK"
    #: ``balanced`` (the shorter of two queues), ``session`` (the header ``x-session-id``) or ``prefix`` (of
    #: the prompt)
    routing: str = "balanced"
    #: names and files of adapters
    lora: dict[str, str] = field(default_factory=dict)
    #: requests that wait before others are refused, by default as many as run in a replica
    max_queue: int | None = None
    #: seconds that running requests may take when a replica ends
    drain_timeout: int = 30
    #: seconds that a replica may take to load
    load_timeout: int = 1800
    #: flags of ``tern serve``, such as ``{"max-num-seqs": 64, "context": 8192}``
    flags: dict[str, Any] = field(default_factory=dict)
    #: environment variables of the servers
    env: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names that requests may use."""
        return [self.name, *self.lora]

    @property
    def max_num_seqs(self) -> int:
        """Sequences that run at once in a replica."""
        return int(_flags(self.flags).get("max_num_seqs", MAX_NUM_SEQS))

    @property
    def max_ongoing(self) -> int:
        """Requests of a replica: those that run, and some that are prepared meanwhile."""
        return self.max_num_seqs + max(2, self.max_num_seqs // 8)

    @property
    def max_queued(self) -> int:
        """Requests that wait for a replica."""
        return self.max_num_seqs if self.max_queue is None else self.max_queue

    @property
    def most_replicas(self) -> int:
        """Replicas at most."""
        return int(self.autoscale.get("max", 1)) if self.autoscale else self.replicas

    def arguments(self) -> list[str]:
        """The arguments of the replica's server."""
        args = [
            "serve",
            "-m",
            self.model,
            "--served-model-name",
            self.name,
            "--drain-timeout",
            str(self.drain_timeout),
        ]
        for name, file in self.lora.items():
            args += ["--lora", f"{name}={file}"]
        flags = _flags(self.flags)
        if self.num_cpus >= 1:
            flags.setdefault("threads", int(self.num_cpus))
        for name, value in flags.items():
            flag = "--" + name.replace("_", "-")
            if value is True:
                args.append(flag)
            elif value is not False and value is not None:
                for one in value if isinstance(value, list) else [value]:
                    args.append(f"{flag}={one}")
        return args

    def autoscaling(self) -> dict[str, Any] | None:
        """Ray's settings: a replica is added when those there are are seven tenths full."""
        if self.autoscale is None:
            return None
        given = dict(self.autoscale)
        return {
            "min_replicas": given.pop("min", 1),
            "max_replicas": given.pop("max", 1),
            "target_ongoing_requests": max(1.0, 0.7 * self.max_num_seqs),
            "upscale_delay_s": 30,
            "downscale_delay_s": 600,
            **given,
        }


@dataclass(frozen=True)
class Config:
    """Models, and the ingress that all requests pass."""

    models: list[ModelConfig]
    #: path before all routes
    route_prefix: str = "/"
    #: replicas of the ingress; a request ends with its own
    ingress_replicas: int = 1
    #: a file with API keys, one per line, on every node; without it no key is needed
    api_key_file: str | None = None
    #: MiB of a request's body
    max_body: int = 16

    @staticmethod
    def parse(given: Any) -> Config:
        """The configuration of a mapping: one model's settings beside those of the ingress, or a list
        ``models``."""
        if not isinstance(given, dict):
            raise ConfigError(f"expected a mapping with `model` or `models`, got {type(given).__name__}")
        own = _names(Config) - {"models"}
        ingress = {name: value for name, value in given.items() if name in own}
        rest = {name: value for name, value in given.items() if name not in own}
        if "models" in rest:
            models = rest.pop("models")
            if rest:
                raise ConfigError(f"{sorted(rest)[0]}: {_advice(sorted(rest)[0], own | {'models'})}")
            if not isinstance(models, list) or not models:
                raise ConfigError(f"models: expected a list of at least one model, got {models!r}")
        else:
            models = [rest]
        parsed = [
            _model(model, f"models[{at}]." if len(models) > 1 else "") for at, model in enumerate(models)
        ]
        names = [name for model in parsed for name in model.names]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"name: two models or adapters have the name {name!r}")
        config = Config(parsed, **ingress)
        if not str(config.route_prefix).startswith("/"):
            raise ConfigError(
                f"route_prefix: expected a path that begins with /, got {config.route_prefix!r}"
            )
        for name in ("ingress_replicas", "max_body"):
            _positive(name, getattr(config, name))
        return config


def _model(given: Any, where: str) -> ModelConfig:
    if not isinstance(given, dict):
        raise ConfigError(f"{where or 'models: '}expected a mapping, got {given!r}")
    known = _names(ModelConfig)
    for name in given:
        if name not in known:
            raise ConfigError(f"{where}{name}: {_advice(name, known)}")
    if not isinstance(given.get("model"), str) or not given["model"]:
        raise ConfigError(
            f"{where}model: expected the name or the file of a model, got {given.get('model')!r}"
        )
    base = given["model"].rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf")
    model = ModelConfig(**{"name": base, **given})
    if model.routing not in ROUTING:
        raise ConfigError(f"{where}routing: expected one of {', '.join(ROUTING)}, got {model.routing!r}")
    for name in ("replicas", "drain_timeout", "load_timeout"):
        _positive(where + name, getattr(model, name))
    for name in ("flags", "lora", "env", "resources"):
        if not isinstance(getattr(model, name), dict):
            raise ConfigError(f"{where}{name}: expected a mapping, got {getattr(model, name)!r}")
    for name in _flags(model.flags):
        if name in OWN_FLAGS:
            raise ConfigError(f"{where}flags: {name} is set by the replica; see the settings of a model")
    if model.autoscale is not None:
        if not isinstance(model.autoscale, dict) or "replicas" in given:
            raise ConfigError(
                f"{where}autoscale: expected {{min: N, max: N}} and no replicas, got {model.autoscale!r}"
            )
    if model.max_queue is not None and model.max_queue < 0:
        raise ConfigError(f"{where}max_queue: expected a number from 0, got {model.max_queue}")
    return model


def _flags(flags: dict[str, Any]) -> dict[str, Any]:
    """Flags by their names with underscores."""
    return {name.lstrip("-").replace("-", "_"): value for name, value in flags.items()}


def _names(kind: type) -> set[str]:
    return {one.name for one in dataclasses.fields(kind)}


def _advice(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(str(name), sorted(known), 1)
    return (
        f"unknown setting; did you mean {near[0]}?"
        if near
        else f"unknown setting: expected one of {', '.join(sorted(known))}"
    )


def _positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name}: expected a whole number from 1, got {value!r}")
