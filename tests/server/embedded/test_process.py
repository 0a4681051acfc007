"""The embedded server's process: who can reach it, when it ends, what it holds, and the tiny model on it."""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import select
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]  # comes with ipykernel
import pytest

from loopkit.errors import InvalidConfig, ServerNotStarted
from loopkit.server.embedded import process
from loopkit.server.embedded.models import ModelFile, resolve
from loopkit.server.embedded.process import Child, read_template, start_child
from loopkit.server.opening import serve
from tests.server.asking import NOW_IN, Answer, client, user

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelFile]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield resolve("tiny")


@pytest.fixture(scope="module")
def child(tiny: ModelFile) -> Iterator[Child]:
    started = start_child(tiny, context=8192)
    yield started
    started.close()


@pytest.fixture
def http(child: Child) -> Iterator[httpx.Client]:
    with client(child) as opened:
        for slot in range(2):
            assert opened.post(f"/slots/{slot}?action=erase").status_code == 200
        yield opened


# who can reach it


def test_it_listens_on_loopback_alone(child: Child) -> None:
    listening = [each for each in psutil.Process(child.pid).net_connections("inet") if each.status == psutil.CONN_LISTEN]
    assert [f"http://{each.laddr.ip}:{each.laddr.port}" for each in listening] == [child.url]
    assert child.url.startswith("http://127.0.0.1:")


