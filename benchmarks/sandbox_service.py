"""What the sandbox is like as a service: ``sandbox-service.json``, or ``h200-sandbox-service.json``.

    python -m benchmarks.sandbox_service [--target cuda] [--only aa|flips|overhead|faults|rate] [--limit SECONDS]

Parts. aa: Inductor's code judged against itself on a machine that this script keeps busy. flips: kernels that a search
wrote, each judged 20 times. overhead: where the time of a verdict goes. faults: 1,000 candidates that crash, hang, eat
memory, fork or print without end, an honest one after each batch, and what is left behind. rate: verdicts a minute.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.cases import SIZES, cases
from benchmarks.sandbox_candidates import FAULTS, candidate, task
from benchmarks.sandbox_clock import Clock, listening
from benchmarks.sandbox_leaks import Snapshot, snapshot
from benchmarks.store import Facts, Results, arguments
from cuda_agent_backend.runtime.machine import arch_of
from cuda_agent_backend.settings import Settings
from sandbox.isolation.privileges import next_uid
from sandbox.judge import Judge
from sandbox.judge.pool import Pool
from sandbox.judge.settings import JudgeSettings, Timeouts
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task
from sandbox.timing.decision import SpeedReport
from sandbox.verdict import Correct, Verdict

FILES = {"cpu": "sandbox-service", "cuda": "h200-sandbox-service"}
PAIRS, PAIRS_A_CASE = 200, 10
JUDGEMENTS = 20
NOISY_TRIES = 3
FASTER, SLOWER = 1.10, 1.00
"""Only candidates whose true speed-up lies outside must always get the same answer."""
FLIP_FAMILIES = ("silu_bias", "masked_softmax", "sum_squares_columns", "log_softmax")
FAULTY, FAULTY_A_CASE = 1000, 50
OVERHEADS = 15
RATE_SECONDS = 60.0
MEMORY = 6 << 30
FAULT_TIMEOUTS = Timeouts(run=1.0)


def names(target: str) -> list[str]:
    """All cases in order."""
    size = list(SIZES[target])[1]
    flips = [f"flips-{family}-{size}" for family in FLIP_FAMILIES]
    return [
        "overhead",
        "rate",
        *flips,
        *(f"aa-{number}" for number in range(PAIRS // PAIRS_A_CASE)),
        *(f"faults-{number}" for number in range(FAULTY // FAULTY_A_CASE)),
    ]


def summarise(samples: dict[str, Facts]) -> Facts:
    """The figures of the table's rows."""
    aa = [facts for name, facts in samples.items() if name.startswith("aa-")]
    flips = [c for n, f in samples.items() if n.startswith("flips-") for c in f["candidates"]]
    clear = [c for c in flips if c["clear"]]
    faults = [facts for name, facts in samples.items() if name.startswith("faults-")]
    overhead, rate = samples.get("overhead", {}), samples.get("rate", {})
    return {
        "isolation": next((f["isolation"] for f in samples.values() if "isolation" in f), None),
        "aa_pairs": sum(facts["judged"] - facts["failed"] for facts in aa),
        "aa_noisy": sum(facts["noisy"] for facts in aa),
        "aa_failed": sum(facts["failed"] for facts in aa),
        "aa_faster": sum(facts["faster"] for facts in aa),
        "judged_repeatedly": len(flips),
        "clearly_faster_or_slower": len(clear),
        "flips": sum(c["flips"] for c in clear),
        "overhead_seconds": overhead.get("overhead_seconds"),
        "faulty_candidates": sum(facts["candidates"] for facts in faults),
        "honest_after_faults_refused": sum(facts["honest_refused"] for facts in faults),
        "faults_accepted": sum(facts["accepted"] for facts in faults),
        "leaked": dict(sum((Counter(facts["leaked"]) for facts in faults), Counter())),
        "verdicts_a_minute": rate.get("verdicts_a_minute"),
        "one_after_another_a_minute": rate.get("one_after_another_a_minute"),
    }


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep so many cores busy, each on and off in turns of random length, as other users of a machine do."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=burn, args=(seed,), daemon=True) for seed in range(processes)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def burn(seed: int) -> None:
    """Compute and sleep by turns, as long as the parent lives."""
    import random

    turns, parent = random.Random(seed), os.getppid()
    while os.getppid() == parent:  # it may be killed before it can end this
        until = time.monotonic() + turns.uniform(0.01, 0.5)
        while time.monotonic() < until:
            sum(i * i for i in range(1000))
        time.sleep(turns.uniform(0.01, 0.5))


