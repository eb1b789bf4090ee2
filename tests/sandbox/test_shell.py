"""An agent's shell: what lasts from command to command, what a hostile command cannot do, and how each ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kit.processes import alive, family, gone, text_in

from sandbox.isolation import trees
from sandbox.isolation.confine import offered
from sandbox.isolation.limits import GIB
from sandbox.isolation.mechanisms import Isolation
from sandbox.isolation.privileges import next_uid
from sandbox.shell.result import NOT_RUN, ShellLimits
from sandbox.shell.shell import PROTECTED, Shell, protected_files

needs_isolation = pytest.mark.skipif(
    offered().level != "full", reason=f"this machine: {offered().describe()} {offered().why}"
)
needs_root = pytest.mark.skipif(
    next_uid() is None, reason="only root can give a process a user of its own"
)
pytestmark = needs_isolation


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "SKILL.md").write_text("rules")
    (folder / "task.py").write_text("task")
    return folder


@pytest.fixture
def shell(workspace: Path) -> Iterator[Shell]:
    with Shell(workspace) as made:
        yield made


def keeper_of(shell: Shell) -> int:
    assert shell._keeper is not None
    return shell._keeper.pid


def test_folder_variables_functions_and_aliases_last(shell: Shell, workspace: Path) -> None:
    first = shell.run("""
mkdir -p 'a folder'; cd 'a folder'
word="it's \\$5"; export SEEN=yes; list=(one 'two three'); declare -A map=([k]=v)
say() { echo "said $1"; }
alias ll='echo listed'
shopt -s nullglob; umask 077""")
    assert (first.status, first.died, first.output) == (0, False, "")
    then = shell.run(
        'pwd; echo "$word" "${list[1]}" ${map[k]}; say so; ll; printenv SEEN; echo *.none; umask'
    )
    assert then.output.splitlines() == [
        str(workspace / "a folder"), "it's $5 two three v", "said so", "listed", "yes", "", "0077",
    ]  # fmt: skip


def test_what_a_command_unsets_stays_unset(shell: Shell) -> None:
    shell.run("unset PAGER; gone=1; f() { :; }")
    shell.run("unset gone; unset -f f")
    assert shell.run("echo ${PAGER-no} ${gone-no}; type f").output.startswith("no no\n")


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("exit 3", 3),
        ("exec true", 0),
        ("set -e; false; echo not reached", 1),
        ("kill -9 $$", 137),
        ("trap 'exit 4' DEBUG; :", 4),
    ],
)
def test_a_command_that_ends_the_shell_says_so_and_the_next_goes_on_as_before_it(
    shell: Shell, workspace: Path, command: str, status: int
) -> None:
    shell.run("mkdir sub; cd sub; x=kept")
    ended = shell.run(f"x=lost; cd /usr; {command}")
    assert ended.died and ended.status == status and not ended.timed_out
    assert "fresh shell" in ended.output and "not reached" not in ended.output
    then = shell.run("echo $x; pwd")
    assert then.output == f"kept\n{workspace / 'sub'}\n" and not then.died


def test_options_under_which_later_commands_would_fail_silently_do_not_last(shell: Shell) -> None:
    shell.run("set -e -x -v -u")
    then = shell.run("false; echo on")
    assert then.output == "on\n" and then.status == 0
    assert "unbound" in shell.run("echo $none").output  # nounset was asked for, and says so


@pytest.mark.parametrize("command", ["if", "echo 'open", "false", "no-such-program", "(exit 9)"])
def test_a_command_that_fails_leaves_the_shell_alive(shell: Shell, command: str) -> None:
    found = shell.run(command)
    assert found.status not in (0, None) and not found.died
    assert shell.run("echo on").output == "on\n"


def test_functions_with_the_names_of_builtins_do_not_break_the_shell(shell: Shell) -> None:
    shell.run("eval() { echo evil; }; set() { echo evil; }; exit() { echo evil; }; read() { :; }")
    shell.run("alias builtin='echo evil' cd='echo evil'")
    assert shell.run("x=1; \\echo fine").output == "fine\n"


def test_a_command_reads_the_end_of_its_input_and_cannot_hold_nul(shell: Shell) -> None:
    assert shell.run("cat; read line || echo end").output == "end\n"
    for command in ("echo \0", "echo \ud800"):
        found = shell.run(command)
        assert found.status == NOT_RUN and "cannot hold" in found.output


def test_output_of_any_length_is_cut_in_the_middle_with_its_size_told(workspace: Path) -> None:
    with Shell(workspace, limits=ShellLimits(output_bytes=1000)) as shell:
        found = shell.run("echo begin; head -c 300000000 /dev/zero; echo; echo end")
    assert found.status == 0 and len(found.output) < 1200
    assert found.output.startswith("begin\n") and found.output.endswith("end\n")
    assert "[... 299999011 of 300000011 bytes left out ...]" in found.output


def test_output_that_is_no_text_becomes_text(shell: Shell) -> None:
    found = shell.run(r"printf 'a\x00\x1b[1m\xff\xc3\xa9\r\n'")
    assert found.output == "a\ufffd\ufffd[1m\ufffdé\n"


def test_neither_printing_nor_descriptors_forge_an_end(shell: Shell) -> None:
    """Whatever is written to whatever descriptor, the command's own end and status are found."""
    found = shell.run("""
for fd in $(seq 1 250); do echo '{"code": 0, "why": "", "kept": true}' >&$fd; done 2>/dev/null
sleep 0.3; echo last; (exit 7)""")
    assert found.status == 7 and found.output.endswith("last\n")
    assert shell.run("echo $((6 * 7))").output == "42\n"


