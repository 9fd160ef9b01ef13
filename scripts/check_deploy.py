#!/usr/bin/env python3
"""Checks deploy/ without a cluster: what kustomize renders, against schemas; alert rules, with promtool; and that flags,
metrics and ports that the files name exist.

    scripts/check_deploy.py [--all] [--tern BINARY]

Needs `kubectl` (for kustomize), the PyPI package kubernetes-validate (schemas of Kubernetes) and Debian's `prometheus`
(promtool). What is missing is skipped with a message, or fails the run with --all. Custom resources are checked against
fixtures/kubernetes: the types of their definitions, without texts. With --tern a server runs, and its /metrics must have
what is named, with the labels that expressions use.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KUBERNETES = ROOT / "deploy/kubernetes"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
# Kubernetes whose schemas judge
VERSION = "1.33"
METRIC = re.compile(r"\b(?:vllm|tern):[a-z0-9_]+")
errors = []


def fail(where, what):
    errors.append(f"{where}: {what}")


def check_type(value, schema, path):
    """Compares a value with the reduced schema of a custom resource; members that it lacks are errors."""
    if schema.get("x-pod-template"):
        return check_object({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": value}, path)
    if schema.get("x-kubernetes-int-or-string"):
        return None if isinstance(value, (int, str)) else fail(path, f"expected a number or a text, got {value!r}")
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
    kind = kinds.get(schema.get("type"), object)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, (int, float))):
        return fail(path, f"expected {schema['type']}, got {value!r}")
    if "enum" in schema and value not in schema["enum"]:
        fail(path, f"expected one of {schema['enum']}, got {value!r}")
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        fail(path, f"{value!r} does not match {schema['pattern']}")
    for low, high, size in [("minimum", "maximum", value), ("minItems", "maxItems", value), ("minLength", "maxLength", value)]:
        number = size if low == "minimum" else len(size) if isinstance(size, (list, str)) else None
        if isinstance(number, (int, float)) and not schema.get(low, number) <= number <= schema.get(high, number):
            fail(path, f"{value!r} is outside {schema.get(low)} to {schema.get(high)}")
    if isinstance(value, dict):
        for name in schema.get("required", []):
            if name not in value:
                fail(path, f"{name} is missing")
        for name, member in value.items():
            below = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if below:
                check_type(member, below, f"{path}.{name}")
            elif not schema.get("x-kubernetes-preserve-unknown-fields"):
                fail(path, f"unknown field {name}")
    if isinstance(value, list):
        for at, item in enumerate(value):
            check_type(item, schema.get("items", {}), f"{path}[{at}]")
    return None


def check_object(found, where):
    import kubernetes_validate

    where = f"{where}: {found['kind']} {found['metadata']['name']}"
    custom = CUSTOM.get((found["apiVersion"], found["kind"]))
    if custom:
        return check_type(found["spec"], custom, f"{where}: spec")
    try:
        kubernetes_validate.validate(found, VERSION, strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        fail(where, error)
    return None


def check_references(objects, where):
    """Ports, selectors, volumes and claims name what exists."""
    by_kind = lambda kind: [found for found in objects if found["kind"] == kind]
    for deployment in by_kind("Deployment"):
        template = deployment["spec"]["template"]
        labels, pod = template["metadata"]["labels"], template["spec"]
        ports = {port["name"]: port["containerPort"] for c in pod["containers"] for port in c["ports"]}
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounts = {mount["name"] for c in pod["containers"] for mount in c["volumeMounts"]}
        if volumes != mounts:
            fail(where, f"volumes {volumes} and mounts {mounts} differ")
        claims = {v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v}
        if claims != {claim["metadata"]["name"] for claim in by_kind("PersistentVolumeClaim")}:
            fail(where, f"claims {claims} are not those that are made")
        for kind, get in [
            ("Service", lambda spec: spec["selector"]),
            ("PodDisruptionBudget", lambda spec: spec["selector"].get("matchLabels", {})),
            ("InferencePool", lambda spec: spec["selector"]["matchLabels"]),
            ("ServiceMonitor", lambda spec: spec["selector"]["matchLabels"]),
        ]:
            for found in by_kind(kind):
                selector = get(found["spec"])
                if not selector or not selector.items() <= labels.items():
                    fail(where, f"{kind} {found['metadata']['name']} selects {selector}, pods have {labels}")
        for service in by_kind("Service"):
            for port in service["spec"]["ports"]:
                if port["targetPort"] not in ports:
                    fail(where, f"the service's port {port['targetPort']} is none of {ports}")
        for pool in by_kind("InferencePool"):
            for port in pool["spec"]["targetPorts"]:
                if port["number"] not in ports.values():
                    fail(where, f"the pool's port {port['number']} is none of {ports}")
        drain = int(re.search(r"`--drain-timeout SECONDS` \|[^|]*?(\d+)", OPERATIONS).group(1))
        if pod["terminationGracePeriodSeconds"] <= drain:
            fail(where, f"terminationGracePeriodSeconds is not above --drain-timeout ({drain})")
        known = set(re.findall(r"--[a-z][a-z-]+", OPERATIONS))
        for container in pod["containers"]:
            for flag in (arg for arg in container["args"] if arg.startswith("--")):
                if flag not in known:
                    fail(where, f"{flag} is no flag of tern serve")
        for kind in ("HorizontalPodAutoscaler", "ScaledObject"):
            for scaler in by_kind(kind):
                if scaler["spec"]["scaleTargetRef"]["name"] != deployment["metadata"]["name"]:
                    fail(where, f"{kind} scales something else")


def check_overlays():
    import yaml

    for overlay in OVERLAYS:
        rendered = subprocess.run(["kubectl", "kustomize", KUBERNETES / "overlays" / overlay], capture_output=True, text=True)
        if rendered.returncode:
            fail(overlay, rendered.stderr.strip())
            continue
        objects = [found for found in yaml.safe_load_all(rendered.stdout) if found]
        for found in objects:
            check_object(found, overlay)
        check_references(objects, overlay)
        print(f"overlay {overlay}: {len(objects)} objects")
    ray = yaml.safe_load((ROOT / "deploy/ray/rayservice.yaml").read_text())
    check_object(ray, "deploy/ray/rayservice.yaml")
    if not isinstance(yaml.safe_load(ray["spec"]["serveConfigV2"]).get("applications"), list):
        fail("deploy/ray/rayservice.yaml", "serveConfigV2 has no applications")


def rendered_chart(folder):
    """The objects of the chart as helm renders them, for the few expressions that its templates have."""
    import yaml

    subprocess.run([sys.executable, ROOT / "scripts/helm_chart.py", folder], check=True)
    chart, values = (yaml.safe_load((folder / name).read_text()) for name in ("Chart.yaml", "values.yaml"))
    scope = {"Values": values, "Chart": {"AppVersion": chart["appVersion"]}, "Release": {"Name": "mine"}}

    def value(text):
        found = scope
        for name in text.removeprefix(".").split("."):
            found = found[name]
        return found

    def expression(found):
        kind = re.fullmatch(r"(toJson )?(\.[\w.]+)(?: \| default (\.[\w.]+))?", found[1])
        if not kind:
            fail("chart", f"{found[0]}: not an expression that is known here")
            return ""
        result = value(kind[2]) or (value(kind[3]) if kind[3] else value(kind[2]))
        return json.dumps(result) if kind[1] else str(result)

    texts = [path.read_text() for path in sorted((folder / "templates").iterdir())]
    return [yaml.safe_load(re.sub(r"{{ (.*?) }}", expression, text)) for text in texts]


def check_chart():
    with tempfile.TemporaryDirectory() as folder:
        objects = rendered_chart(Path(folder))
    for found in objects:
        check_object(found, "chart")
    check_references(objects, "chart")
    print(f"chart: {len(objects)} objects")


def check_metrics():
    """Every metric that a rule, a dashboard or a scaler names is one that the server has."""
    source = (ROOT / "crates/server/src/metrics.rs").read_text()
    known = set(METRIC.findall(source))
    known |= {f"{name}_{part}" for name in known for part in ("bucket", "sum", "count")}
    files = [path for path in KUBERNETES.rglob("*") if path.suffix in (".yaml", ".json")]
    named = {(path, metric) for path in files for metric in METRIC.findall(path.read_text())}
    for path, metric in sorted(named):
        if metric not in known:
            fail(path.relative_to(ROOT), f"the server has no metric {metric}")
    print(f"metrics: {len({metric for _, metric in named})} are named")


def scraped(tern):
    """The metrics of a server after a request, and the labels of each."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    url, have = f"http://127.0.0.1:{port}", {}
    server = subprocess.Popen([tern, "serve", "-m", "stories", "--port", str(port)], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{url}/ready").close()
                break
            except OSError:
                if time.monotonic() > end or server.poll() is not None:
                    sys.exit(f"error: {tern} serve -m stories is not ready")
                time.sleep(0.1)
        body = json.dumps({"prompt": "Once", "max_tokens": 2}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body)).close()
        page = urllib.request.urlopen(f"{url}/metrics").read().decode()
    finally:
        server.terminate()
        server.wait()
    for name, labels in re.findall(r"^([a-z0-9_:]+)(?:\{(.*)\})? \S+$", page, re.M):
        have.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return have


