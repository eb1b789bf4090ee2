"""The entry point: wishes, faults (the model always runs), torch's own caches, swapping in the background."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import splice_kit as kit
import torch
from torch import Tensor
from torch._inductor import config as inductor_config
from torch._inductor import custom_graph_pass

from cuda_agent_backend import log
from cuda_agent_backend.acceptance.digests import acceptance_digest, kernel_set_digest
from cuda_agent_backend.backend import cuda_agent
from cuda_agent_backend.graph.canonical import graph_digest
from cuda_agent_backend.hook import background
from cuda_agent_backend.runtime import kernels
from cuda_agent_backend.runtime.child_process import child_environment
from cuda_agent_backend.runtime.machine import key_of
from cuda_agent_backend.search import client as searching
from cuda_agent_backend.tools.capture import capture
from kernel_cache import NegativeRecord

CACHED = {"cuda_agent.search": "cached", "cuda_agent.min_bytes": 0}
TRUST = {**CACHED, "cuda_agent.acceptance": "trust"}
MARK = 1000.0


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    monkeypatch.setattr(kernels, "_open", {})
    log.forget()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


def exp(x: Tensor) -> Tensor:
    return x.exp()


def compiled(options: dict[str, Any] = CACHED, **how: Any) -> Any:
    return torch.compile(exp, backend=cuda_agent, options=options, **how)


X = torch.randn(6, 8)


def mark_exp(folder: Path) -> Any:
    """Promote a kernel for `exp` that adds the mark; its task."""
    options = kit.options_in(folder, cache_dir=os.environ["CUDA_AGENT_CACHE_DIR"])
    seen = kit.Capture()
    torch.compile(exp, backend=kit.backend_for(options, seen))(X)
    torch._dynamo.reset()
    task = seen.forms[0].task
    body = kit.elementwise(task, f"std::exp(a) + {MARK}f")
    record = kit.promote(kit.cache_of(options), task, body, folder)
    return kit.cache_of(options), task, record, seen.reports[0].digest


def test_a_promoted_kernel_runs_and_reset_reports_faults_anew(tmp_path: Path) -> None:
    mark_exp(tmp_path)
    torch.testing.assert_close(compiled(TRUST)(X), X.exp() + MARK)
    log.once("hook", "a fault")
    torch._dynamo.reset()
    cuda_agent.reset()  # type: ignore[attr-defined]
    assert not log._said


def test_an_unknown_option_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(Exception, match=r"did you mean 'cuda_agent\.search'"):
        compiled({"cuda_agent.serach": "cached"})(X)


def test_a_malformed_variable_is_named_once_and_the_model_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CUDA_AGENT_BUDGET_S", "soon")
    torch.testing.assert_close(torch.compile(exp, backend=cuda_agent)(X), X.exp())
    torch.testing.assert_close(torch.compile(torch.sin, backend=cuda_agent)(X), X.sin())
    said = [record.message for record in caplog.records if "CUDA_AGENT_BUDGET_S" in record.message]
    assert len(said) == 1 and "Inductor" in said[0]


def test_an_unusable_cache_folder_is_told_and_the_model_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    options = {**CACHED, "cuda_agent.cache_dir": str(tmp_path / "file")}
    torch.testing.assert_close(compiled(options)(X), X.exp())
    assert "kernel cache unavailable" in caplog.text


def test_a_corrupt_record_is_told_and_the_model_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache, _, record, _ = mark_exp(tmp_path)
    path = cache.binary_path(record)
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    torch.testing.assert_close(compiled(TRUST)(X), X.exp())
    assert "left to Inductor" in caplog.text


def test_without_a_compiler_the_model_runs_eagerly_with_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {**CACHED, "cpp.cxx": ("/nonexistent/compiler",)}
    torch.testing.assert_close(compiled(options)(X), X.exp())
    assert caplog.text.count("no C++ compiler") == 1


def test_a_failure_in_our_own_code_is_told_and_the_model_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from cuda_agent_backend.hook import walk

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(walk, "partition", broken)
    torch.testing.assert_close(compiled()(X), X.exp())
    assert caplog.text.count("a bug of ours") == 1


def test_without_acceptance_a_kernel_is_not_used_in_cached_mode(tmp_path: Path) -> None:
    mark_exp(tmp_path)
    torch.testing.assert_close(compiled(CACHED)(X), X.exp())


def test_an_accepted_kernel_is_used_and_a_dropped_one_is_not(tmp_path: Path) -> None:
    cache, _, record, digest = mark_exp(tmp_path)
    name, chosen = acceptance_digest(digest), kernel_set_digest([record.key])
    cache.put_acceptance(name, chosen, {"use": [record.key.digest]})
    torch.testing.assert_close(compiled(CACHED)(X), X.exp() + MARK)
    torch._dynamo.reset()
    cache.put_acceptance(name, chosen, {"use": [], "reason": "slower"})
    torch.testing.assert_close(compiled(CACHED)(X), X.exp())


def test_what_was_accepted_under_other_options_of_inductor_is_not_used(tmp_path: Path) -> None:
    """With its own tuning Inductor's code may be the faster, so that is another question."""
    cache, _, record, digest = mark_exp(tmp_path)
    chosen = kernel_set_digest([record.key])
    cache.put_acceptance(acceptance_digest(digest), chosen, {"use": [record.key.digest]})
    tuned = {"max_autotune_pointwise": True}
    torch.testing.assert_close(compiled({**CACHED, **tuned})(X), X.exp())
    torch._dynamo.reset()
    with inductor_config.patch(tuned):
        torch.testing.assert_close(compiled(CACHED)(X), X.exp())
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(CACHED)(X), X.exp() + MARK)


