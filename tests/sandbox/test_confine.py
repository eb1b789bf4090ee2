"""Confinement: decisions on any machine's facts, and what a confined process can and cannot do on this one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.isolation import confine, landlock
from sandbox.isolation.confine import CANNOT, Policy, confined, offered, policy
from sandbox.isolation.landlock import READ_FILE, WRITE_FILE, View, grants, handled
from sandbox.isolation.limits import Finished, Limits, run_limited
from sandbox.isolation.mechanisms import Isolation
from sandbox.isolation.privileges import next_uid, unused_uid
from sandbox.isolation.views import installation

FULL = Isolation(7, True, True, True, True, "other")
needs_isolation = pytest.mark.skipif(
    offered().level != "full", reason=f"this machine: {offered().describe()} {offered().why}"
)


def test_a_level_is_full_only_where_nothing_is_lacking() -> None:
    assert FULL.level == "full" and FULL.why_no_untrusted_code is None
    assert replace(FULL, user="own, no rights").level == "full"
    assert Isolation().level == "none"


@pytest.mark.parametrize(
    ("change", "lacking"),
    [
        ({"files": 0}, "Landlock"),
        ({"network": False}, "network"),
        ({"syscalls": False}, "seccomp"),
        ({"privileges": False}, "privileges"),
        ({"user": "own"}, "rights"),
    ],
)
def test_untrusted_host_code_is_refused_where_a_mechanism_is_lacking(
    change: dict[str, object], lacking: str
) -> None:
    found = replace(FULL, **change)  # type: ignore[arg-type]
    assert found.level == "partial"
    reason = found.why_no_untrusted_code
    assert reason is not None and lacking in reason and "doctor" in reason


def test_a_description_survives_json() -> None:
    assert Isolation.from_dict(FULL.to_dict()) == FULL
    wanted = Policy(View(("/usr",), ("/x",)), 5, True, True, {"nofile": 3})
    assert Policy.from_json(wanted.to_json()) == wanted


def test_an_older_landlock_is_asked_for_what_it_knows() -> None:
    assert handled(1) == ((1 << 13) - 1, 0, 0)
    assert handled(4)[1:] == (3, 0)
    assert handled(6)[1:] == (3, 3)
    for abi in range(1, 8):
        view = View(("/usr",), ("/scratch",), ("/dev/null",))
        rights = dict(grants(view, abi))
        assert all(access & ~handled(abi)[0] == 0 for access in rights.values())
        assert not rights["/usr"] & WRITE_FILE
        assert rights["/scratch"] & READ_FILE and rights["/scratch"] & WRITE_FILE


def test_a_user_is_taken_only_where_its_files_are_guarded_or_open_to_all(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    hidden = View(read=("/usr", str(private)))
    assert policy(FULL, hidden, {}, 77).keep_search
    assert policy(replace(FULL, files=0), hidden, {}, 77).uid is None
    open_to_all = policy(FULL, View(read=("/usr",)), {}, 77)
    assert open_to_all.uid == 77 and not open_to_all.keep_search
    assert "nproc" in open_to_all.limits
    stays = policy(replace(FULL, user="own, no rights"), hidden, {}, 77)
    assert stays.uid is None and "nproc" not in stays.limits


def test_each_child_gets_a_user_of_its_own_that_the_container_knows() -> None:
    everyone = "0 0 4294967295"
    assert len({unused_uid(9, count, everyone) for count in range(50)}) == 50
    few = unused_uid(9, 0, "0 100000 65536")
    assert few is not None and 1000 < few < 65536
    assert unused_uid(9, 0, "0 1000 1") is None


def inside(folder: Path, code: str, view: View | None = None) -> Finished:
    """Run Python code confined to a folder."""
    read = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", sys.prefix, sys.base_prefix)
    seen = view or View(read, (str(folder),), ("/dev/null", "/dev/urandom"))
    wanted = policy(offered(), seen, {}, next_uid())
    found = run_limited(
        [sys.executable, "-I", "-c", code], folder, Limits(wall_s=30), policy=wanted
    )
    assert isinstance(found, Finished)
    return found


def outcome(folder: Path, expression: str) -> str:
    """The value of an expression in a confined process, or the name of the error that it raises."""
    code = f"""
import os, socket, ctypes, pathlib
try:
    print({expression})
except OSError as error:
    print(type(error).__name__)