# what Prometheus adds, from where a series was scraped
ADDED = {"namespace", "instance", "job", "pod"}


def check_scraped(tern):
    have, used = scraped(tern), 0
    dashboard = json.loads((KUBERNETES / "components/monitoring/dashboard.json").read_text())
    lines = [("dashboard.json", target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]]
    alerts = (KUBERNETES / "components/monitoring/alerts.yaml").read_text()
    rules = re.findall(r"expr: (?:\|\n((?: {12}.*\n)+)|(.*))", alerts)
    lines += [("alerts.yaml", several or one) for several, one in rules]
    for where, expression in lines:
        by = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression))))
        series = re.findall(r"((?:vllm|tern):[a-z0-9_]+)(?:\{([^}]*)\})?", expression)
        if not series:
            fail(where, f"{expression}: no metric")
        for name, selector in series:
            used += 1
            labels = by | set(re.findall(r"(\w+)(?==|!=)", selector))
            if name not in have:
                fail(where, f"{name}: a server with a request has no such series")
            elif not labels <= have[name] | ADDED:
                fail(where, f"{name} has the labels {sorted(have[name])}, the expression uses {sorted(labels)}")
    print(f"expressions: {len(lines)}, with {used} series of a server")


def check_rules():
    import yaml

    folder = KUBERNETES / "components/monitoring"
    rules = yaml.safe_load((folder / "alerts.yaml").read_text())["spec"]
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary)
        (path / "alerts.rules.yaml").write_text(yaml.safe_dump(rules))
        shutil.copy(folder / "alerts_test.yaml", path)
        for command in [["check", "rules", "alerts.rules.yaml"], ["test", "rules", "alerts_test.yaml"]]:
            ran = subprocess.run(["promtool", *command], cwd=path, capture_output=True, text=True)
            if ran.returncode:
                fail("alerts", ran.stdout + ran.stderr)
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    untested = {alert for alert in alerts if alert not in (folder / "alerts_test.yaml").read_text()}
    if untested:
        fail("alerts", f"no test has {sorted(untested)}")
    print(f"alerts: {len(alerts)} rules")


def has(what, present):
    if not present and "--all" in sys.argv:
        fail("tools", f"{what} is missing")
    elif not present:
        print(f"skipped: {what} is missing")
    return present


def package():
    try:
        import kubernetes_validate  # noqa: F401

        return True
    except ImportError:
        return False


OPERATIONS = (ROOT / "docs/operations.md").read_text()
CUSTOM = {}
for file in sorted((ROOT / "fixtures/kubernetes").glob("*.json")):
    definition = json.loads(file.read_text())
    CUSTOM[definition["apiVersion"], definition["kind"]] = definition["spec"]


def main():
    subprocess.run([sys.executable, ROOT / "scripts/dashboard.py", "--check"], check=True)
    check_metrics()
    if "--tern" in sys.argv:
        check_scraped(sys.argv[sys.argv.index("--tern") + 1])
    validates = has("kubernetes-validate", package())
    if has("kubectl", shutil.which("kubectl")) and validates:
        check_overlays()
        check_chart()
    if has("promtool", shutil.which("promtool")) and validates:
        check_rules()
    if errors:
        sys.exit("\n".join(f"error: {error}" for error in errors))


if __name__ == "__main__":
    main()
