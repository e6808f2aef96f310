"""How commands end: by signals, with a killed parent, behind a pipe that closes, in the middle of a file."""

from __future__ import annotations

import ast
import fcntl
import itertools
import json
import os
import pty
import resource
import signal
import stat
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neuralpower.data.journal import read_journal
from neuralpower.errors import DatasetError, DeviceError
from neuralpower.files.atomic import aside, check_writable
from neuralpower.processes.pool import Pool
from neuralpower.processes.tether import PARENT, environment, tethered
from tests import fake_worker, program
from tests.fake_worker import Fake, names, run, statuses
from tests.sampled import some_always

ROOT = Path(__file__).parents[2]
MARK = "NEURALPOWER_TEST"


def entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def waited(condition: Callable[[], bool]) -> None:
    """As `fake_worker.waited`, with patience for a machine on which much else runs."""
    fake_worker.waited(condition, 60)


# ---- children end with their parent ----


class Marked:
    """A process whose environment tells it and all that it starts from others."""

    def __init__(self, source: str, *arguments: object, **options: Any) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-c", source, *map(str, arguments)],
            env={**os.environ, MARK: self.mark, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )

    def alive(self) -> list[int]:
        """Those that run, zombies apart."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:  # it has ended, or is another user's
                continue
        return found

    def children(self) -> list[int]:
        return [pid for pid in self.alive() if pid != self.process.pid]


@pytest.fixture
def marked() -> Iterator[Callable[..., Marked]]:
    """Starts marked processes; none is left at the end."""
    started: list[Marked] = []

    def start(*arguments: Any, **options: Any) -> Marked:
        started.append(Marked(*arguments, **options))
        return started[-1]

    yield start
    for one in started:
        for pid in one.alive():
            os.kill(pid, signal.SIGKILL)
        one.process.communicate()


FITS = """
import sys
from neuralpower.cli.waiting import end_like_ctrl_c
from neuralpower.processes.pool import Pool

end_like_ctrl_c()
call = "import time; open(%r, 'a').write('begun '); time.sleep(600)" % sys.argv[1]
try:
    with Pool(2) as pool:
        list(pool.results(exec, [(call, {})] * 4))
except KeyboardInterrupt:
    sys.exit(130)
"""


MOMENTS = {
    signal.SIGKILL: "fit",
    signal.SIGTERM: "import",
    signal.SIGHUP: "import",
    signal.SIGINT: "fit",
}  # at which each signal comes in every run


@pytest.mark.parametrize(
    ("moment", "number"),
    some_always(itertools.product(("import", "fit"), MOMENTS), lambda case: case[0] == MOMENTS[case[1]]),
)
def test_no_fitting_process_outlives_the_one_that_asked(
    marked: Callable[..., Marked], tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    note, shared = tmp_path / "note", entries(Path("/dev/shm"))
    asker = marked(FITS, note)
    if moment == "import":
        waited(lambda: len(asker.children()) > 0)
    else:
        waited(lambda: note.exists() and note.read_text().count("begun") == 2)
    asker.process.send_signal(number)
    said = asker.process.communicate(timeout=60)
    waited(lambda: not asker.alive())
    assert asker.process.returncode == (130 if number != signal.SIGKILL else -signal.SIGKILL)
    assert said == ("", "")
    mine = str(asker.process.pid)
    assert not [
        name for name in entries(Path("/dev/shm")) - shared if mine in name
    ]  # no semaphore, no memory


MEASURES = """
from neuralpower.measure.collect.process import Worker, command
from neuralpower.measure.collect.process import Local