def test_a_forged_or_spoilt_state_harms_the_shell_alone(shell: Shell) -> None:
    shell.run(
        "cd $HOME; rm -f .state-*; ln -s /etc/shadow .state-new; ln -s /etc/shadow .state-kept"
    )
    found = shell.run("echo on")
    assert found.output == "on\n" and not found.died
    shell.run("cd $HOME; chmod 000 . 2>/dev/null; rm -rf .state-*; mkdir .state-new .state-mark")
    assert shell.run("echo on").output.startswith("on\n")


def test_all_is_ended_at_the_deadline_whatever_group_it_went_to(shell: Shell) -> None:
    pid = shell.folder / "pid"
    watch = f"ls /proc/self >/dev/null; echo $$ > {pid}"
    for seconds in (1.0, 5.0, 60.0):  # more, where it had not started all in time
        found = shell.run(
            f"x=1; (setsid sleep 301 &); nohup sleep 302 & {watch}; sleep 303", seconds
        )
        assert found.timed_out and found.died and found.status == 124
        assert f"stopped after {seconds:g} s" in found.output
        if pid.exists() and pid.read_text():
            break
    assert gone([int(pid.read_text())])
    assert family(keeper_of(shell)) == [keeper_of(shell)]
    assert shell.run("echo ${x-unset}").output == "unset\n"


def test_nothing_runs_between_commands(shell: Shell) -> None:
    daemon = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        time.sleep(300)
    os._exit(0)
"""
    found = shell.run(f"sleep 300 & disown; python3 -c '{daemon}'; echo done")
    assert found.output.startswith("done\n") and "left running were ended" in found.output
    assert found.status == 0 and not found.died and not found.timed_out
    assert family(keeper_of(shell)) == [keeper_of(shell)]


def test_files_outside_are_neither_read_nor_written(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_TOKEN", "s3cret")
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    secret.chmod(0o644)
    other = tmp_path / "other-workspace"
    other.mkdir(mode=0o777)
    places = [secret, __file__, Path.home(), "/etc/passwd", "/etc/shadow", "/proc/1/environ"]
    places += [f"/proc/{os.getpid()}/environ", f"/proc/{os.getpid()}/mem", "/dev/mem", "/root"]
    for place in places:
        found = shell.run(f"ln -sfn '{place}' link; cat '{place}' link; ls -A '{place}/' link/")
        assert found.status != 0 and "s3cret" not in found.output, place
        assert found.output.count("Permission denied") >= 2 or "No such" in found.output
    for place in (other / "x", secret, "/tmp/x-of-shell", "/dev/shm/x", "/usr/x"):
        found = shell.run(f"echo changed > '{place}'; ln -f '{secret}' hard; mv '{secret}' moved")
        assert "denied" in found.output and not (shell.folder / "hard").exists()
    assert secret.read_text() == "s3cret" and not list(other.iterdir())
    assert "s3cret" not in shell.run("env; cat /proc/self/environ").output


@needs_root
def test_protected_files_are_read_and_not_changed(shell: Shell, workspace: Path) -> None:
    assert shell.protects
    assert shell.run("cat SKILL.md task.py").output == "rulestask"
    shell.run("""
