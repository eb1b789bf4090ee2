"""SKILL.md says what the tools, the plan parser and the sketches say; its examples work."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from agent_tasks import samples

from cuda_agent_backend.agent.skill.document import skill
from cuda_agent_backend.agent.skill.example import (
    SOURCES,
    TRITON_SOURCE,
    example_files,
    example_plan,
    example_source,
    example_task,
    source_of,
    triton_plan,
)
from cuda_agent_backend.agent.skill.sketches import explained, paragraph
from cuda_agent_backend.agent.skill.template import plan_template
from cuda_agent_backend.agent.tools.toolbox import tool_schemas
from cuda_agent_backend.cli import command as cli
from cuda_agent_backend.codegen.api import analyse
from cuda_agent_backend.codegen.covered_task import Analysis
from cuda_agent_backend.codegen.ir.parameters import OF_ANY
from cuda_agent_backend.codegen.registry import FAMILIES
from cuda_agent_backend.runtime.machine import arch_of
from sandbox.accuracy.oracle import run_oracle
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.compile.toolchain import Missing, find_cuda, find_triton
from sandbox.graph.build import build_graph
from sandbox.judge import Judge
from sandbox.judge.settings import JudgeSettings
from sandbox.plan.candidate import Candidate, Language
from sandbox.plan.plan import Launch, Plan
from sandbox.task.task import Task
from sandbox.verdict import Correct

TARGETS = ("cpu", "cuda")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("target", TARGETS)
def test_every_tool_is_named_with_its_arguments(target: str) -> None:
    text = skill(target)
    for schema in tool_schemas():
        function = schema["function"]
        properties = function["parameters"]["properties"]
        names = [n if n in function["parameters"]["required"] else f"{n}?" for n in properties]
        assert f"`{function['name']}({', '.join(names)})`" in text
        assert function["description"] in text
        for argument in properties.values():
            assert argument["description"] in text


@pytest.mark.parametrize("target", TARGETS)
def test_no_tool_is_named_that_there_is_not(target: str) -> None:
    known = {schema["function"]["name"] for schema in tool_schemas()}
    section = skill(target).partition("## Tools")[2].partition("\n## ")[0]
    named = set(re.findall(r"\*\*`(\w+)\(", section))
    assert named == known


@pytest.mark.parametrize("target", TARGETS)
def test_the_plan_in_the_text_parses_and_has_the_examples_buffers(target: str) -> None:
    text = blocks(skill(target), "json")[0]
    plan = Plan.from_json(text)
    task = example_task(target)
    assert plan.target == target
    assert (plan.input_specs, plan.output_specs) == (task.inputs, task.output_specs)
    assert plan.to_json() == Plan.from_json(example_plan(target)).to_json()


@pytest.mark.parametrize("target", TARGETS)
def test_temporaries_and_arguments_as_the_text_writes_them_parse(target: str) -> None:
    text = re.sub(r"\s+", " ", skill(target))
    temporary = re.search(r'`(\{"name": "partial".*?\})`', text)
    assert temporary
    document = json.loads(example_plan("cuda"))
    document["buffers"].append(json.loads(temporary[1]))
    document["sizes"]["n"] = 7
    document["steps"][0]["args"] += ["partial"]
    if target == "cuda":
        scalars = re.findall(r'`(\{"(?:i32|i64|f32)": [^}]*\})`', text)
        assert len(scalars) == 3
        document["steps"][0]["args"] += [json.loads(s) for s in scalars]
    plan = Plan.from_document(document)
    assert plan.temporary_specs[0].shape == (1024,)


@pytest.mark.parametrize("target", TARGETS)
def test_no_gap_is_left_and_nothing_is_said_of_the_other_target(target: str) -> None:
    text = skill(target)
    assert "{{" not in text.replace("{{{", "")
    other = "__global__" if target == "cpu" else "omp parallel"
    assert other not in text


@pytest.mark.parametrize("target", TARGETS)
def test_the_source_in_the_text_is_the_examples(target: str) -> None:
    (text,) = blocks(skill(target), "cpp")
    assert text == example_source(target) == example_files(target)[SOURCES[target]]


def parameters_met(task: Task) -> set[str]:
    analysis = analyse(task)
    if not isinstance(analysis, Analysis):
        return set()
    return {name for s in analysis.schedules() for kernel in s.kernels for name, _ in kernel}


@pytest.mark.parametrize("target", TARGETS)
def test_every_parameter_of_a_proposed_schedule_is_explained(target: str) -> None:
    said = {p for family in FAMILIES[target] for p in explained(family, target)} | OF_ANY
    for name, made in samples(target).items():
        assert parameters_met(made.task) <= said, name


@pytest.mark.parametrize("target", TARGETS)
def test_every_parameter_is_spoken_of_by_what_explains_it(target: str) -> None:
    for family in FAMILIES[target]:
        text = paragraph(family, target)
        assert text in skill(target)
        for parameter, meaning in explained(family, target).items():
            assert f"`{parameter}`: {meaning.text}" in text, (family.title, parameter)


def test_the_example_for_cuda_is_right_thread_by_thread(tmp_path: Path) -> None:
    task = example_task("cpu", rows=3)
    document = json.loads(example_plan("cuda", rows=3))
    assert document["steps"][0]["grid"] == ["rows", 1, 1]
    document["steps"][0]["grid"] = [3, 1, 1]  # the emulator takes no expressions
    inputs = [torch.randn(s.shape) for s in task.inputs]
    plan = Plan.from_document(document)
    (found,) = cuda_emulator.run(example_source("cuda"), plan, inputs, tmp_path)
    (wanted,) = run_oracle(task, build_graph(task), inputs).outputs
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-7)


def test_the_example_for_cuda_compiles_without_spills(tmp_path: Path) -> None:
    if isinstance(find_cuda(), Missing):
        pytest.skip("no CUDA compiler on this machine")
    plan = Plan.from_json(example_plan("cuda"))
    candidate = Candidate("cuda", "cuda", example_source("cuda"), plan, "policy")
    found = compile_candidate(candidate, tmp_path, "sm_90a")
    assert isinstance(found, Compiled), found
    assert found.facts["kernel"]["spill_store_bytes"] == 0


def test_the_example_in_triton_is_told_and_compiles(tmp_path: Path) -> None:
    assert blocks(skill("cuda"), "json")[1] == triton_plan()
    source = source_of(TRITON_SOURCE)
    assert source in blocks(skill("cuda"), "python")
    plan = Plan.from_json(triton_plan())
    assert plan.input_specs == example_task("cuda").inputs
    if isinstance(find_triton(), Missing):
        pytest.skip("Triton is not installed")
    found = compile_candidate(
        Candidate("cuda", "triton", source, plan, "policy"), tmp_path, "sm_90a"
    )
    assert isinstance(found, Compiled), found


@pytest.mark.gpu
@pytest.mark.parametrize("language", ["cuda", "triton"])
def test_the_examples_for_cuda_are_right_on_a_device(tmp_path: Path, language: Language) -> None:
    if language == "triton" and isinstance(find_triton(), Missing):
        pytest.skip("Triton is not installed")
    name, plan = (
        (SOURCES["cuda"], example_plan("cuda"))
        if language == "cuda"
        else (TRITON_SOURCE, triton_plan())
    )
    candidate = Candidate("cuda", language, source_of(name), Plan.from_json(plan), "policy")
    with Judge(JudgeSettings("cuda", scratch_dir=tmp_path, arch=arch_of("cuda"))) as judge:
        found = judge.verify(example_task("cuda"), candidate, thorough=True)
    assert isinstance(found, Correct), found.reason


@pytest.mark.parametrize("target", TARGETS)
def test_the_template_of_a_plan_parses_for_every_task(target: str) -> None:
    for name, made in samples(target).items():
        plan = Plan.from_json(plan_template(made.task))
        assert plan.input_specs == made.task.inputs, name
        assert plan.output_specs == made.task.output_specs, name
        (step,) = plan.steps
        assert isinstance(step, Launch)
        assert target == "cpu" or len(step.args) == len(plan.buffers)


@pytest.mark.parametrize("target", TARGETS)
def test_the_command_prints_it(target: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "skill.json"
    assert cli.main(["skill", "--target", target, "--json", str(path)]) == 0
    assert capsys.readouterr().out == skill(target) == json.loads(path.read_text())["text"]
