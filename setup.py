"""Build script: pure Python packages plus one small pybind11 extension that needs no torch headers.

Building needs setuptools and pybind11 only, never torch, so installing cannot pull a second torch; all that needs torch
headers is built with ninja at first use and kept.
"""

from __future__ import annotations

from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import find_packages, setup

PACKAGES = ("cuda_agent_backend", "trainer", "sandbox", "kernel_cache")

REQUIRES = [
    "torch>=2.11,<2.15",
    "diskcache>=5.6.3,<6",
    "filelock>=3.13,<5",
    "google-re2>=1.1",
    "jsonschema>=4.21,<5",
    "ninja>=1.11",
    "numpy>=1.26,<3",
    "pybind11>=2.13,<4",
    "rich>=13.7,<16",
]

# Torch for CUDA brings the Triton that it was tried with, which stays; a build for CPU has none.
TRITON = "triton>=3.6,<4; platform_system == 'Linux'"

DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.6,<10"]

EXTRAS = {
    "llm": [
        "openai>=2,<4",
        "transformers>=5.10,<6",
        TRITON,
        "vllm>=0.31",
    ],
    "bench": ["matplotlib>=3.8,<4"],
    "train": [
        "accelerate>=1.10,<2",
        "lightgbm>=4.5,<5",
        "matplotlib>=3.8,<4",
        "peft>=0.21,<1",
        "pyarrow>=18,<27",
        "safetensors>=0.5,<1",
        "scikit-learn>=1.5,<2",
        "tensorboard>=2.18,<3",
        "tokenizers>=0.21,<1",
        "transformers>=5.10,<6",
        "trl>=1.16,<2",
    ],
    "openenv": ["openenv>=0.10,<0.11", "uvicorn>=0.24,<1"],
    "search": ["scikit-learn>=1.5,<2"],
    "scale": ["ray>=2.60,<3"],
    "fuzz": ["atheris>=2.3,<4; python_version < '3.14'"],
    "docs": DOCS,
    "dev": [
        "accelerate>=1.10,<2",
        "hypothesis>=6.100",
        "import-linter>=2.3,<3",
        "lightgbm>=4.5,<5",
        "matplotlib>=3.8,<4",
        *DOCS,
        "mypy>=2.4,<2.5",
        "nvidia-cuda-nvdisasm>=12.9,<14",
        "openai>=2,<4",
        "peft>=0.21,<1",
        "pre-commit>=4,<5",
        "pyarrow>=18,<27",
        "pytest>=8.3,<10",
        "pytest-timeout>=2.3,<3",
        "pytest-xdist>=3.6,<4",
        "ruff==0.17.5",
        "scikit-learn>=1.5,<2",
        "setuptools>=77",
        "transformers[serving]>=5.10,<6",
        TRITON,
        "trl>=1.16,<2",
    ],
}

setup(
    name="cuda_agent",
    version="0.1.0",
    description="A torch.compile backend whose agent finds, verifies, caches and runs faster kernels",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Software Development :: Compilers",
    ],
    packages=find_packages(
        include=[pattern for name in PACKAGES for pattern in (name, f"{name}.*")]
    ),
    package_data={
        **{name: ["py.typed", "*.pyi"] for name in PACKAGES},
        "cuda_agent_backend.agent.skill": ["*.md", "examples/*"],
        "cuda_agent_backend.codegen": ["**/*.cuh", "**/*.h"],
        "sandbox.launcher": ["csrc/*.cpp", "csrc/*.h"],
        "trainer": ["py.typed", "*.pyi", "data/*", "weights/*"],
    },
    ext_modules=[
        Pybind11Extension(
            "sandbox._launcher",
            [
                "sandbox/launcher/csrc/bindings.cpp",
                "sandbox/launcher/csrc/cuda_driver.cpp",
                "sandbox/launcher/csrc/program.cpp",
            ],
            depends=[
                "sandbox/launcher/csrc/cuda_driver.h",
                "sandbox/launcher/csrc/program.h",
            ],
            cxx_std=17,
            extra_compile_args=["-O2", "-Wall"],
            libraries=["dl"],
        )
    ],
    cmdclass={"build_ext": build_ext},
    python_requires=">=3.11,<3.14",
    install_requires=REQUIRES,
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": [
            "cuda-agent = cuda_agent_backend.cli.command:main",
            "cuda-agent-train = trainer.command:main",
        ],
        "torch.backends": ["cuda_agent = cuda_agent_backend.autoload:autoload"],
        "torch_dynamo_backends": ["cuda_agent = cuda_agent_backend.backend:cuda_agent"],
    },
)
