"""The rewritten forms of a task."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from torch.fx import Graph

from cuda_agent_backend.graph.canonical import NotATask, linear
from cuda_agent_backend.graph.edit import aten, is_view, name_of
from cuda_agent_backend.rewrite.catalogue import RULES
from cuda_agent_backend.rewrite.rule import Rule
from cuda_agent_backend.rewrite.work import Work, work_of
from sandbox.graph.build import build_graph
from sandbox.task.task import Task

ROUNDS = 8
"""Rules make room for each other; more rounds than this no task has needed."""


@dataclass(frozen=True)
class Form:
    """A task rewritten: the names of the rules that held, in the order of the catalogue, and its work.

    guards: outputs that `task` has after those of the task it was made from, one number each, 0 where its results hold.
    """

    rules: tuple[str, ...]
    task: Task
    work: Work
    guards: int = 0

    @property
    def name(self) -> str:
        """Such as "merged_scales+sum_of_product"."""
        return "+".join(self.rules)


def forms(task: Task) -> tuple[Form, ...]:
    """The forms that save work, the cheapest first: by all rules, by those that need no guard, and by those that change
    no bit of a result."""
    graph = _graph(task)
    before = work_of(graph)
    found: dict[str, Form] = {}
    unguarded = [rule for rule in RULES if not rule.guarded]
    for chosen in (RULES, unguarded, [rule for rule in RULES if rule.exact]):
        form = rewritten(task, chosen)
        if form is not None and form.work.saves_over(before):
            found.setdefault(form.task.digest, form)
    return tuple(sorted(found.values(), key=lambda form: form.work))


def rewritten(task: Task, rules: Sequence[Rule]) -> Form | None:
    """The task rewritten by these rules until none holds any more; None if none ever did."""
    graph = _graph(task)
    fired = _apply(graph, rules)
    if not fired:
        return None
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    body = [node for node in graph.nodes if node.op == "call_function"]
    made = linear(body, inputs, graph.output_node().args[0], "cpu")  # type: ignore[arg-type]
    if isinstance(made, NotATask):
        return None
    guards = made.output_specs[len(task.output_specs) :]
    made = replace(made, target=task.target, output_specs=task.output_specs + guards)
    names = tuple(rule.name for rule in rules if rule.name in fired)
    return Form(names, made, work_of(graph), len(guards))


def _graph(task: Task) -> Graph:
    """The task's graph with fake values on the cpu: no device is needed to rewrite it."""
    graph: Graph = build_graph(replace(task, target="cpu")).graph
    for node in graph.nodes:
        if name_of(node) in ("view", "_unsafe_view") and is_view(node):
            # a reshape holds for any strides, whatever a rule drops before it
            node.target = aten.reshape.default
    return graph


def _apply(graph: Graph, rules: Sequence[Rule]) -> Collection[str]:
    fired: set[str] = set()
    for _ in range(ROUNDS):
        held = {rule.name for rule in rules if _holds(rule, graph)}
        fired |= held
        if not held:
            break
    return fired


def _holds(rule: Rule, graph: Graph) -> bool:
    """Apply a rule and take away what nothing reads any more."""
    held = rule.apply(graph)
    graph.eliminate_dead_code()
    return held