Local(Worker(1, command())).ask({"do": "open"})
"""


@pytest.mark.parametrize("moment", ["start", "import"])
def test_a_measuring_process_ends_with_its_supervisor_while_it_imports(
    marked: Callable[..., Marked], moment: str
) -> None:
    def importing() -> bool:
        try:
            return any(b"torch" in Path(f"/proc/{pid}/maps").read_bytes() for pid in supervisor.children())
        except OSError:
            return False

    supervisor = marked(MEASURES)
    waited(importing if moment == "import" else lambda: len(supervisor.children()) > 0)
    supervisor.process.kill()
    assert supervisor.process.communicate(timeout=60) == ("", "")
    waited(lambda: not supervisor.alive())


def test_a_child_whose_parent_is_gone_before_it_looks_ends_and_says_nothing() -> None:
    command = tethered("this")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    env = {**environment(), PARENT: str(gone.pid)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0 and "Zen of Python" in done.stdout


def test_a_pool_gives_results_in_order_and_raises_what_a_call_raises() -> None:
    with Pool(2) as pool:
        assert list(pool.results(pow, [(2, n) for n in range(5)])) == [1, 2, 4, 8, 16]
        with pytest.raises(ZeroDivisionError):
            list(pool.results(divmod, [(1, 1), (1, 0)]))
    with Pool(2) as pool, pytest.raises(DeviceError, match="was ended with code 3, .*; give --jobs 1"):
        list(pool.results(os._exit, [(3,), (3,)]))


# ---- signals, and a terminal that closes ----

# a light command, in whose middle a program's lines run
COMMAND = """
import json, os, signal, subprocess, sys, threading
from pathlib import Path
from neuralpower import cli
from neuralpower.cli.output import say

@cli.app.command()
def light(csv: Path = None) -> None:
    if csv is not None:
        sys.exit("not refused")
{middle}
    say(json.dumps("result"))

sys.argv[0] = "neuralpower"
cli.main()
"""


def in_the_middle(lines: str) -> str:
    return COMMAND.format(middle="\n".join(f"    {line}" for line in lines.strip().splitlines()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_end_is_130_unless_it_was_ignored_at_the_start(
    marked: Callable[..., Marked], number: signal.Signals
) -> None:
    # a terminal that closes sends several: what follows the first does not kill what is still to be written
    source = in_the_middle(
        f"""
try:
    os.kill(os.getpid(), {number})
finally:
    os.kill(os.getpid(), {signal.SIGHUP}), os.kill(os.getpid(), {signal.SIGTERM})
    print("written", file=sys.stderr)
"""
    )
    ended = marked(source, "light")
    assert (ended.process.communicate(timeout=60), ended.process.returncode) == (("", "written\n"), 130)
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ignored = marked(
        source, "light", preexec_fn=lambda: [signal.signal(one, signal.SIG_IGN) for one in ends]
    )  # as nohup does
    out, _ = ignored.process.communicate(timeout=60)
    assert ignored.process.returncode == 0
    assert json.loads(out) == "result"


COLLECTION = """
import sys
import neuralpower.cli.collect as collect
from neuralpower import cli
from neuralpower.measure.collect.process import Worker
from neuralpower.measure.collect.process import Local

out, *command = sys.argv[1:]
collect._executor = lambda *_: Local(Worker(1, command))
sys.argv = ["neuralpower", "collect-data", "--out", out]
cli.main()
"""


@pytest.mark.parametrize("nohup", [False, True])
def test_a_terminal_that_closes_ends_a_collection_as_ctrl_c_does_and_nohup_goes_on(
    fake: Callable[..., Fake], marked: Callable[..., Marked], tmp_path: Path, nohup: bool
) -> None:
    out, worker = tmp_path / "data", fake(count=200, item_s=0.005, block=4)
    outside, inside = pty.openpty()

    def own_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if nohup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    streams = {"stdin": inside, "stdout": inside, "stderr": inside}
    collection = marked(
        COLLECTION, out, *worker.command, **streams, start_new_session=True, preexec_fn=own_terminal
    )
    os.close(inside)
    waited(lambda: sum(record["type"] == "result" for record in read_journal(out)) > 10)
    os.close(outside)  # nothing can be written to it from now on
    code = collection.process.wait(timeout=60)
    waited(lambda: not collection.alive())
    if nohup:
        assert code == 141  # all is measured; the last line, the folder's name, went nowhere
    else:
        assert code == 130
        assert [r["event"] for r in read_journal(out) if r["type"] == "event"] == ["stop"]
        run(fake(count=200), out)
    assert statuses(out) == dict.fromkeys(names(200), "ok")


# ---- standard output is for results ----

NOISE = """
import atexit, ctypes

