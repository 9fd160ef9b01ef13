"""Ray Serve: an ingress with all routes of ``tern serve``, and replicas with one server each.

>>> from tern_llm.ray import serve
>>> config = serve.Config.parse({"model": "stories", "replicas": 2, "flags": {"max-num-seqs": 16}})
>>> config.models[0].arguments()[-2:]
['--max-num-seqs=16', '--threads=1']

``build(...)`` makes the application: ``ray.serve.run(build({"model": "smollm2"}))``. In a file for
``serve deploy`` its import path is ``tern_llm.ray.serve:build``, and the configuration is in ``args``.
"""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from .config import Config, ConfigError, ModelConfig
from .ingress import Ingress
from .replica import Replica

__all__ = ["Config", "ConfigError", "ModelConfig", "build"]

#: Seconds between two health checks, and that one may take.
HEALTH_PERIOD, HEALTH_TIMEOUT = 5, 15
#: CPUs of an ingress, which copies bytes.
INGRESS_CPUS = 0.1
#: The prefix router of Ray is internal, so it is named here only; it needs settings with which it rebalances.
PREFIX_ROUTER = (
    "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router.PrefixCacheAffinityRouter"
)
SESSION_ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"


def build(args: dict[str, Any]) -> serve.Application:
    """The application of a configuration; see ``Config`` for its settings."""
    config = Config.parse(args)
    replicas = [_replicas(model, config.api_key_file, at) for at, model in enumerate(config.models)]
    waiting = sum(model.max_ongoing * model.most_replicas + model.max_queued for model in config.models)
    ingress = serve.deployment(serve.ingress()(Ingress)).options(
        name="ingress",
        num_replicas=config.ingress_replicas,
        ray_actor_options={"num_cpus": INGRESS_CPUS},
        max_ongoing_requests=waiting + 64,  # the queues of the models refuse, not that of the ingress
        health_check_period_s=HEALTH_PERIOD,
        graceful_shutdown_timeout_s=max(model.drain_timeout for model in config.models) + 20,
    )
    return ingress.bind(config, *replicas)


def _replicas(model: ModelConfig, api_key_file: str | None, at: int) -> serve.Application:
    options: dict[str, Any] = {
        "name": f"model-{at}-{model.name}".replace("/", "-").replace("#", "-"),
        "max_ongoing_requests": model.max_ongoing,
        "max_queued_requests": model.max_queued,
        "health_check_period_s": HEALTH_PERIOD,
        "health_check_timeout_s": HEALTH_TIMEOUT,
        "graceful_shutdown_wait_loop_s": 0.5,
        "graceful_shutdown_timeout_s": model.drain_timeout + 10,
        "ray_actor_options": {
            "num_cpus": model.num_cpus,
            "num_gpus": model.num_gpus,
            "resources": model.resources,
        },
    }
    if model.autoscale is not None:
        options["autoscaling_config"] = model.autoscaling()
    else:
        options["num_replicas"] = model.replicas
    if model.placement_group is not None:
        options["placement_group_bundles"] = model.placement_group
        options["placement_group_strategy"] = model.placement_strategy
    if model.routing != "balanced":
        options["request_router_config"] = _router(model)
    return serve.deployment(Replica).options(**options).bind(model, api_key_file)


def _router(model: ModelConfig) -> RequestRouterConfig:
    if model.routing == "session":
        return RequestRouterConfig(request_router_class=SESSION_ROUTER)
    settings = {"imbalanced_threshold": max(2, model.max_num_seqs // 4), "do_eviction": True}
    return RequestRouterConfig(request_router_class=PREFIX_ROUTER, request_router_kwargs=settings)