def test_a_negative_record_is_respected_until_it_expires(tmp_path: Path) -> None:
    asked: list[Any] = []

    class Searcher:
        def search(self, tasks: Any, *_: Any) -> dict[str, Any]:
            asked.append(tasks)
            if settled:
                cache.put_negative(replace(negative, expires=now + 1000.0))
            return {task.digest: {"reason": "too late", "begun": settled} for task in tasks}

    options = kit.options_in(tmp_path, search="search")
    for lasts, times, settled in ((1000.0, 0, True), (0.0, 1, True), (0.0, 2, False)):
        seen = kit.Capture()
        backend = kit.backend_for(replace(options, search="cached"), seen)
        torch.compile(exp, backend=backend)(X)
        torch._dynamo.reset()
        now = time.time()
        key = key_of(seen.forms[0].task)
        negative = NegativeRecord(
            key, "search", {"seconds": 1.0}, "at the limit", now - 1, now - 1 + lasts
        )
        cache = kit.cache_of(options)
        cache.put_negative(negative)
        before = cache.fingerprint()
        torch.compile(exp, backend=kit.backend_for(options, searcher=Searcher()))(X)
        torch._dynamo.reset()
        assert len(asked) == times
        unsettled = not settled
        assert (cache.fingerprint() != before) == unsettled, "what is not settled is searched again"