def noise():
    print("NOISE print", end=" ")
    sys.__stdout__.write("NOISE stdout "), sys.__stdout__.flush()
    os.write(1, b"NOISE descriptor ")
    os.system("echo NOISE shell")
    subprocess.run([sys.executable, "-c", "print('NOISE child')"])
    ctypes.CDLL(None).printf(b"NOISE library "), ctypes.CDLL(None).fflush(None)
    sys.stdout.buffer.write(b"NOISE buffer ")

noise()
thread = threading.Thread(target=noise)
thread.start(), thread.join()
atexit.register(noise)
"""


def test_nothing_but_the_result_reaches_standard_output(marked: Callable[..., Marked]) -> None:
    noisy = marked(in_the_middle(NOISE), "light")
    out, err = noisy.process.communicate(timeout=60)
    assert noisy.process.returncode == 0, err
    assert json.loads(out) == "result"
    assert err.count("NOISE") == 3 * 7  # in the command, in a thread, at the end


@pytest.mark.parametrize("both", [False, True])
def test_a_reader_who_has_had_enough_ends_it_quietly(marked: Callable[..., Marked], both: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    streams = {"stdout": writing, **({"stderr": writing} if both else {})}
    ended = marked(in_the_middle("print('a warning', file=sys.stderr)"), "light", **streams)
    os.close(writing)
    _, err = ended.process.communicate(timeout=60)
    assert ended.process.returncode == 141  # 128 + SIGPIPE
    assert err == (None if both else "a warning\n")


def test_closed_descriptors_and_a_full_disk_are_no_traceback(marked: Callable[..., Marked]) -> None:
    closed = marked(
        in_the_middle("print('a warning', file=sys.stderr)"), "light", preexec_fn=lambda: os.close(2)
    )
    out, _ = closed.process.communicate(timeout=60)
    assert closed.process.returncode == 0
    assert json.loads(out) == "result"  # and no warning
    closed = marked(in_the_middle("pass"), "light", preexec_fn=lambda: os.close(1))
    assert (closed.process.communicate(timeout=60), closed.process.returncode) == (("", ""), 0)
    with Path("/dev/full").open("w") as full:
        ended = marked(in_the_middle("pass"), "light", stdout=full)
        _, err = ended.process.communicate(timeout=60)
    assert ended.process.returncode == 4
    assert err == "error: standard output: the disk is full; free space on it, or write elsewhere\n"


def test_commands_print_results_by_say_alone() -> None:
    """A bare print would go to stderr."""
    for file in sorted((ROOT / "neuralpower" / "cli").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "typer.echo"):
                told = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "file"]
                on_stderr = told in (["sys.stderr"], ["shown_by(sys.stderr)"])
                assert on_stderr or "__version__" in ast.unparse(node), f"{file.name}:{node.lineno}"


# ---- two outputs of one name ----


def refused(*arguments: object) -> str:
    ran = program.run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1, ran.err
    return ran.err


def test_two_outputs_to_one_file_are_refused_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").write_text("old")
    Path("link").symlink_to("here")
    Path("hard").hardlink_to("here")
    Path("dangling").symlink_to("made")
    command = ("predict", "no:such")  # would be refused, too, but later
    for one, other in [("x", "x"), ("x", "./x"), ("here", "link"), ("link", "hard"), ("dangling", "made")]:
        said = refused(*command, "--csv", one, "--trace-file", other)
        assert (
            said
            == f"error: --trace-file {Path(other)}: is also where --csv {one} goes; choose another file\n"
        )
    assert "is also where" in refused("sweep", "no:such", "--csv", "p.html", "--plot", "p.html")
    assert "is also where" in refused("profile", "no:such", "--csv", "t", "--markdown", "t")
    assert "no:such" in refused("profile", "no:such", "--csv", "/dev/null", "--markdown", "/dev/null")
    assert Path("here").read_text() == "old" and not Path("made").exists()


def test_an_output_over_an_input_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (
        "net.py",
        "list.txt",
        "a.csv",
        "models/mine.json",
        "bert/config.json",
        "data/linear.csv",
        "data/README.md",
    ):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("kept")
    for command in (
        ("predict", "net.py:net", "--csv", "net.py"),
        ("predict", "net.py:net?layers=4", "--trace-file", "./net.py"),
        ("predict", "bert", "--csv", "bert/config.json"),
        ("predict", "zoo:alexnet", "--predictor", "mine", "--csv", "models/mine.json"),
        ("evaluate", "@list.txt", "--trace-file", "list.txt"),
        ("calibrate", "--from", "mine", "--out", "models/mine.json"),
        ("calibrate", "--from", "models/mine.json", "--out", "models/mine.json"),
        ("sweep", "zoo:alexnet", "--predictor", "amd-epyc-2c,mine", "--plot", "models/mine.json"),
        ("train-predictor", "data", "--out", "data/linear.csv"),
        ("train-predictor", "data", "--out", "data/README.json"),
        ("paradnn", "merge", "a.csv", "--out", "a.csv"),
        ("bench-log", "a.csv", "--csv", "a.csv"),
        (
            "bench",
            "--model",
            "zoo:alexnet",
            "--batch_size",
            1,
            "--config",
            "a.csv",
            "--monitor_file",
            "a.csv",
        ),
    ):
        assert "is read from; choose another file" in refused(*command), command
    assert {path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()} == {"kept"}


def test_a_file_among_the_results_of_standard_output_is_refused(
    marked: Callable[..., Marked], tmp_path: Path
) -> None:
    table = tmp_path / "table"
    with table.open("w") as file:
        for place in ("/dev/stdout", "/proc/self/fd/1", table):
            ended = marked(in_the_middle("pass"), "light", "--csv", place, stdout=file)
            _, err = ended.process.communicate(timeout=60)
            assert ended.process.returncode == 2
            reason = "is standard output, where the command prints its results"
            assert err == f"error: --csv {place}: {reason}; choose another file\n"


# ---- files are whole, or not there ----


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device"), MemoryError])
def test_what_fails_in_the_middle_of_a_file_leaves_nothing_beside_it(tmp_path: Path, error: Any) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    with pytest.raises(error if isinstance(error, type) else type(error)), aside(file) as new:
        new.write_text("half")
        assert file.read_text() == "old"
        raise error
    assert (file.read_text(), entries(tmp_path)) == ("old", {"file"})


def test_a_disk_without_room_leaves_the_old_file_alone(tmp_path: Path) -> None:
    from neuralpower.files.atomic import replace_file

    file = tmp_path / "file"
    replace_file(file, "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        with pytest.raises(DeviceError, match="file: cannot be written .File too large."):
            replace_file(file, "x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert (file.read_text(), entries(tmp_path)) == ("old", {"file"})
    with pytest.raises(DatasetError, match="cannot be written"):
        replace_file(file / "inside", "text")
    replace_file(tmp_path / "absent" / "file", "text")
    assert (tmp_path / "absent" / "file").read_text() == "text"


def test_what_a_killed_process_left_is_removed_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    file = tmp_path / "file"
    left, own = tmp_path / ".file.0123abcd.new", tmp_path / "file.new"
    for path in (left, own):
        path.write_text("half")
        os.utime(path, (0, 0))
    with aside(file) as first:
        os.utime(first, (0, 0))  # slow, and locked
        with aside(file) as second:
            second.write_text("second")
        first.write_text("first")
    assert file.read_text() == "first"
    assert entries(tmp_path) == {"file", "file.new"}  # the user's own
    fresh = tmp_path / ".file.89abcdef.new"
    fresh.write_text("")  # by another process, which has not locked it yet
    with aside(file):
        pass
    assert fresh.exists() and time.time() - fresh.stat().st_mtime < 60


def test_links_permissions_devices_and_long_names_are_as_with_a_plain_write(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    target, link, long = tmp_path / "deep" / "target", tmp_path / "link", tmp_path / ("n" * 255)
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to("deep/target")
    for path in (link, long, Path(os.devnull)):
        with aside(path) as new:
            new.write_text("new")
    assert link.is_symlink() and target.read_text() == long.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert Path(os.devnull).is_char_device()
    plain = tmp_path / "plain"
    plain.write_text("")
    assert long.stat().st_mode == plain.stat().st_mode
    check_writable(link)
    with pytest.raises(OSError, match="No such file"):
        check_writable(tmp_path / "absent" / "file")
    assert entries(tmp_path) == {"deep", "link", "plain", "n" * 255}
