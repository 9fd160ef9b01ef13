#!/usr/bin/env python3
"""Writes the Grafana dashboard of deploy/kubernetes/components/monitoring/dashboard.json, from the table below.

    scripts/dashboard.py            writes the file
    scripts/dashboard.py --check    fails if the file is another one
"""

import json
import sys
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "deploy/kubernetes/components/monitoring/dashboard.json"
LABELS = 'namespace=~"$namespace", model_name=~"$model"'


def rate(metric, by="model_name"):
    return f"sum by ({by}) (rate({metric}{{{LABELS}}}[$__rate_interval]))"


def quantile(q, metric):
    return f"histogram_quantile({q}, {rate(metric + '_bucket', 'model_name, le')})"


def gauge(metric, of="sum"):
    return f"{of} by (model_name, instance) ({metric}{{{LABELS}}})"


# title, unit, and the lines: expression and legend
PANELS = [
    ("Sequences running", "short", [(gauge("vllm:num_requests_running"), "{{model_name}} {{instance}}")]),
    ("Sequences waiting", "short", [(gauge("vllm:num_requests_waiting"), "{{model_name}} {{instance}}")]),
    ("Generated tokens per second", "short", [(rate("vllm:generation_tokens_total"), "{{model_name}}")]),
    ("Prompt tokens per second", "short", [(rate("vllm:prompt_tokens_total"), "{{model_name}}")]),
    (
        "Time to first token",
        "s",
        [(quantile(q, "vllm:time_to_first_token_seconds"), f"{{{{model_name}}}} p{q * 100:g}") for q in (0.5, 0.95, 0.99)],
    ),
    (
        "Time between two tokens",
        "s",
        [(quantile(q, "vllm:inter_token_latency_seconds"), f"{{{{model_name}}}} p{q * 100:g}") for q in (0.5, 0.95, 0.99)],
    ),
    (
        "Time of a request",
        "s",
        [(quantile(q, "vllm:e2e_request_latency_seconds"), f"{{{{model_name}}}} p{q * 100:g}") for q in (0.5, 0.95)],
    ),
    ("Time in the queue, p95", "s", [(quantile(0.95, "vllm:request_queue_time_seconds"), "{{model_name}}")]),
    ("KV cache in use", "percentunit", [(gauge("vllm:kv_cache_usage_perc", "max"), "{{model_name}} {{instance}}")]),
    (
        "Prompt tokens found in the prefix cache",
        "percentunit",
        [(f"{rate('vllm:prefix_cache_hits_total')} / {rate('vllm:prefix_cache_queries_total')}", "{{model_name}}")],
    ),
    (
        "Finished requests per second",
        "short",
        [(rate("vllm:request_success_total", "finished_reason"), "{{finished_reason}}")],
    ),
    (
        "Responses per second, by status",
        "short",
        [('sum by (code) (rate(tern:http_responses_total{namespace=~"$namespace"}[$__rate_interval]))', "{{code}}")],
    ),
    ("Preemptions per second", "short", [(rate("vllm:num_preemptions_total"), "{{model_name}}")]),
    ("Engine up", "short", [(gauge("tern:engine_up", "min"), "{{model_name}} {{instance}}")]),
]
# a row has two panels
WIDTH, HEIGHT = 12, 8


def panel(at, title, unit, lines):
    source = {"type": "prometheus", "uid": "${source}"}
    targets = [
        {"refId": chr(ord("A") + i), "expr": expr, "legendFormat": legend, "datasource": source}
        for i, (expr, legend) in enumerate(lines)
    ]
    return {
        "id": at + 1,
        "type": "timeseries",
        "title": title,
        "datasource": source,
        "gridPos": {"x": at % 2 * WIDTH, "y": at // 2 * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def variable(name, query):
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard():
    variables = [
        {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        variable("namespace", "label_values(tern:engine_up, namespace)"),
        variable("model", 'label_values(tern:engine_up{namespace=~"$namespace"}, model_name)'),
    ]
    return {
        "uid": "tern",
        "title": "Tern",
        "tags": ["tern"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": [panel(at, *facts) for at, facts in enumerate(PANELS)],
    }


def main():
    text = json.dumps(dashboard(), indent=1) + "\n"
    if sys.argv[1:] == ["--check"]:
        if FILE.read_text() != text:
            sys.exit(f"error: {FILE}: not what scripts/dashboard.py writes; run it")
    else:
        FILE.write_text(text)


if __name__ == "__main__":
    main()
