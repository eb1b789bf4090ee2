"""System call filters: which calls a confined process may make. The program is built here and given to the kernel.

Two filters. WORK holds from the start of whatever handles a candidate; it takes away what no compiler and no
framework needs: other processes' memory, the network, mounts, namespaces, kernel interfaces. RUN comes on top of it
before untrusted host code is loaded: an allow-list under which a process computes, and nothing else. It cannot write
to, create or remove files, start processes, signal any, or change what its descriptors are.

A refused call fails with an error number rather than ending the process, so that libraries fall back as they do in any
container. setsid and setpgid succeed and do nothing: all descendants stay in the group that is killed at the end.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from sandbox.isolation.syscalls import MACHINES, number

ALLOW, KILL = 0x7FFF0000, 0x80000000
_ERRNO = 0x00050000
_LOAD, _AND, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_X32_BIT = 0x40000000
_SET_FILTER, _ALL_THREADS, _SPECULATION_ALLOWED = 1, 1, 4
_SET_NO_NEW_PRIVS = 38

CLONE_THREAD, CLONE_NAMESPACES = 0x00010000, 0x7E020080
OPEN_TO_WRITE = 0o3 | 0o100 | 0o1000 | 0o20000000
"""O_WRONLY, O_RDWR, O_CREAT, O_TRUNC and the bit of O_TMPFILE that is its own."""


def refuse(error: int = errno.EPERM) -> int:
    """The action: the call fails with this error number."""
    return _ERRNO | error


PRETEND = refuse(0)


@dataclass(frozen=True)
class Argument:
    """True of a call whose argument `index`, masked, is `value`. Only the lower 32 bits are looked at."""

    index: int
    value: int
    mask: int = 0xFFFFFFFF


@dataclass(frozen=True)
class Rule:
    """What to do with a call by name if all its arguments fit. The first rule that fits decides."""

    name: str
    action: int
    arguments: tuple[Argument, ...] = ()


_NEVER = """
ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd
socket connect bind listen accept accept4
mount umount2 pivot_root chroot setns unshare open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr
kexec_load kexec_file_load init_module finit_module delete_module bpf perf_event_open userfaultfd
io_uring_setup io_uring_enter io_uring_register add_key request_key keyctl open_by_handle_at name_to_handle_at
acct swapon swapoff reboot syslog settimeofday clock_settime adjtimex clock_adjtime sethostname setdomainname
quotactl quotactl_fd iopl ioperm modify_ldt lookup_dcookie vhangup personality
msgget semget shmget mq_open fanotify_init mknod mknodat memfd_secret
"""

_TO_COMPUTE = """
read write readv writev pread64 close_range fstat stat lstat newfstatat statx lseek
mmap mprotect munmap mremap madvise brk msync mlock munlock mbind set_mempolicy get_mempolicy mincore fadvise64
rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack rt_sigtimedwait rt_sigpending rt_sigsuspend restart_syscall
access faccessat faccessat2 readlink readlinkat getcwd getdents64 statfs fstatfs
sched_yield sched_getaffinity sched_setaffinity sched_getparam sched_getscheduler getcpu
nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times
getpid getppid gettid getuid geteuid getgid getegid getpgrp getpgid getsid
futex futex_waitv poll ppoll select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2 pipe2 dup
recvmsg recvfrom sendmsg sendto exit exit_group set_robust_list get_robust_list rseq set_tid_address
prlimit64 getrlimit getrandom uname sysinfo getrusage membarrier arch_prctl
"""

_PRCTL = {"PR_GET_DUMPABLE": 3, "PR_SET_NAME": 15, "PR_GET_NAME": 16, "PR_SET_VMA": 0x53564D41}
_FCNTL = {"F_DUPFD": 0, "F_GETFD": 1, "F_SETFD": 2, "F_GETFL": 3, "F_DUPFD_CLOEXEC": 1030}
_IOCTL = {"TCGETS": 0x5401, "FIONREAD": 0x541B, "FIONCLEX": 0x5450, "FIOCLEX": 0x5451}


_FOR_CUDA = ("bind", "listen", "accept", "accept4")
AF_UNIX = 1


def work_rules(for_cuda: bool = False) -> list[Rule]:
    """WORK: what is refused, everything else being allowed.

    for_cuda: CUDA's driver does not start unless it can make a Unix socket and listen on it; connecting stays refused.
    """
    namespaces = [
        Rule("clone", refuse(), (Argument(0, bit, bit),)) for bit in _bits(CLONE_NAMESPACES)
    ]
    never = [name for name in _NEVER.split() if not (for_cuda and name in _FOR_CUDA)]
    unix = [Rule("socket", ALLOW, (Argument(0, AF_UNIX),))] if for_cuda else []
    return [
        *unix,
        *(Rule(name, refuse()) for name in never),
        *namespaces,
        Rule("clone3", refuse(errno.ENOSYS)),  # its flags lie in memory; libraries then use clone
        Rule("setsid", PRETEND),
        Rule("setpgid", PRETEND),
    ]


def run_rules(pid: int, control_fd: int) -> list[Rule]:
    """RUN: what is allowed to the process `pid`, everything else being refused. control_fd: stays what it is."""
    thread = (Argument(0, CLONE_THREAD, CLONE_THREAD),)
    reading = Argument(2, 0, OPEN_TO_WRITE)
    return [
        *(Rule(name, ALLOW) for name in _TO_COMPUTE.split() if name != "close_range"),
        Rule("close", refuse(), (Argument(0, control_fd),)),
        Rule("close", ALLOW),
        Rule("clone", ALLOW, thread),
        Rule("clone3", refuse(errno.ENOSYS)),
        Rule("open", ALLOW, (Argument(1, 0, OPEN_TO_WRITE),)),
        Rule("openat", ALLOW, (reading,)),
        Rule("kill", ALLOW, (Argument(0, pid),)),
        Rule("tgkill", ALLOW, (Argument(0, pid),)),
        *(Rule("prctl", ALLOW, (Argument(0, option),)) for option in _PRCTL.values()),
        *(Rule("fcntl", ALLOW, (Argument(1, command),)) for command in _FCNTL.values()),
        *(Rule("ioctl", ALLOW, (Argument(1, request),)) for request in _IOCTL.values()),
    ]


def _bits(mask: int) -> list[int]:
    return [1 << i for i in range(32) if mask >> i & 1]


def assemble(rules: Sequence[Rule], otherwise: int, machine: str) -> bytes:
    """The filter's program: 8 bytes an instruction. Raises KeyError on a machine or a call that is not known."""
    code = [
        _load(_ARCH_AT),
        _instruction(_JUMP_EQUAL, MACHINES[machine].audit, 1, 0),
        _instruction(_RETURN, KILL),
        _load(_NUMBER_AT),
        _instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1),
        _instruction(_RETURN, refuse()),
    ]
    for rule in rules:
        known = number(rule.name, machine)
        if known is not None:
            code += _block(known, rule)
    return b"".join([*code, _instruction(_RETURN, otherwise)])


