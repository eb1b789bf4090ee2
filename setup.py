"""Build script: pure Python packages plus one small pybind11 extension that needs no torch headers."""

from __future__ import annotations

from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import find_packages, setup

PACKAGES = ("cuda_agent_backend", "trainer", "sandbox", "kernel_cache")

setup(
    name="cuda_agent",
    version="0.1.0",
    packages=find_packages(include=[pattern for name in PACKAGES for pattern in (name, f"{name}.*")]),
    package_data={"sandbox.launcher": ["csrc/*.cpp", "csrc/*.h"]},
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
    python_requires=">=3.11",
)