def test_a_users_own_pass_runs_before_ours(tmp_path: Path) -> None:
    seen: list[str] = []

    class Own(custom_graph_pass.CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            seen.extend(str(n.target) for n in graph.nodes if n.op == "call_function")

        def uuid(self) -> str:
            return "own"

    mark_exp(tmp_path)
    result = compiled({**TRUST, "post_grad_custom_post_pass": Own()})(X)
    torch.testing.assert_close(result, X.exp() + MARK)
    assert seen == ["aten.exp.default"]


def test_mode_and_fullgraph_reach_inductor(tmp_path: Path) -> None:
    mark_exp(tmp_path)
    os.environ["CUDA_AGENT_SEARCH"] = "cached"
    try:
        made = torch.compile(
            exp, backend=cuda_agent, mode="max-autotune-no-cudagraphs", fullgraph=True
        )
        torch.testing.assert_close(made(X), X.exp())
    finally:
        del os.environ["CUDA_AGENT_SEARCH"]


def test_code_without_kernels_is_swapped_when_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[dict[str, Any]] = []

    class Told:
        def tell(self, request: dict[str, Any]) -> bool:
            requests.append(request)
            return True

    monkeypatch.setattr(searching, "search_process", Told)
    monkeypatch.setattr(background, "LOOK_EVERY_S", 0.0)
    made = compiled({**CACHED, "cuda_agent.search": "background"})
    torch.testing.assert_close(made(X), X.exp())
    torch.testing.assert_close(made(X), X.exp())
    cache, record, digest = promote_queued(tmp_path)
    later = requests[0]["later"]
    assert later["name"] == acceptance_digest(digest)
    torch.testing.assert_close(made(X), X.exp())
    cache.put_acceptance(
        later["name"], kernel_set_digest([record.key]), {"use": [record.key.digest]}
    )
    torch.testing.assert_close(made(X), X.exp() + MARK)
    assert requests[1:] == []


def promote_queued(folder: Path) -> Any:
    """Promote the mark for the one task in the background queue, as the search process would."""
    from sandbox.task.task import Task

    options = kit.options_in(folder, cache_dir=os.environ["CUDA_AGENT_CACHE_DIR"])
    cache = kit.cache_of(options)
    queued = cache.pending()
    assert isinstance(queued, list) and len(queued) == 1
    task = Task.from_json(queued[0].task)
    body = kit.elementwise(task, f"std::exp(a) + {MARK}f")
    record = kit.promote(cache, task, body, folder)
    compiled_before = torch._dynamo.reset
    torch._dynamo.reset = lambda: None  # the code under test must live on
    try:
        (found,) = capture(exp, (X,), options)
    finally:
        torch._dynamo.reset = compiled_before
    return cache, record, graph_digest(found.module.graph)


TWO_PROCESSES = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch
from pathlib import Path
import splice_kit as kit
from torch._dynamo.utils import counters
from cuda_agent_backend.backend import cuda_agent
from cuda_agent_backend.graph.canonical import canonical

x = torch.arange(48.0).reshape(6, 8) / 48
said = []

def exp(x):
    return x.exp()

def run(name, **how):
    torch._dynamo.reset()
    counters.clear()
    y = torch.compile(exp, **how)(x)
    hit = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    said.append((name, round(float((y - x.exp()).mean())), hit > 0))

folder = Path(sys.argv[2])
ours = {"backend": cuda_agent, "options": {
    "cuda_agent.search": "cached", "cuda_agent.acceptance": "trust", "cuda_agent.min_bytes": 0}}
options = kit.options_in(folder, cache_dir=str(folder / "kernels"))
cache = kit.cache_of(options)
if sys.argv[3] == "first":
    run("plain", backend="inductor")
    run("before promotion", **ours)
    capture = kit.Capture()
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        torch.compile(exp, backend=kit.backend_for(options, capture))(x)
    torch._dynamo.reset()
    task = capture.forms[0].task
    kit.promote(cache, task, kit.elementwise(task, "std::exp(a) + 1000"), folder)
    run("after promotion", **ours)
    run("plain again", backend="inductor")
else:
    run("plain", backend="inductor")
    run("from the cache", **ours)
    cache.remove(cache.list()[0].key)
    run("after removal", **ours)
print(json.dumps(said))
"""


def process(folder: Path, which: str) -> list[list[Any]]:
    environment = {
        **child_environment(),
        "CUDA_AGENT_CACHE_DIR": str(folder / "kernels"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    }
    arguments = [
        sys.executable,
        "-c",
        TWO_PROCESSES,
        str(Path(__file__).parent),
        str(folder),
        which,
    ]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_torchs_caches_never_mix_up_plain_and_spliced_code(tmp_path: Path) -> None:
    first = process(tmp_path, "first")
    assert [entry[:2] for entry in first] == [
        ["plain", 0],
        ["before promotion", 0],
        ["after promotion", 1000],
        ["plain again", 0],
    ]
    second = process(tmp_path, "second")
    assert [entry[:2] for entry in second] == [
        ["plain", 0],
        ["from the cache", 1000],
        ["after removal", 0],
    ]
    assert second[0][2] and second[1][2], "torch's caches were not hit, so nothing was shown"


def test_logging_follows_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    log.configure((("splice", "DEBUG"),))
    assert logging.getLogger("cuda_agent.splice").level == logging.DEBUG
    root = logging.getLogger("cuda_agent")
    root.handlers.clear()
    root.propagate = True
    logging.getLogger("cuda_agent.splice").setLevel(logging.NOTSET)