def _block(known: int, rule: Rule) -> list[bytes]:
    """Returns the rule's action or falls through, with the call's number loaded again."""
    tests: list[bytes] = []
    left = 3 * len(rule.arguments)
    for argument in rule.arguments:
        left -= 3
        tests += [
            _load(_ARGUMENTS_AT + 8 * argument.index),
            _instruction(_AND, argument.mask),
            _instruction(_JUMP_EQUAL, argument.value & argument.mask, 0, left + 1),
        ]
    body = [*tests, _instruction(_RETURN, rule.action)]
    if rule.arguments:
        body.append(_load(_NUMBER_AT))
    # Where the number is another one, the reload may be skipped too.
    return [_instruction(_JUMP_EQUAL, known, 0, len(body)), *body]


def _load(offset: int) -> bytes:
    return _instruction(_LOAD, offset)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def set_no_new_privileges() -> None:
    """No program started from here on gains rights by being set-uid. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")


def install(rules: Sequence[Rule], otherwise: int) -> None:
    """Put a filter in force for all threads of this process and all it starts; it cannot be taken back.

    Privileges must have been given up with `set_no_new_privileges`. Raises OSError.
    """
    machine = platform.machine()
    code = assemble(rules, otherwise, machine)
    program = _Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _ALL_THREADS | _SPECULATION_ALLOWED
    call = ctypes.c_long(number("seccomp", machine) or -1)
    if libc.syscall(call, _SET_FILTER, flags, ctypes.byref(program)) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")
