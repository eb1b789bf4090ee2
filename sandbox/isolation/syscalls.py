"""Numbers of system calls by machine, from the kernel's own tables (asm/unistd_64.h and asm-generic/unistd.h)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Machine:
    """A processor architecture. audit: what the kernel calls it in a filter. column: in the table below."""

    audit: int
    column: int


MACHINES = {"x86_64": Machine(0xC000003E, 1), "aarch64": Machine(0xC00000B7, 2)}

# Name, number on x86_64, number on aarch64; "-" where the machine does not have the call.
_TABLE = """
accept 43 202, accept4 288 242, access 21 -, acct 163 89, add_key 248 217, adjtimex 159 171, arch_prctl 158 -,
bind 49 200, bpf 321 280, brk 12 214, capset 126 91, chroot 161 51, clock_adjtime 305 266, clock_getres 229 114,
clock_gettime 228 113, clock_nanosleep 230 115, clock_settime 227 112, clone 56 220, clone3 435 435, close 3 57,
close_range 436 436, connect 42 203, delete_module 176 106, dup 32 23, epoll_create1 291 20, epoll_ctl 233 21,
epoll_pwait 281 22, epoll_wait 232 -, eventfd2 290 19, exit 60 93, exit_group 231 94, faccessat 269 48,
faccessat2 439 439, fadvise64 221 223, fanotify_init 300 262, fcntl 72 25, finit_module 313 273,
fsconfig 431 431, fsmount 432 432, fsopen 430 430, fspick 433 433, fstat 5 80, fstatfs 138 44, futex 202 98,
futex_waitv 449 449, get_mempolicy 239 236, get_robust_list 274 100, getcpu 309 168, getcwd 79 17,
getdents64 217 61, getegid 108 177, geteuid 107 175, getgid 104 176, getpgid 121 155, getpgrp 111 -,
getpid 39 172, getppid 110 173, getrandom 318 278, getrlimit 97 163, getrusage 98 165, getsid 124 156,
gettid 186 178, gettimeofday 96 169, getuid 102 174, init_module 175 105, io_uring_enter 426 426,
io_uring_register 427 427, io_uring_setup 425 425, ioctl 16 29, ioperm 173 -, iopl 172 -, kcmp 312 272,
kexec_file_load 320 294, kexec_load 246 104, keyctl 250 219, kill 62 129, listen 50 201, lookup_dcookie 212 18,
lseek 8 62, lstat 6 -, madvise 28 233, mbind 237 235, membarrier 324 283, memfd_secret 447 447, mincore 27 232,
mknod 133 -, mknodat 259 33, mlock 149 228, mmap 9 222, modify_ldt 154 -, mount 165 40, mount_setattr 442 442,
move_mount 429 429, mprotect 10 226, mq_open 240 180, mremap 25 216, msgget 68 186, msync 26 227,
munlock 150 229, munmap 11 215, name_to_handle_at 303 264, nanosleep 35 101, newfstatat 262 79, open 2 -,
open_by_handle_at 304 265, open_tree 428 428, openat 257 56, perf_event_open 298 241, personality 135 92,
pidfd_getfd 438 438, pipe2 293 59, pivot_root 155 41, poll 7 -, ppoll 271 73, prctl 157 167, pread64 17 67,
prlimit64 302 261, process_madvise 440 440, process_mrelease 448 448, process_vm_readv 310 270,
process_vm_writev 311 271, pselect6 270 72, ptrace 101 117, quotactl 179 60, quotactl_fd 443 443, read 0 63,
readlink 89 -, readlinkat 267 78, readv 19 65, reboot 169 142, recvfrom 45 207, recvmsg 47 212,
request_key 249 218, restart_syscall 219 128, rseq 334 293, rt_sigaction 13 134, rt_sigpending 127 136,
rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigsuspend 130 133, rt_sigtimedwait 128 137,
sched_getaffinity 204 123, sched_getparam 143 121, sched_getscheduler 145 120, sched_setaffinity 203 122,
sched_yield 24 124, seccomp 317 277, select 23 -, semget 64 190, sendmsg 46 211, sendto 44 206,
set_mempolicy 238 237, set_robust_list 273 99, set_tid_address 218 96, setdomainname 171 162,
sethostname 170 161, setns 308 268, setpgid 109 154, setsid 112 157, settimeofday 164 170, shmget 29 194,
sigaltstack 131 132, socket 41 198, stat 4 -, statfs 137 43, statx 332 291, swapoff 168 225, swapon 167 224,
sysinfo 99 179, syslog 103 116, tgkill 234 131, time 201 -, times 100 153, umount2 166 39, uname 63 160,
unshare 272 97, userfaultfd 323 282, vhangup 153 58, write 1 64, writev 20 66
"""


@cache
def _numbers(column: int) -> dict[str, int | None]:
    rows = [row.split() for row in _TABLE.replace("\n", " ").split(",")]
    return {row[0]: None if row[column] == "-" else int(row[column]) for row in rows}


def number(name: str, machine: str) -> int | None:
    """The call's number, None where the machine does not have it. Raises KeyError on unknown ones."""
    return _numbers(MACHINES[machine].column)[name]
