"""The tools that make candidates and try them, as a policy sees them: names, descriptions, arguments."""

from __future__ import annotations

from cuda_agent_backend.agent.tools.tool import Spec, text
from cuda_agent_backend.codegen.ir.schedule import MAX_PARAMETER

CANDIDATE = text("name of a candidate, as sketch or compile answered it")
LOOK = Spec(
    "look",
    "Time the baselines; answer with the room over the roofline floor and the schedules proposed.",
)
SKETCH = Spec(
    "sketch",
    "Generate and compile a candidate from a sketch under a schedule.",
    {
        "schedule": {
            "type": "array",
            "description": "one object of parameters for each kernel, as look proposes them",
            "items": {
                "type": "object",
                "additionalProperties": {
                    "anyOf": [
                        {"type": "integer", "minimum": 0, "maximum": MAX_PARAMETER},
                        {"type": "string"},
                    ]
                },
            },
        }
    },
    ("schedule",),
)
COMPILE = Spec(
    "compile",
    "Compile a candidate from a source file and a launch plan in the workspace. The source's suffix says its "
    "language: .cu (CUDA C++), .cpp (C++ with OpenMP, target cpu), .py (Triton).",
    {
        "source": text("path of the source, such as kernel.cu"),
        "plan": text("path of the launch plan, such as plan.json"),
    },
    ("source", "plan"),
)
INSPECT = Spec(
    "inspect",
    "Tell of a candidate's machine code: registers, spills, shared memory, residency, instructions.",
    {"candidate": CANDIDATE},
    ("candidate",),
)
VERIFY = Spec(
    "verify",
    "Check a candidate's results against the float64 oracle.",
    {"candidate": CANDIDATE},
    ("candidate",),
)
PROFILE = Spec(
    "profile",
    "Time a candidate against the faster baseline, say its rates, and check it if none was faster.",
    {"candidate": CANDIDATE},
    ("candidate",),
)
SUBMIT = Spec(
    "submit",
    "Have a candidate judged for promotion; without one, end the episode with a reason. A refused candidate does not "
    "end it.",
    {"candidate": CANDIDATE, "reason": text("why nothing is submitted")},
)
COMPILING = (SKETCH, COMPILE)
"""Those whose neighbouring calls in a turn are run side by side."""
KERNEL_SPECS = (LOOK, SKETCH, INSPECT, VERIFY, PROFILE, SUBMIT)