def against_itself(judge: Judge, cores: int) -> Facts:
    """A/A judgements under load: tasks of several sizes, Inductor's code in the candidate's place."""
    found: Counter[str] = Counter()
    speedups, reasons = [], []
    sizes = [(256, 512), (1024, 1024), (2048, 2048)]
    with load(cores):
        for number in range(PAIRS_A_CASE):
            report = judge.judge_baseline(task(_target(judge), *sizes[number % len(sizes)]))
            if isinstance(report, SpeedReport):
                found["faster" if report.wins else "not faster"] += 1
                speedups.append(report.over["inductor"].median)
            else:
                found[report.status] += 1
                reasons.append(report.reason)
    return {
        "judged": PAIRS_A_CASE,
        "faster": found["faster"],
        "noisy": found["noisy"],
        "failed": PAIRS_A_CASE - found["faster"] - found["not faster"] - found["noisy"],
        "speedups": speedups,
        "reasons": reasons,
    }


def repeated(judge: Judge, name: str) -> Facts:
    """The fastest and the slowest kernel that a short search profiles, judged again and again."""
    from benchmarks.regions import offered
    from cuda_agent_backend.agent.loop import Budget, run_episode
    from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
    from cuda_agent_backend.agent.tools.toolbox import Toolbox
    from cuda_agent_backend.tools.warm import options_from

    case = next(c for c in cases(_target(judge)) if c.name == name)
    found = offered(case, replace(options_from(None, None), search="cached", min_bytes=0))
    if isinstance(found, str):
        return {"candidates": [], "reason": found}
    tools = Toolbox(found.task, judge)
    run_episode(SearchPolicy(), tools, Budget(90.0))
    ranked = sorted(tools.profiles, key=tools.profiles.__getitem__)
    chosen = dict.fromkeys(ranked[-1:] + ranked[:1])
    facts = [
        repeat(lambda c=tools.candidates[n]: judge.judge(found.task, c), tools.candidates[n])
        for n in chosen
    ]
    return {"candidates": facts}


def repeat(judgement: Callable[[], Verdict], of: Candidate) -> Facts:
    """One candidate judged 20 times. Its true speed-up is the median over all judgements."""
    statuses, speedups = [], []
    for _ in range(JUDGEMENTS):
        for _ in range(NOISY_TRIES):
            verdict = judgement()
            if verdict.status != "noisy":
                break
        statuses.append(verdict.status)
        if verdict.speed is not None:
            speedups.append(verdict.speed.speedup.median)
    return {"label": of.label, "statuses": statuses, "speedups": speedups} | flips(
        statuses, speedups
    )


def flips(statuses: list[str], speedups: list[float]) -> Facts:
    """How often the answer differed from what it should be, where that is clear. Noise is no answer."""
    true = statistics.median(speedups) if speedups else None
    clear = true is not None and not SLOWER <= true <= FASTER
    right = "wins" if true is not None and true > FASTER else "too_slow"
    wrong = sum(status not in (right, "noisy") for status in statuses)
    noisy = statuses.count("noisy")
    return {"true_speedup": true, "clear": clear, "flips": wrong if clear else 0, "noisy": noisy}


def overhead(judge: Judge) -> Facts:
    """Where the time of one verdict goes, in seconds; median of several, the workers being warm."""
    of = task(_target(judge))
    judge.judge(of, candidate(of))
    parts: list[dict[str, float]] = []
    for variant in range(1, OVERHEADS + 1):
        clock = Clock()
        with listening(clock):
            before = time.perf_counter()
            judge.judge(of, candidate(of, variant=variant))
            total = time.perf_counter() - before
        parts.append(
            {"total": total, "overhead": total - sum(clock.seconds.values()), **clock.seconds}
        )
    medians = {k: statistics.median(p.get(k, 0.0) for p in parts) for k in parts[0]}
    return {"overhead_seconds": medians["overhead"], "parts": medians, "all": parts}


def rate(judge: Judge) -> Facts:
    """Full verdicts on new candidates of a small region: one after another, and through a pool."""
    of = task(_target(judge))
    judge.judge(of, candidate(of, variant=-1))
    variants = count(10_000)
    started = time.monotonic()
    alone: Counter[str] = Counter()
    while time.monotonic() - started < RATE_SECONDS:
        alone[judge.judge(of, candidate(of, variant=next(variants))).status] += 1
    minutes = (time.monotonic() - started) / 60
    pool = Pool(judge)
    work = [(of, candidate(of, variant=next(variants))) for _ in range(alone.total())]
    started = time.monotonic()
    pooled = Counter(verdict.status for _, verdict in pool.judge_all(work))
    pooled_minutes = (time.monotonic() - started) / 60
    return {
        "verdicts_a_minute": pooled.total() / pooled_minutes,
        "one_after_another_a_minute": alone.total() / minutes,
        "compile_jobs": pool.compile_jobs,
        "statuses": dict(pooled),
        "statuses_one_after_another": dict(alone),
    }