def test_without_the_key_only_health_answers(child: Child) -> None:
    with httpx.Client(base_url=child.url) as stranger:
        assert stranger.get("/health").status_code == 200
        for path in ("/v1/models", "/props", "/slots", "/metrics"):
            assert stranger.get(path).status_code == 401, path
        assert stranger.get("/v1/models", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert stranger.get("/").status_code in (401, 404)  # no web page of its own
    with client(child) as ours:
        assert ours.get("/v1/models").status_code == 200


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
def test_no_foreign_origin_is_allowed(child: Child, method: str) -> None:
    headers = {"Origin": "https://foreign.example", "Access-Control-Request-Method": "GET"}
    for path in ("/health", "/v1/models"):
        answer = httpx.request(method, child.url + path, headers=headers)
        assert answer.headers.get("Access-Control-Allow-Origin", "") == ""
        assert answer.headers.get("Access-Control-Allow-Credentials", "false") == "false"


def test_the_key_stands_nowhere(child: Child) -> None:
    assert len(child.key) >= 32
    for name in ("cmdline", "environ"):
        assert child.key.encode() not in Path(f"/proc/{child.pid}/{name}").read_bytes()
    assert child.key not in repr(child)
    assert child.key not in child.log_tail()


def test_two_children_have_two_ports_and_two_keys(child: Child, tiny: ModelFile) -> None:
    other = start_child(tiny)
    assert (other.url, other.key) != (child.url, child.key)
    assert other.url != child.url
    assert other.key != child.key
    other.close()


def test_it_loads_nothing_of_loopkit_or_of_the_directory_it_starts_in(
    tiny: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    started = start_child(tiny)
    maps = Path(f"/proc/{started.pid}/maps").read_text()
    started.close()
    assert "xllamacpp" in maps
    assert "msgspec" not in maps


# when it ends


def ended(pidfd: int, seconds: float = 30) -> bool:
    """Wait for the process's end."""
    try:
        return bool(select.select([pidfd], [], [], seconds)[0])
    finally:
        os.close(pidfd)


def test_close_ends_it_and_removes_its_files(tiny: ModelFile) -> None:
    started = start_child(tiny)
    folder = started.slot_dir
    assert started.alive()
    assert folder.stat().st_mode & 0o777 == 0o700
    started.close()
    started.close()
    assert not started.alive()
    assert not psutil.pid_exists(started.pid)  # not even as a zombie
    assert not folder.exists()
    assert started.log_tail() == ""
    assert "ended" in repr(started)


def test_it_ends_with_its_last_reference(tiny: ModelFile) -> None:
    started = start_child(tiny)
    pid = started.pid
    del started
    assert not psutil.pid_exists(pid)


def test_a_server_that_died_is_seen(tiny: ModelFile) -> None:
    started = start_child(tiny)
    os.kill(started.pid, signal.SIGKILL)
    assert ended(os.pidfd_open(started.pid))
    assert not started.alive()
    started.close()


PARENT = """
import os, signal, sys, time
from pathlib import Path
from loopkit.server.embedded.process import start_child
from loopkit.server.embedded.models import ModelFile
child = start_child(ModelFile("tiny", Path(sys.argv[1])))
fork = 0
if sys.argv[2] == "fork":
    fork = os.fork()
    if not fork:
        os.close(1)
        signal.pause()
(child.slot_dir / "saved.bin").touch()
print(child.pid, fork, child.slot_dir, flush=True)
sys.stdin.readline()
if sys.argv[3] == "os._exit":
    os._exit(0)
"""


@pytest.mark.parametrize("forked", ["alone", "fork"])
@pytest.mark.parametrize("end", ["exit", "os._exit", "SIGKILL", "SIGTERM"])
def test_it_ends_with_its_parent_and_leaves_nothing(tiny: ModelFile, forked: str, end: str) -> None:
    command = [sys.executable, "-c", PARENT, str(tiny.path), forked, end]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        pid, fork, slot_dir = parent.stdout.readline().split()
        server = os.pidfd_open(int(pid))
        try:
            if end.startswith("SIG"):
                parent.send_signal(signal.Signals[end])
            else:
                parent.stdin.write("\n")
                parent.stdin.flush()
            parent.wait(30)
            assert ended(server)
            assert not Path(slot_dir).exists()
        finally:
            if fork != "0":
                os.kill(int(fork), signal.SIGKILL)


def test_a_forked_process_does_not_end_it(tiny: ModelFile) -> None:
    program = PARENT.split("fork = 0", maxsplit=1)[0] + (
        "fork = os.fork()\n"
        "if not fork:\n"
        "    child.close()\n"
        "    sys.exit()  # runs the finalizers of a whole interpreter\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0\n"
        "print(child.alive(), child.slot_dir.exists(), child.log_tail() is not None)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tiny.path)], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True True True\n", "")


def test_an_interrupt_of_the_kernel_is_not_for_it(child: Child) -> None:
    # Ctrl-C goes to the foreground process group of a terminal
    assert os.getpgid(child.pid) != os.getpgid(0)


@pytest.mark.parametrize("closed", [(0,), (0, 1), (1, 2), (0, 1, 2)])
def test_it_starts_where_the_standard_descriptors_are_closed(tiny: ModelFile, closed: tuple[int, ...]) -> None:
    program = (
        f"import os\nfor each in {closed}: os.close(each)\n"
        + PARENT.split("fork = 0", maxsplit=1)[0]
        + "alive = child.alive()\nchild.close()\nos._exit(0 if alive else 1)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tiny.path)], timeout=60).returncode == 0


# what it holds


def test_slots_are_explicit_and_not_unified(tiny: ModelFile) -> None:
    started = start_child(tiny, slots=3, context=512)
    with client(started) as http:
        assert http.get("/props").json()["total_slots"] == 3
        assert [(slot["id"], slot["n_ctx"]) for slot in http.get("/slots").json()] == [(0, 512), (1, 512), (2, 512)]
        too_long = http.post("/v1/chat/completions", json={"messages": [user("a" * 600)]})
        assert too_long.json()["error"]["type"] == "exceed_context_size_error"
    started.close()


def test_it_leaves_a_core_to_others(tiny: ModelFile) -> None:
    started = start_child(tiny, context=512, verbosity=3)
    assert f"n_threads = {max(1, len(os.sched_getaffinity(0)) - 1)}\n" in started.log_tail(100_000)
    started.close()


def test_slots_can_be_saved_and_restored(child: Child, http: httpx.Client) -> None:
    first = Answer(http, [user("Remember this.")], id_slot=0)
    saved = http.post("/slots/0?action=save", json={"filename": "one.bin"}).json()
    assert saved["n_saved"] == first.prompt + first.completion - 1
    assert (child.slot_dir / "one.bin").exists()
    http.post("/slots/0?action=erase")
    assert http.post("/slots/0?action=restore", json={"filename": "one.bin"}).json()["n_restored"] == saved["n_saved"]
    assert Answer(http, [user("Remember this.")], id_slot=0).cached == first.prompt - 1


def test_a_slot_directory_of_ones_own_is_kept(tiny: ModelFile, tmp_path: Path) -> None:
    started = start_child(tiny, slot_dir=tmp_path)
    with client(started) as http:
        Answer(http, [user("Hello")], id_slot=0)
        http.post("/slots/0?action=save", json={"filename": "mine.bin"}).raise_for_status()
    assert started._process.stdin is not None
    started._process.stdin.close()  # it ends of itself
    assert ended(os.pidfd_open(started.pid))
    started.close()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.bin"]


def test_build_is_the_version_of_the_wheel(child: Child) -> None:
    assert child.build == importlib.metadata.version("xllamacpp")


def test_llama_parameters_are_passed_on(tiny: ModelFile) -> None:
    started = start_child(
        tiny, kv_unified=True, n_threads=1, slot_prompt_similarity=0, cache_type_k="GGML_TYPE_F32", verbosity=3, context=512
    )
    with client(started) as http:
        assert [slot["n_ctx"] for slot in http.get("/slots").json()] == [1024, 1024]
    assert "n_ctx" in started.log_tail(100_000)  # the log of verbosity 3
    assert started.key not in started.log_tail(100_000)
    started.close()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"cach_ram": 1}, r"^cach_ram: llama.cpp has no such parameter\. The nearest names: .*cache_ram_mib"),
        ({"zzzzzzzz": 1}, r"^zzzzzzzz: llama.cpp has no such parameter$"),
        ({"__class__": 1}, r"^__class__: llama.cpp has no such parameter"),
        ({"kv_unified": 1}, r"^kv_unified: expected bool; got int \(1\)"),
        ({"n_ubatch": True}, r"^n_ubatch: expected int; got bool \(True\)"),
        ({"n_ubatch": 2**40}, r"^n_ubatch: llama.cpp rejects 1099511627776"),
        ({"n_threads": "2"}, r"^n_threads: expected int; got str \('2'\)"),
        ({"cache_type_k": "Q9"}, r"^cache_type_k: expected one of .*GGML_TYPE_Q8_0.*; got 'Q9'"),
        ({"n_parallel": 2}, r"^n_parallel: this parameter is slots="),
        ({"port": 80}, r"^port: loopkit sets this parameter itself"),
        ({"server_tools": ["all"]}, r"^server_tools: loopkit sets this parameter itself"),
        ({"api_keys": []}, r"^api_keys: loopkit sets this parameter itself"),
        ({"swa_full": object()}, r"cannot be encoded|swa_full"),
        ({"slots": 0}, r"^slots: expected an integer of at least 1; got 0"),
        ({"context": True}, r"^context: expected an integer of at least 1; got True"),
    ],
)
def test_a_wrong_parameter_is_refused(tiny: ModelFile, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        start_child(tiny, **parameters)


# failed starts


def children() -> list[int]:
    return [each.pid for each in psutil.Process().children()]


def test_a_broken_file_is_a_clear_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    before = children()
    with pytest.raises(
        ServerNotStarted, match=r"did not start: its process ended with status .*last output.*broken\.gguf"
    ) as raised:
        start_child(resolve(broken))
    assert "supports the GGUF file" in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    assert children() == before


def test_a_broken_template_is_a_clear_error(tiny: ModelFile) -> None:
    with pytest.raises(ServerNotStarted, match="that the template is valid"):
        start_child(tiny, template="{% for %}")


def test_without_the_wheel_it_says_what_to_install(tiny: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(ServerNotStarted, match=r"xllamacpp is not installed.*pip install 'loopkit-lab\[local\]'"):
        start_child(tiny)


def test_a_start_that_hangs_is_ended(tiny: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo = tmp_path / "model.gguf"
    os.mkfifo(fifo)  # opening it waits for a writer
    monkeypatch.setattr(process, "START_TIMEOUT", 0.5)
    before = children()
    with pytest.raises(ServerNotStarted, match="it did not accept connections within"):
        start_child(tiny._replace(path=fifo))
    assert children() == before


@pytest.mark.slow
def test_smollm2_answers_and_takes_tools() -> None:
    started = start_child(resolve("smollm2"), slots=1, context=1024)
    with client(started) as http:
        assert http.get("/props").json()["chat_template_caps"]["supports_tools"] is True
        answer = Answer(http, [user("Say hello.")], max_tokens=8)
        assert answer.completion > 0
        assert answer.message["content"]
        tools = Answer(http, [user("Say hello.")], max_tokens=8, tools=[NOW_IN])
        assert tools.prompt > answer.prompt + 50
    started.close()


def test_a_template_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text("{{ messages }}")
    assert read_template(path) == read_template(str(path)) == read_template("{{ messages }}") == "{{ messages }}"


def test_a_template_without_a_brace_is_refused(tiny: ModelFile, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cannot be read as a file"):
        start_child(tiny, template=str(tmp_path / "qwen3.jinja"))
    (tmp_path / "plain.jinja").write_text("plain")
    with pytest.raises(InvalidConfig, match="has no brace"):
        read_template(tmp_path / "plain.jinja")


def test_a_slot_directory_that_does_not_exist_is_refused(tiny: ModelFile, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="Create it first"):
        start_child(tiny, slot_dir=tmp_path / "missing")


def test_a_context_longer_than_the_models_is_reported_once(tiny: ModelFile) -> None:
    with pytest.warns(UserWarning, match="32,768 tokens per slot, not 65,536"):
        server = serve(tiny.path, slots=1, context=65_536)
    assert server.another is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with server, server.another() as other:
            assert (server.context_size, other.context_size) == (32_768, 32_768)