"""
    return inside(folder, code).output.strip()


@needs_isolation
def test_scratch_can_be_written_and_nothing_else_can(tmp_path: Path) -> None:
    assert outcome(tmp_path, "open('x', 'w').write('abc')") == "3"
    assert (tmp_path / "x").read_text() == "abc"
    outside = tmp_path.parent / "outside"
    for place in (outside, Path("/tmp/outside"), Path("/dev/shm/outside"), Path("/usr/outside")):
        assert outcome(tmp_path, f"open({str(place)!r}, 'w')") == "PermissionError"
        assert not place.exists()


@needs_isolation
@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        f"/proc/{os.getpid()}/environ",
        f"/proc/{os.getpid()}/mem",
        __file__,
        "/proc/1/environ",
    ],
    ids=["/etc/passwd", "/proc/PID/environ", "/proc/PID/mem", "FILE", "/proc/1/environ"],
)
def test_nothing_outside_the_view_can_be_read(tmp_path: Path, path: str) -> None:
    assert outcome(tmp_path, f"len(open({path!r}, 'rb').read(9))") == "PermissionError"


@needs_isolation
def test_there_is_no_network_not_even_to_this_machine(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert outcome(tmp_path, f"socket.create_connection({address})") == "PermissionError"
    assert outcome(tmp_path, "socket.socket(socket.AF_UNIX)") == "PermissionError"


@needs_isolation
def test_other_processes_are_safe(tmp_path: Path) -> None:
    victim = subprocess.Popen(["sleep", "60"])
    try:
        assert outcome(tmp_path, f"os.kill({victim.pid}, 9)") == "PermissionError"
        call = f"ctypes.CDLL(None).ptrace(16, {victim.pid}, 0, 0)"
        assert outcome(tmp_path, call) == "-1"
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


@needs_isolation
def test_it_cannot_leave_its_group_nor_gain_rights(tmp_path: Path) -> None:
    assert outcome(tmp_path, "(os.setsid(), os.getsid(0) != os.getpid())[1]") == "False"
    assert outcome(tmp_path, "os.getuid() != 0") == "True"
    assert outcome(tmp_path, "os.setuid(0)") == "PermissionError"


def test_a_child_that_left_nothing_behind_is_gone_with_all_it_started(tmp_path: Path) -> None:
    code = "import os\nfor _ in range(20):\n    if os.fork() == 0:\n        os.setsid(); import time; time.sleep(300)"
    if offered().level != "full":
        pytest.skip(offered().describe())
    inside(tmp_path, code)
    deadline = time.monotonic() + 10
    while (left := working_in(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)  # they were killed, which takes a moment
    assert not left


def working_in(folder: Path) -> list[Path]:
    """Processes whose folder it is."""
    processes = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [entry for entry in processes if str(folder).encode() in _cwd(entry)]


def _cwd(entry: Path) -> bytes:
    try:
        state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        return b"" if state == "Z" else bytes((entry / "cwd").readlink())
    except OSError:
        return b""


@needs_isolation
def test_a_fork_bomb_meets_a_limit_where_the_user_is_its_own(tmp_path: Path) -> None:
    if next_uid() is None:
        pytest.skip("only root can give a process a user of its own")
    code = """
import os, time
count = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(30); os._exit(0)
        count += 1
except BlockingIOError:
    print(count < 5000)
"""
    assert inside(tmp_path, code).output.strip() == "True"


def test_a_policy_that_cannot_be_put_in_force_ends_the_process(tmp_path: Path) -> None:
    wanted = Policy(limits={"nofile": -5})
    done = subprocess.run(
        confined(["/bin/echo", "ran"], wanted), capture_output=True, text=True, check=False
    )
    assert done.returncode == CANNOT
    assert "ran" not in done.stdout and "cannot be confined" in done.stderr


def test_a_machine_without_anything_still_runs_commands(tmp_path: Path) -> None:
    wanted = policy(Isolation(), View(("/usr",)), {}, 77)
    assert wanted == Policy()
    found = run_limited(["/bin/echo", "ran"], tmp_path, Limits(wall_s=30), policy=wanted)
    assert isinstance(found, Finished) and found.output == "ran\n"


def test_a_trial_that_fails_is_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    confine.offered.cache_clear()
    monkeypatch.setattr(confine, "__file__", "/no/such/file.py")
    try:
        found = confine.offered()
    finally:
        confine.offered.cache_clear()
    assert found.level == "none" and "trial failed" in found.why


def test_no_landlock_is_version_nought(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        def syscall(self, *_: object) -> int:
            return -1

    monkeypatch.setattr(landlock, "_libc", Old)
    assert landlock.version() == 0


def test_a_compilers_folder_is_seen_but_never_a_home(tmp_path: Path) -> None:
    home = Path("/root")
    assert installation(Path("/opt/gcc/bin/gcc"), home) == ["/opt/gcc"]
    assert installation(Path("/root/bin/gcc"), home) == ["/root/bin"]
    assert installation(Path("/home/someone/bin/gcc"), home) == ["/home/someone/bin"]
    assert installation(Path("/bin/no-such-program"), home)[0].endswith("bin")
