#!/usr/bin/env python3
"""Writes a Helm chart from deploy/kubernetes/base: the rendered manifests, with values where charts have them.

    scripts/helm_chart.py FOLDER

Needs kubectl and PyYAML. The chart is not in the repository; the release workflow writes it and runs helm's own checks.
"""

import re
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
VALUES = """\
# image and number of pods
image: {repository: tern, tag: "", pullPolicy: IfNotPresent}
replicas: 1
# flags of tern serve; --open-monitoring lets the kubelet request /ready without a key
args: [-m, smollm2, --open-monitoring, --log-format, json]
# name of a secret with the API key in its member `key`; without it every pod of the cluster may use the server
keySecret: tern-key
resources: {}
nodeSelector: {}
tolerations: []
service: {type: ClusterIP, port: 80}
"""
# what is replaced in the manifests: a mark, and the template
MARKS = {
    "@image": '"{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"',
    "@pull": "{{ .Values.image.pullPolicy }}",
    "@replicas": "{{ .Values.replicas }}",
    "@args": "{{ toJson .Values.args }}",
    "@secret": "{{ .Values.keySecret }}",
    "@resources": "{{ toJson .Values.resources }}",
    "@nodes": "{{ toJson .Values.nodeSelector }}",
    "@tolerations": "{{ toJson .Values.tolerations }}",
    "@type": "{{ .Values.service.type }}",
    "@port": "{{ .Values.service.port }}",
    "@name": "{{ .Release.Name }}",
}


def marked(found):
    """A manifest with marks instead of the values of the chart."""
    name, spec = "@name", found["spec"]
    found["metadata"]["name"] = name
    labels = {"app.kubernetes.io/name": "tern", "app.kubernetes.io/instance": name}
    found["metadata"]["labels"] = dict(labels)
    if found["kind"] == "Deployment":
        pod = spec["template"]["spec"]
        spec["replicas"], spec["selector"]["matchLabels"] = "@replicas", dict(labels)
        spec["template"]["metadata"]["labels"] = dict(labels)
        pod["nodeSelector"], pod["tolerations"] = "@nodes", "@tolerations"
        container = pod["containers"][0]
        container.update(image="@image", imagePullPolicy="@pull", args="@args", resources="@resources")
        container["env"][0]["valueFrom"]["secretKeyRef"]["name"] = "@secret"
    elif found["kind"] == "Service":
        spec["selector"], spec["type"] = dict(labels), "@type"
        spec["ports"][0]["port"] = "@port"
    else:
        spec["selector"]["matchLabels"] = dict(labels)
    return found


def template(found):
    text = yaml.safe_dump(marked(found), sort_keys=False)
    text = re.sub(r"'(@[a-z]+)'", r"\1", text)
    for mark, value in MARKS.items():
        text = re.sub(rf"{mark}\b", lambda _: value, text)
    return text


def main():
    folder = Path(sys.argv[1])
    rendered = subprocess.run(
        ["kubectl", "kustomize", ROOT / "deploy/kubernetes/base"], check=True, capture_output=True, text=True
    )
    chart = {
        "apiVersion": "v2", "name": "tern", "description": "A language model server", "type": "application",
        "version": VERSION, "appVersion": VERSION,
    }
    (folder / "templates").mkdir(parents=True, exist_ok=True)
    (folder / "Chart.yaml").write_text(yaml.safe_dump(chart, sort_keys=False))
    (folder / "values.yaml").write_text(VALUES)
    for found in yaml.safe_load_all(rendered.stdout):
        (folder / "templates" / f"{found['kind'].lower()}.yaml").write_text(template(found))


if __name__ == "__main__":
    main()