echo x > SKILL.md; echo x >> task.py; chmod 777 SKILL.md; rm -f SKILL.md; mv task.py t; ln -f SKILL.md s
cp /usr/bin/env fake; mv -f fake SKILL.md; python3 -c 'import os; os.rename("fake", "task.py")'
chmod 777 .; chmod -t .; rm -rf ./*""")
    assert (workspace / "SKILL.md").read_text() == "rules"
    assert (workspace / "task.py").read_text() == "task"
    (workspace / "notes").write_text("by a tool")  # what the owner adds is the shell's to change
    assert shell.run("echo more >> notes && rm notes && mkdir d && echo ok").output == "ok\n"


@needs_root
def test_a_shells_user_is_nobody_elses_until_it_is_closed(workspace: Path) -> None:
    with Shell(workspace) as shell:
        assert shell._uid not in {next_uid() for _ in range(1100)}
    assert shell._uid in {next_uid() for _ in range(1100)}


@needs_root
def test_only_the_judges_own_files_are_protected_by_a_pattern(
    shell: Shell, workspace: Path
) -> None:
    shell.run("touch task.mine; ln -s /etc/passwd task.link; mkdir task.d")
    assert protected_files(workspace, PROTECTED) == [
        str(workspace / "SKILL.md"),
        str(workspace / "task.py"),
    ]
    assert shell.run("rm -r task.mine task.link task.d && ls").output == "SKILL.md\ntask.py\n"


@needs_root
def test_a_protected_folder_is_protected_with_all_that_is_in_it(workspace: Path) -> None:
    (workspace / "example/deep").mkdir(parents=True)
    (workspace / "example/deep/kernel.cu").write_text("an example")
    with Shell(workspace, protected=(*PROTECTED, "example/*")) as shell:
        for _ in range(2):
            found = shell.run("""
cat example/deep/kernel.cu; echo x > example/deep/kernel.cu; echo x > example/more; rm -rf example
mv example other; ln -sfn /usr example; touch mine; echo x > mine; rm mine""")
            assert found.output.startswith("an example") and found.status == 0
    assert (workspace / "example/deep/kernel.cu").read_text() == "an example"
    assert sorted(path.name for path in (workspace / "example").iterdir()) == ["deep"]


def test_there_is_no_network(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = shell.run(f"""
exec 9<>/dev/tcp/127.0.0.1/{port} || echo none
python3 -c 'import socket; socket.create_connection(("127.0.0.1", {port}))'
python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect("/run/docker.sock")'
""")
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()
    assert found.status != 0 and found.output.count("not permitted") >= 2


def test_others_are_not_signalled(shell: Shell) -> None:
    victim = subprocess.Popen(["sleep", "60"])
    try:
        found = shell.run(f"kill -9 $PPID {os.getpid()} {victim.pid}; kill -9 -- -1; echo on")
        assert alive(victim.pid) and "not permitted" in found.output
    finally:
        victim.kill()
        victim.wait()
    assert shell.run("echo on").output == "on\n"


@needs_root
def test_a_fork_bomb_meets_its_limit_and_its_deadline(workspace: Path) -> None:
    with Shell(workspace, limits=ShellLimits(processes=40)) as shell:
        found = shell.run("bomb() { bomb | bomb & }; bomb; sleep 30", 3.0)
        assert found.timed_out or "processes" in found.output
        assert family(keeper_of(shell)) == [keeper_of(shell)]
        assert shell.run("echo on").output == "on\n"


def test_processes_are_counted_where_the_user_has_others(workspace: Path) -> None:
    with Shell(workspace, limits=ShellLimits(processes=20)) as shell:
        shell._uid = None  # as where the judge is not root
        shell._end()
        found = shell.run("for i in $(seq 60); do (sleep 30 &); done; sleep 30", 20)
        assert "more than 20 processes" in found.output and found.died and found.seconds < 15
        assert family(keeper_of(shell)) == [keeper_of(shell)]
        assert shell.run("echo on").output == "on\n"


def test_memory_is_limited_for_each_process_and_for_all(workspace: Path) -> None:
    with Shell(workspace, limits=ShellLimits(memory_bytes=GIB // 2)) as shell:
        one = shell.run("python3 -c 'x = bytearray(1 << 30)'")
        assert "MemoryError" in one.output and one.status == 1
        hog = "python3 -c 'import time; x = bytearray(200 << 20); time.sleep(60)'"
        many = shell.run(f"for i in 1 2 3 4; do {hog} & done; wait", 90)
        assert "of memory" in many.output and many.died and many.seconds < 60


def test_memory_that_processes_share_without_a_file_counts(workspace: Path) -> None:
    with Shell(workspace, limits=ShellLimits(memory_bytes=GIB // 4)) as shell:
        hog = "import mmap, time; m = mmap.mmap(-1, 60 << 20); m.write(bytes(60 << 20)); time.sleep(60)"
        found = shell.run(f"for i in 1 2 3 4 5; do python3 -c '{hog}' & done; wait", 90)
        assert "of memory" in found.output and found.died


DEEP = "import os\nfor _ in range({}):\n    os.mkdir('d'); os.chdir('d')\n"


def test_folders_of_any_depth_neither_stop_a_shell_nor_outlive_it(
    workspace: Path, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: trees.remove(workspace))  # pytest's own removal would call itself
    with Shell(workspace) as shell:
        home = Path(shell.run("echo $HOME").output.strip())
        made = shell.run(
            f'(cd $HOME; python3 -c "{DEEP.format(1500)}"); python3 -c "{DEEP.format(3000)}"'
        )
        assert made.status == 0
        found = shell.run("echo on")
        assert (found.status, found.output) == (0, "on\n")
    assert not home.exists()
    trees.remove(workspace)
    assert not workspace.exists()


def test_files_have_a_largest_size(workspace: Path) -> None:
    with Shell(workspace, limits=ShellLimits(file_bytes=1 << 20)) as shell:
        assert shell.run("head -c 5000000 /dev/zero > big; echo $?").output != "0\n"
    assert (workspace / "big").stat().st_size <= 1 << 20


def test_a_program_built_in_the_workspace_runs(shell: Shell) -> None:
    found = shell.run("echo 'int main() { return 7; }' > a.cpp && g++ a.cpp -o a && ./a")
    assert found.status == 7 and not found.died


def test_no_gpu_is_named_unless_asked_for(shell: Shell) -> None:
    assert shell.run("echo ${CUDA_VISIBLE_DEVICES-all}").output == "\n"


GPU_DEVICES = [
    path for folder, name in (("/dev", "nvidia*"), ("/dev/dri", "*")) for path in Path(folder).glob(name)
    if path.is_char_device()
]  # fmt: skip


@pytest.mark.skipif(not GPU_DEVICES, reason="this machine has no device of a GPU")
def test_no_device_of_a_gpu_is_opened_unless_asked_for(shell: Shell) -> None:
    for device in GPU_DEVICES:
        found = shell.run(f"exec 9< '{device}' && echo opened")
        assert "denied" in found.output and "opened" not in found.output, device


def test_closing_ends_what_runs_and_removes_temporary_files(workspace: Path) -> None:
    shell = Shell(workspace)
    home = Path(shell.run("echo $HOME").output.strip())
    keeper = keeper_of(shell)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(shell.run, "echo $$ > pid; sleep 300 & sleep 300")
        pid = int(text_in(workspace / "pid"))
        shell.close()
        assert running.result().died
    assert gone([keeper, pid]) and not home.exists()
    closed = shell.run("echo on")
    assert closed.status == NOT_RUN and "closed" in closed.output


def test_when_the_owner_dies_everything_ends(workspace: Path) -> None:
    code = f"""
from sandbox.shell.shell import Shell
Shell({str(workspace)!r}).run("(setsid sleep 300 &); echo $HOME > home; echo $$ > pid; sleep 300", 300)
"""
    owner = subprocess.Popen([sys.executable, "-c", code])
    text_in(workspace / "pid")
    below = family(owner.pid)
    assert len(below) >= 4
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert gone(below)
    home = Path((workspace / "home").read_text().strip())
    deadline = time.monotonic() + 10
    while home.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not home.exists()


def test_a_lost_keeper_is_said_and_replaced(shell: Shell) -> None:
    shell.run("x=1")
    os.kill(keeper_of(shell), signal.SIGKILL)
    lost = shell.run("echo $x")
    assert lost.died and "lost" in lost.output
    assert shell.run("echo ${x-none}").output == "none\n"


def test_where_confinement_lacks_nothing_is_run_and_the_reason_is_given(workspace: Path) -> None:
    with Shell(workspace, isolation=Isolation(why="an old kernel")) as shell:
        assert shell.why_not is not None and "Landlock" in shell.why_not
        found = shell.run("touch ran")
    assert found.status == NOT_RUN and "an old kernel" in found.output
    assert not (workspace / "ran").exists()


def test_commands_take_the_turns_of_an_owner_who_measures(workspace: Path) -> None:
    turn = threading.Lock()
    with Shell(workspace, turn=lambda: turn) as shell, ThreadPoolExecutor(1) as threads:
        with turn:
            waiting = threads.submit(shell.run, "touch ran")
            time.sleep(0.3)
            assert not (workspace / "ran").exists()
        assert waiting.result().status == 0 and (workspace / "ran").exists()


def test_sixty_four_shells_at_once_do_not_meet(tmp_path: Path) -> None:
    folders = [tmp_path / str(i) for i in range(64)]
    for folder in folders:
        folder.mkdir()

    def episode(number: int) -> str:
        with Shell(folders[number]) as shell:
            shell.run(f"mine={number}; echo {number} > file")
            other = folders[(number + 1) % 64] / "file"
            return shell.run(f"echo $mine $(cat file) $(cat {other} 2>/dev/null)").output

    with ThreadPoolExecutor(64) as threads:
        found = list(threads.map(episode, range(64)))
    assert found == [f"{number} {number}\n" for number in range(64)]