def faulty(judges: Sequence[Judge], number: int, batch: int) -> Facts:
    """Faulty candidates in a row, sealed ones and others by turns, an honest one for each judge, and what is left.

    Several judges share the candidates and one device: what one judge's worker does there must not reach the others'.
    """
    of = task(_target(judges[0]))
    for judge in judges:
        judge.verify(of, candidate(of))
    before = snapshot(judges)
    made = [faulty_one(of, index) for index in range(number * batch, (number + 1) * batch)]

    def one_judge(place: int) -> tuple[Counter[str], bool]:
        judge, mine = judges[place], made[place :: len(judges)]
        found = Counter(f"{name}: {judge.verify(of, one).status}" for name, one in mine)
        return found, isinstance(judge.verify(of, candidate(of)), Correct)

    with ThreadPoolExecutor(max(len(judges), len(os.sched_getaffinity(0)))) as threads:
        list(threads.map(lambda n: judges[n % len(judges)].compile(made[n][1]), range(len(made))))
        done = list(threads.map(one_judge, range(len(judges))))
    statuses = sum((found for found, _ in done), Counter[str]())
    return {
        "candidates": batch,
        "judges": len(judges),
        "statuses": dict(statuses),
        "accepted": sum(n for name, n in statuses.items() if name.endswith(": correct")),
        "honest_refused": sum(not honest for _, honest in done),
        "leaked": leaked(before, judges),
    }


def faulty_one(of: Task, index: int) -> tuple[str, Candidate]:
    """Number ``index`` of the faulty candidates, and what it is."""
    kinds = list(FAULTS[of.target])
    kind = kinds[index % len(kinds)]
    own_user = kind != "fork bomb" or next_uid() is not None
    sealed = of.target == "cpu" and (index // len(kinds) % 2 == 0 or not own_user)
    made = candidate(of, kind, index, "policy" if sealed else "sketch")
    return f"{kind}{', sealed' * sealed}", made


def leaked(before: Snapshot, judges: Sequence[Judge]) -> dict[str, int]:
    """What there is more of than before, by kind, once processes that were killed have had time to go."""
    for _ in range(20):
        found = snapshot(judges).beyond(before)
        if not any(found.values()):
            break
        time.sleep(0.25)
    return found


def _target(judge: Judge) -> Any:
    return judge.target


def main() -> None:
    """Run the cases that are not done."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=FAULTY_A_CASE, help="faulty candidates a case")
    parser.add_argument("--judges", type=int, default=1, help="that meet faults at the same time")
    args = parser.parse_args()
    chosen = [name for name in names(args.target) if name.startswith(tuple(args.only.split(",")))]
    results = Results(FILES[args.target], summarise, args.folder)
    settings, cores = Settings.from_environment(), len(os.sched_getaffinity(0))

    with ExitStack() as stack:
        judges: dict[bool, list[Judge]] = {}

        def judges_for(faults: bool) -> list[Judge]:
            def made() -> Judge:
                judge = Judge(
                    JudgeSettings(
                        args.target,
                        scratch_dir=Path(stack.enter_context(tempfile.TemporaryDirectory())),
                        native_dir=settings.native_dir,
                        arch=arch_of(args.target),
                        consent=faults,
                        timeouts=FAULT_TIMEOUTS if faults else Timeouts(),
                        memory_bytes=MEMORY if faults else None,
                    )
                )
                return stack.enter_context(judge)

            if faults not in judges:
                judges[faults] = [made() for _ in range(args.judges if faults else 1)]
            return judges[faults]

        def run(name: str) -> Facts:
            part, _, rest = name.partition("-")
            chosen = judges_for(part == "faults")
            judge = chosen[0]
            parts: dict[str, Callable[[], Facts]] = {
                "aa": lambda: against_itself(judge, cores),
                "flips": lambda: repeated(judge, rest),
                "overhead": lambda: overhead(judge),
                "rate": lambda: rate(judge),
                "faults": lambda: faulty(chosen, int(rest), args.batch),
            }
            facts = parts[part]()
            return {**facts, "isolation": judge.roles.candidate.isolation.to_dict()}

        samples = results.collect(chosen, run, keep=args.keep, limit_s=args.limit)
    print(summarise(samples))


if __name__ == "__main__":
    main()
