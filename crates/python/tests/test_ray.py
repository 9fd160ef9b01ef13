"""Ray Serve and Ray Data on a local Ray with two replicas, which is started once."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

ray = pytest.importorskip("ray", reason="skipped: ray is not installed")

STREAMS = 32
LENGTH = 200


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture(scope="module")
def cluster():
    """A local Ray, without what the tests do not need."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    for attempt in range(3):
        try:
            ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
            break
        except Exception:  # its processes had not started after 30 s, as happens on a busy machine
            ray.shutdown()
            if attempt == 2:
                raise
    yield ray
    ray.shutdown()


SETTINGS = {
    "model": "stories",
    "replicas": 2,
    "num_cpus": 1,
    "drain_timeout": 20,
    "flags": {"max-num-seqs": 24, "device": "cpu", "threads": 1},
}


@pytest.fixture(scope="module")
def site(cluster):
    """The address of two replicas."""
    from ray import serve
    from tern_llm.ray.serve import build

    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(build(SETTINGS), name="tern")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()


def call(url: str, body: dict | None = None, headers: dict | None = None) -> tuple[int, str]:
    """The status and the body of a response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def prompt(seed: int, **more) -> dict:
    """A request whose text is always the same."""
    return {"prompt": "Once upon a time", "seed": seed, "max_tokens": LENGTH, "ignore_eos": True, **more}


class Reader:
    """A client that reads a stream."""

    def __init__(self, site: str, seed: int) -> None:
        self.events: list[dict] = []
        self.times: list[float] = []
        self.done = False
        self.failure: Exception | None = None
        data = json.dumps(prompt(seed, stream=True)).encode()
        self._request = urllib.request.Request(
            f"{site}/v1/completions", data, {"content-type": "application/json"}
        )
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        try:
            with urllib.request.urlopen(self._request, timeout=120) as reply:
                for line in reply:
                    if line.startswith(b"data: [DONE]"):
                        self.done = True
                    elif line.startswith(b"data: "):
                        self.times.append(time.monotonic())
                        self.events.append(json.loads(line[6:]))
        except Exception as error:
            self.failure = error

    @property
    def text(self) -> str:
        return "".join(event["choices"][0]["text"] for event in self.events if "choices" in event)

    @property
    def error(self) -> dict | None:
        return self.events[-1].get("error") if self.events else None


def children(site: str) -> list[int]:
    """The processes of the servers of all replicas."""
    status, text = call(f"{site}/metrics")
    assert status == 200, text
    return sorted({int(pid) for pid in re.findall(r'replica="stories-(\d+)"', text)})


def parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def until(what, seconds: float, words: str) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, words
        time.sleep(0.2)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def texts(stories) -> list[str]:
    """The text of each seed."""
    answers = [
        stories.generate("Once upon a time", seed=s, max_tokens=LENGTH, ignore_eos=True)
        for s in range(STREAMS)
    ]
    return [answer.text for answer in answers]


def test_routes_are_those_of_the_server(site, texts):
    status, text = call(f"{site}/v1/completions", prompt(0))
    assert (status, json.loads(text)["choices"][0]["text"]) == (200, texts[0])
    assert json.loads(call(f"{site}/v1/models")[1])["data"][0]["id"] == "stories"
    assert call(f"{site}/health")[0] == 200
    assert json.loads(call(f"{site}/tokenize", {"prompt": "a b"})[1])["count"] > 0
    for path, body, want, words in [
        ("/nowhere", {}, 404, "unknown route"),
        ("/v1/completions", {"prompt": "a", "temperature": 9}, 400, "temperature: expected"),
        ("/v1/completions", {"prompt": "a", "model": "other"}, 404, "does not exist"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, 400, "chat template"),
        ("/v1/completions", {"prompt": "a" * (17 << 20)}, 413, "limit"),
    ]:
        status, text = call(site + path, body)
        assert status == want and words in json.loads(text)["error"]["message"], text
    # the port of a server is no way around the ingress
    assert len(children(site)) == 2


def test_servers_need_the_key_of_their_replica(site):
    for pid in children(site):
        with open("/proc/net/tcp") as file:
            rows = [line.split() for line in file][1:]
        inodes = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        [port] = [
            int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes
        ]
        assert call(f"http://127.0.0.1:{port}/v1/models")[0] == 401
        assert b"TERN_API_KEY" not in open(f"/proc/{pid}/cmdline", "rb").read()


def test_events_pass_one_by_one(site, texts):
    reader = Reader(site, 1)
    reader.thread.join()
    assert reader.done and reader.failure is None and reader.text == texts[1]
    assert len(reader.events) > LENGTH / 2
    assert reader.times[-1] - reader.times[0] > 0.3 * (reader.times[-1] - reader.times[0])


def test_a_client_that_leaves_cancels_its_request(site):
    body = json.dumps(prompt(0, stream=True, n=8)).encode()
    address = site.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1]))) as sock:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        assert sock.recv(100)

    def idle() -> bool:
        values = re.findall(r"^vllm:num_requests_running\S* (\S+)$", call(f"{site}/metrics")[1], re.M)
        return len(values) == 2 and not any(map(float, values))

    until(idle, 10, "the request still runs")


def test_a_killed_replica_ends_its_streams_and_no_later_request(site, texts):
    before = children(site)
    readers = [Reader(site, seed) for seed in range(STREAMS)]
    until(
        lambda: sum(len(reader.events) > 3 for reader in readers) > STREAMS * 0.75,
        60,
        "streams have not begun",
    )
    victim = before[0]
    os.kill(parent(victim), signal.SIGKILL)
    # requests succeed from now on, also those that the dead replica would have answered
    with ThreadPoolExecutor(8) as pool:
        later = list(pool.map(lambda _: call(f"{site}/v1/completions", prompt(0, max_tokens=4)), range(16)))
    assert [status for status, _ in later] == [200] * 16, later
    for reader in readers:
        reader.thread.join(120)
        assert reader.failure is None
    lost = [reader for reader in readers if reader.error]
    assert lost and len(lost) < STREAMS
    for reader, want in zip(readers, texts):
        if reader.error:
            # what was sent is the beginning of the text: nothing was generated again
            assert reader.error["code"] == "replica_lost" and want.startswith(reader.text) and not reader.done
        else:
            assert reader.done and reader.text == want
    until(lambda: not is_alive(victim), 15, "the server of the dead replica still runs")
    until(lambda: len([pid for pid in children(site) if pid != victim]) == 2, 60, "there is no replacement")


def test_a_rolling_update_and_scaling_lose_nothing(site):
    from ray import serve
    from tern_llm.ray.serve import build

    end, results = threading.Event(), []

    def client(seed: int) -> None:
        while not end.is_set():
            results.append(call(f"{site}/v1/completions", prompt(seed, max_tokens=40)))

    before = set(children(site))
    clients = [threading.Thread(target=client, args=(seed,)) for seed in range(6)]
    for thread in clients:
        thread.start()
    try:
        # other flags are another version of the replicas, of which there is one, or two under load
        scale = {
            "min": 1,
            "max": 2,
            "target_ongoing_requests": 2,
            "upscale_delay_s": 1,
            "downscale_delay_s": 2,
        }
        scale |= {"metrics_interval_s": 0.5, "look_back_period_s": 1, "initial_replicas": 1}
        changed = {**SETTINGS, "autoscale": scale, "flags": {**SETTINGS["flags"], "max-num-seqs": 16}}
        del changed["replicas"]
        serve.run(build(changed), name="tern")
        until(lambda: len(set(children(site)) - before) == 2, 60, "not scaled to two")
    finally:
        end.set()
        for thread in clients:
            thread.join()
    assert len(results) > 20 and {status for status, _ in results} == {200}, [
        r for r in results if r[0] != 200
    ][:3]
    until(lambda: len(children(site)) == 1, 60, "not scaled to one")
    assert call(f"{site}/v1/completions", prompt(0, max_tokens=4))[0] == 200
    serve.delete("tern")


def test_ten_thousand_rows_with_a_killed_actor_come_back_once_each(cluster):
    from tern_llm.ray import Batch

    ray.data.DataContext.get_current().execution_options.preserve_order = True
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = [{"id": n, "text": "" if n % 1000 == 7 else f"The number {n} is"} for n in range(10_000)]

    class Observed(Batch):
        """Says who works, and ends once in the middle."""

        async def __call__(self, batch):
            flag = batch["flag"][0]
            if 5000 in batch["id"] and not os.path.exists(flag):
                open(flag, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return await super().__call__(batch)

    flag = f"/tmp/tern-test-{os.getpid()}-killed"
    dataset = ray.data.from_items(
        [{**row, "flag": flag} for row in rows], override_num_blocks=20
    ).map_batches(
        Observed,
        fn_constructor_kwargs={
            "model": "stories",
            "load": {"device": "cpu", "threads": 1},
            "max_tokens": 2,
            "temperature": 0,
        },
        compute=ray.data.ActorPoolStrategy(size=2),
        batch_size=100,
        num_cpus=1,
    )
    try:
        out = dataset.take_all()
        assert os.path.exists(flag), "no actor was killed"
    finally:
        if os.path.exists(flag):
            os.remove(flag)
    assert [row["id"] for row in out] == list(range(10_000))
    failed = [row for row in out if row["error"]]
    assert [row["id"] for row in failed] == list(range(7, 10_000, 1000))
    assert "prompt" in failed[0]["error"] and failed[0]["answer"] is None
    assert all(row["completion_tokens"] == 2 for row in out if not row["error"])


def test_lines_of_batch_files(cluster):
    from tern_llm import Model
    from tern_llm.ray import Batch

    def line(custom_id: str, **more) -> str:
        body = {"prompt": "Once", "max_tokens": 4, "temperature": 0}
        return json.dumps(
            {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body, **more}
        )

    lines = [
        line("a"),
        line("b", body={"prompt": "Once", "temperature": 9}),
        line("c", url="/tokenize", body={"prompt": "a b c"}),
        line("d", body=3),
        "no json",
        line("e", url="/nowhere"),
    ]
    out = ray.data.from_items([{"text": text} for text in lines]).map_batches(
        Batch,
        fn_constructor_kwargs={
            "model": "stories",
            "method": "lines",
            "load": {"device": "cpu", "threads": 1},
        },
        compute=ray.data.ActorPoolStrategy(size=1),
        batch_size=6,
        num_cpus=1,
    )
    rows = out.take_all()
    got = [(row["custom_id"], json.loads(row["line"])["response"]["status_code"]) for row in rows]
    assert got == [("a", 200), ("b", 400), ("c", 200), ("d", 400), (None, 400), ("e", 404)]
    first = json.loads(rows[0]["line"])
    with Model("stories", device="cpu") as model:
        want = model.generate("Once", max_tokens=4, temperature=0).text
    assert first["response"]["body"]["choices"][0]["text"] == want and rows[0]["error"] is None
    assert "temperature" in rows[1]["error"] and "no JSON" in rows[4]["error"]


def test_a_file_of_requests_has_the_same_results_with_and_without_ray(cluster, tern, tmp_path):
    from tern_llm.ray import Batch

    texts = [f"The number {n} is" for n in range(40)] + ["word " * 3000]
    lines = [
        json.dumps(
            {
                "custom_id": f"row-{n}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {"model": "stories", "prompt": text, "max_tokens": 6, "seed": n, "temperature": 0.9},
            }
        )
        for n, text in enumerate(texts)
    ]
    file, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text("\n".join(lines) + "\n")
    tern("batch", str(file), str(output), "--device", "cpu", "-q")
    results = [output, output.with_name("out.errors.jsonl")]
    want = {one["custom_id"]: one for path in results for one in map(json.loads, path.open())}
    assert len(want) == len(texts)

    out = ray.data.read_text(str(file)).map_batches(
        Batch,
        fn_constructor_kwargs={"model": "stories", "method": "lines", "load": {"device": "cpu"}},
        compute=ray.data.ActorPoolStrategy(size=1),
        batch_size=16,
        num_cpus=1,
    )
    got = {row["custom_id"]: json.loads(row["line"]) for row in out.take_all()}
    assert got.keys() == want.keys()
    for name, one in want.items():
        other = got[name]["response"]
        assert other["status_code"] == one["response"]["status_code"], name
        for member in ("choices", "usage", "error"):
            assert other["body"].get(member) == one["response"]["body"].get(member), name
    assert want["row-40"]["response"]["status_code"] == 400


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: stories\nreplica: 2", "replica: unknown setting; did you mean replicas?"),
        ("model: stories\nreplicas: 0", "replicas: expected a whole number from 1, got 0"),
        ("replicas: 2", "model: expected the name or the file of a model, got None"),
        ("model: stories\nrouting: random", "routing: expected one of balanced, session, prefix"),
        ("model: stories\nflags: {port: 80}", "flags: port is set by the replica"),
        ("models: [{model: stories}, {model: stories}]", "two models or adapters have the name 'stories'"),
        ("models: []", "models: expected a list of at least one model"),
        ("- a", "expected a mapping"),
        ("a: [", "a: ["),
        (None, "No such file"),
    ],
)
def test_wrong_settings_are_one_sentence(tmp_path, text, words):
    file = tmp_path / "cluster.yaml"
    if text is not None:
        file.write_text(text)
    command = [sys.executable, "-m", "tern_llm", "serve-ray", str(file), "--print"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert (words if text != "a: [" else "cluster.yaml") in done.stderr


def test_the_file_for_serve_deploy_is_printed(tmp_path):
    import yaml

    file = tmp_path / "cluster.yaml"
    file.write_text("model: stories\nreplicas: 2\n")
    command = [sys.executable, "-m", "tern_llm", "serve-ray", str(file), "--print"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    from ray.serve.schema import ServeDeploySchema

    printed = yaml.safe_load(done.stdout)
    schema = ServeDeploySchema.model_validate(printed)
    assert schema.applications[0].import_path == "tern_llm.ray.serve:build"
    assert printed["applications"][0]["args"] == {"model": "stories", "replicas": 2}
