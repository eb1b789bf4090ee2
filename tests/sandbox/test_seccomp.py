"""Filters of system calls: the programs, run by a small interpreter, and the tables that they are made from."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from sandbox.isolation.seccomp import (
    ALLOW,
    CLONE_THREAD,
    KILL,
    PRETEND,
    assemble,
    refuse,
    run_rules,
    work_rules,
)
from sandbox.isolation.syscalls import MACHINES, number

PID, CONTROL = 4321, 7
NATIVE = "x86_64"


def decide(program: bytes, name: str | int, *arguments: int, machine: str = NATIVE) -> int:
    """What the kernel would do with a call, by the semantics of classic BPF."""
    call = number(name, machine) if isinstance(name, str) else name
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", call or 0, MACHINES[machine].audit, 0, *padded)
    code = list(struct.iter_unpack("<HBBI", program))
    at, value = 0, 0
    while True:
        operation, if_true, if_false, operand = code[at]
        at += 1
        if operation == 0x20:
            (value,) = struct.unpack_from("<I", data, operand)
        elif operation == 0x54:
            value &= operand
        elif operation == 0x15:
            at += if_true if value == operand else if_false
        elif operation == 0x35:
            at += if_true if value >= operand else if_false
        else:
            assert operation == 0x06
            return int(operand)


WORK = assemble(work_rules(), ALLOW, NATIVE)
RUN = assemble(run_rules(PID, CONTROL), refuse(), NATIVE)


NEEDLESS = """
ptrace process_vm_readv process_vm_writev socket connect mount umount2 kexec_load bpf io_uring_setup unshare
setns pidfd_getfd perf_event_open userfaultfd open_by_handle_at keyctl shmget init_module reboot
"""


@pytest.mark.parametrize("name", NEEDLESS.split())
def test_what_no_compiler_needs_is_refused(name: str) -> None:
    assert decide(WORK, name) == refuse(errno.EPERM)
    assert decide(RUN, name) == refuse(errno.EPERM)


@pytest.mark.parametrize("name", ["read", "openat", "mmap", "futex", "exit_group", "ioctl"])
def test_what_a_compiler_needs_is_allowed(name: str) -> None:
    assert decide(WORK, name) == ALLOW


def test_cudas_driver_may_listen_on_a_unix_socket_and_nobody_may_connect() -> None:
    program = assemble(work_rules(for_cuda=True), ALLOW, NATIVE)
    assert decide(program, "socket", 1, 1) == decide(program, "listen") == ALLOW
    for family in (2, 10, 16, 17):
        assert decide(program, "socket", family, 1) == refuse()
    assert decide(program, "connect") == refuse()


def test_a_process_group_cannot_be_left() -> None:
    assert decide(WORK, "setsid") == decide(WORK, "setpgid") == PRETEND


def test_new_namespaces_are_refused_and_threads_and_processes_are_not() -> None:
    assert decide(WORK, "clone", 0x10000000) == refuse()
    assert decide(WORK, "clone", CLONE_THREAD) == decide(WORK, "clone", 17) == ALLOW
    assert decide(WORK, "clone3") == refuse(errno.ENOSYS)


def test_sealed_code_starts_threads_but_no_processes() -> None:
    assert decide(RUN, "clone", CLONE_THREAD | 0x100) == ALLOW
    assert decide(RUN, "clone", 17) == refuse()
    for name in ("execve", "fork", "vfork", "execveat"):
        calls = {"execve": 59, "fork": 57, "vfork": 58, "execveat": 322}
        assert decide(RUN, calls[name]) == refuse()


def test_sealed_code_opens_files_to_read_only() -> None:
    assert decide(RUN, "openat", 0, 0, 0o2000000) == ALLOW
    for flags in (0o1, 0o2, 0o100, 0o1000, 0o20200000, 0o102):
        assert decide(RUN, "openat", 0, 0, flags) == refuse(), oct(flags)
        assert decide(RUN, "open", 0, flags) == refuse(), oct(flags)


def test_sealed_code_signals_itself_only() -> None:
    assert decide(RUN, "tgkill", PID, 1, 6) == decide(RUN, "kill", PID, 6) == ALLOW
    assert decide(RUN, "kill", PID - 1, 9) == refuse()
    assert decide(RUN, "kill", 0xFFFFFFFF, 9) == refuse()


def test_sealed_code_cannot_close_or_replace_the_channel_to_the_judge() -> None:
    assert decide(RUN, "close", CONTROL) == refuse()
    assert decide(RUN, "close", CONTROL + 1) == ALLOW
    for name, call in (("dup2", 33), ("dup3", 292), ("close_range", 436)):
        assert decide(RUN, call) == refuse(), name


def test_other_interfaces_of_the_kernel_are_no_way_around() -> None:
    x32 = 0x40000000 | (number("ptrace", NATIVE) or 0)
    assert decide(WORK, x32) == refuse()
    foreign = struct.pack("<IIQ6Q", 0, 0x40000003, 0, *[0] * 6)
    assert struct.unpack_from("<I", foreign, 4)[0] != MACHINES[NATIVE].audit
    assert struct.unpack_from("<HBBI", WORK, 16)[3] == KILL


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_the_filters_can_be_made_for_every_machine(machine: str) -> None:
    for rules, otherwise in ((work_rules(), ALLOW), (run_rules(PID, CONTROL), refuse())):
        program = assemble(rules, otherwise, machine)
        assert 0 < len(program) // 8 < 4096
        assert decide(program, "read", machine=machine) == ALLOW
        assert decide(program, "ptrace", machine=machine) == refuse()


def test_the_table_is_the_kernels() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.is_file():
        pytest.skip("the kernel's headers are not installed")
    known = [line.split() for line in header.read_text().splitlines() if "define __NR_" in line]
    for _, name, value in (words for words in known if len(words) == 3):
        try:
            ours = number(name.removeprefix("__NR_"), NATIVE)
        except KeyError:
            continue
        assert ours == int(value), name
