"""What a model does in processes and threads: pickling, forks, signals, the lock of the interpreter, its
end."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from tern_llm import Model


def python(text: str, **options) -> subprocess.CompletedProcess:
    """Runs a program in a new process."""
    command = [sys.executable, "-c", textwrap.dedent(text)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def test_a_pickle_is_a_name_and_options():
    model = Model("stories", device="cpu", context=128, max_num_seqs=2)
    stored = pickle.dumps(model)
    assert len(stored) < 200
    again = pickle.loads(stored)
    assert (again.name, again.context, again.max_num_seqs) == ("stories", 128, 2)
    want = model.generate("Once", temperature=0, max_tokens=4).text
    assert again.generate("Once", temperature=0, max_tokens=4).text == want


def test_a_fork_is_an_error(stories):
    stories.generate("Once", max_tokens=1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            stories.generate("Once", max_tokens=1)
            text = "no error"
        except RuntimeError as error:
            text = str(error)
        os.write(writer, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    text = os.read(reader, 1000).decode()
    assert f"loaded in process {os.getpid()}" in text and "forked" in text and "spawn" in text
    assert stories.generate("Once", max_tokens=1).text


def test_a_forked_process_ends():
    done = python("""
        import os, sys
        from tern_llm import Model
        model = Model("stories", device="cpu")
        if os.fork() == 0:
            del model
            sys.exit(0)
        print(os.wait()[1], model.generate("Once", max_tokens=1).finish_reason)
    """)
    assert done.stdout.split() == ["0", "length"], done.stderr


def test_the_interpreter_runs_while_a_model_works(stories):
    ticks = []
    end = threading.Event()

    def tick():
        while not end.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.002)

    ticking = threading.Thread(target=tick)
    ticking.start()
    begin = time.monotonic()
    stories.generate(["Once"] * 64, max_tokens=64, ignore_eos=True)
    took = time.monotonic() - begin
    during = [tick for tick in ticks if tick > begin]
    end.set()
    ticking.join()
    # a lock that is held would leave one gap as long as the work; a busy machine has short ones
    assert len(during) > 10 and max(b - a for a, b in zip(during, during[1:])) < max(0.5, took / 4)


def test_ctrl_c_ends_a_request_and_the_model_lives_on():
    done = python("""
        import os, signal, threading, time
        from tern_llm import Model
        model = Model("stories", device="cpu")
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        try:
            while True:
                model.generate(["Once"] * 500, ignore_eos=True)
        except KeyboardInterrupt:
            print(time.monotonic() - begin < 2, model.generate("Once", max_tokens=1).finish_reason)
    """)
    assert done.stdout.split() == ["True", "length"], done.stderr


def test_processes_end_with_requests_under_way():
    for rest in ["", "stream.close()", "model.close()", "import os; os.kill(os.getpid(), 15)"]:
        done = python(f"""
            from tern_llm import Model
            model = Model("stories", device="cpu")
            stream = model.stream("Once", ignore_eos=True)
            next(stream)
            {rest}
        """)
        assert done.returncode == (-15 if "kill" in rest else 0), (rest, done.stderr)
        assert done.stderr == ""


def test_a_closed_model_says_so():
    with Model("stories", device="cpu") as model:
        stream = model.stream("Once", ignore_eos=True)
        next(stream)
    assert repr(model) == "Model('stories', closed)"
    with pytest.raises(RuntimeError, match="closed"):
        model.generate("Once")
    with pytest.raises(Exception, match="shutting down"):
        list(stream)


def test_the_command_is_the_rust_one(tern):
    assert tern("--version").startswith("tern ")
    assert "girl" in tern("run", "Once upon a time", "-n", "12", "--temp", "0", "-q")
    wrong = subprocess.run(
        [sys.executable, "-m", "tern_llm", "run", "--nonsense"], capture_output=True, text=True
    )
    assert wrong.returncode == 2 and "--nonsense" in wrong.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_command(number):
    command = [
        sys.executable,
        "-m",
        "tern_llm",
        "run",
        "Once",
        "-m",
        "stories",
        "-n",
        "100000000",
        "--device",
        "cpu",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    assert process.stdout.read(1)
    process.send_signal(number)
    begin = time.monotonic()
    process.stdout.read()
    assert process.wait(10) in (-number, 130, 0) and time.monotonic() - begin < 3
