"""Timing: what is called, in which order, and what a number means."""

import itertools
import mmap
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from neuralpower.devices.host import read_cpu, steal_ticks, unlike, waits_s, worker_environment
from neuralpower.layers import Call
from neuralpower.measure.cpu import reached
from neuralpower.measure.cpu.timer import Sentinel, Timing, time_calls


class Clock:
    """A clock that a test turns: a call costs what it says."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1  # reading it takes a nanosecond
        return self.now

    def work(self, milliseconds: float) -> None:
        self.now += round(milliseconds * 1e6)


def timings(calls: list[Call], clock: Clock, rounds: int = 9) -> list[Timing | Exception]:
    return time_calls(calls, Sentinel(clock), random.Random(0), rounds=rounds, clock_ns=clock)


def test_a_call_is_timed_once_a_round_after_its_warm_up() -> None:
    clock, log = Clock(), []

    def call(name: str, milliseconds: float) -> Call:
        return Call(lambda: (log.append(name), clock.work(milliseconds)), ())

    a, b = timings([call("a", 2.0), call("b", 5.0)], clock)
    assert isinstance(a, Timing)
    assert isinstance(b, Timing)
    assert a.samples_s == pytest.approx([0.002] * 9, rel=1e-4)
    assert b.runtime_s == pytest.approx(0.005, rel=1e-4)
    assert log[:4] == ["a", "a", "b", "b"]  # two calls agree: warm
    assert sorted(log[4:6]) == ["a", "b"]
    assert log.count("a") == log.count("b") == 11


def test_the_order_changes_from_round_to_round() -> None:
    clock, log = Clock(), []
    timings([Call(lambda i=i: (log.append(i), clock.work(1)), ()) for i in range(6)], clock)
    rounds = [tuple(log[12 + 6 * i : 18 + 6 * i]) for i in range(9)]
    assert all(sorted(order) == list(range(6)) for order in rounds)
    assert len(set(rounds)) > 5


def test_inputs_are_written_afresh_and_weights_are_not() -> None:
    x, weight = torch.ones(4), torch.ones(4)
    timings([Call(torch.add, (x, weight), warm=(x,))], Clock(), rounds=3)
    assert x.tolist() == [-1] * 4  # three changes of sign
    assert weight.tolist() == [1] * 4


def test_a_network_is_timed_just_after_a_run_of_its_own_unless_it_is_long() -> None:
    clock, log, x = Clock(), [], torch.ones(4)

    def call(name: str, milliseconds: float, *, recurs: bool) -> Call:
        return Call(
            lambda: (log.append((name, float(x[0]))), clock.work(milliseconds)), (), warm=(x,), recurs=recurs
        )

    calls = [call("network", 5, recurs=True), call("long", 60, recurs=True), call("layer", 5, recurs=False)]
    short, *_ = timings(calls, clock, rounds=4)
    assert isinstance(short, Timing)
    assert short.samples_s == pytest.approx([0.005] * 4, rel=1e-4)  # one of the two runs
    names = [name for name, _ in log]
    assert [names.count(name) for name in ("network", "long", "layer")] == [2 + 2 * 4, 2 + 4, 2 + 4]
    timed = log[6:]
    first = next(i for i, (name, _) in enumerate(timed) if name == "network")
    assert timed[first + 1] == ("network", -timed[first][1])  # its inputs are written afresh between the two


def test_a_slow_call_takes_fewer_rounds() -> None:
    clock = Clock()
    (slow,) = timings([Call(lambda: clock.work(400), ())], clock)
    assert isinstance(slow, Timing)
    assert len(slow.samples_s) == 3


def test_the_wait_of_the_thread_that_waited_longest_is_taken_off_a_long_call() -> None:
    # the process shares two cores: of 121 ms, one thread waits 67, the other, which started later, 50
    clock, waited = Clock(), {"main": 1.0}

    def passed() -> None:
        clock.work(121)
        waited["main"] += 0.067
        waited["worker"] = waited.get("worker", 0.0) + 0.05

    (long,) = time_calls(
        [Call(passed, ())], Sentinel(clock), random.Random(0), clock_ns=clock, waits=lambda: dict(waited)
    )
    assert isinstance(long, Timing)
    assert (long.runtime_s, long.alone_s) == pytest.approx((0.121, 0.054), rel=1e-4)
    assert len(long.waited_s) == len(long.samples_s)


def test_no_wait_is_taken_off_a_call_that_is_shorter_than_the_schedulers_tick() -> None:
    clock, looks = Clock(), itertools.count()
    (short,) = time_calls(
        [Call(lambda: clock.work(3), ())],
        Sentinel(clock),
        random.Random(0),
        clock_ns=clock,
        waits=lambda: {"main": float(next(looks))},
    )
    assert isinstance(short, Timing)
    assert short.alone_s == short.runtime_s
    assert next(looks) == 0


class Given(Sentinel):
    """A sentinel that takes the given times, one after the other, and half of each at its second call."""

    def __init__(self, times_s: list[float]) -> None:
        self.given, self.times = iter(times_s), []

    def __call__(self) -> tuple[float, float]:
        self.times.append(next(self.given))
        return self.times[-1], self.times[-1] / 2


def test_calls_timed_in_turn_share_the_sentinels_times_of_their_rounds() -> None:
    # two short calls and a slow one in 6 rounds; the slow one is in the first and the fourth, and makes the
    # sentinel due before each call after it
    clock = Clock()
    calls = [Call(lambda ms=ms: clock.work(ms), ()) for ms in (1, 1, 400)]
    sentinel = Given([1 + 0.01 * i for i in range(30)])
    one, other, slow = time_calls(calls, sentinel, random.Random(1), rounds=6, clock_ns=clock)
    assert isinstance(one, Timing) and isinstance(other, Timing) and isinstance(slow, Timing)
    assert one.sentinel_s == other.sentinel_s == pytest.approx(float(np.percentile(sentinel.times, 10)))
    assert one.sentinel_slowdown == pytest.approx(
        float(np.median(sentinel.times) / np.percentile(sentinel.times, 10))
    )
    assert len(sentinel.times) < 12
    assert slow.sentinel_s < np.median(sentinel.times)
    assert slow.sentinel_s != one.sentinel_s
    assert one.sentinel_again_s == pytest.approx(one.sentinel_s / 2)
    assert slow.to_row()["sentinel_again_s"] == pytest.approx(slow.sentinel_s / 2)


def test_the_sentinel_is_called_twice_in_a_row_each_time_with_the_weights_used_longest_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, seen = Clock(), []

    def linear(_: torch.Tensor, weight: torch.Tensor) -> None:
        seen.append(weight.data_ptr())
        clock.work(len(seen))

    monkeypatch.setattr("neuralpower.measure.cpu.timer.F.linear", linear)
    sentinel = Sentinel(clock)
    first, again = sentinel()
    assert first == pytest.approx(1e-3, rel=1e-3)
    assert again == pytest.approx(2e-3, rel=1e-3)
    assert sentinel.times == [first]
    for _ in range(Sentinel.MATRICES - 1):
        sentinel()
    assert seen == 2 * [weight.data_ptr() for weight in sentinel.weights]


def test_a_call_that_raises_leaves_the_others_alone() -> None:
    clock = Clock()
    bad, good = timings([Call(torch.zeros, ("no size",)), Call(lambda: clock.work(1), ())], clock)
    assert isinstance(bad, TypeError)
    assert isinstance(good, Timing)
    assert good.runtime_s == pytest.approx(0.001, rel=1e-4)


def test_the_value_is_the_tenth_percentile_and_the_row_keeps_the_rest() -> None:
    timing = Timing(tuple(float(i) for i in range(1, 12)), 1.0, 2.0, 1.1, 0.0, (), 0.0)
    row = timing.to_row()
    # eleven values 1..11: the 10th percentile is the second, the median the sixth
    assert (row["runtime_s"], row["runtime_median_s"], row["runtime_min_s"], row["n"]) == (2.0, 6.0, 1.0, 11)
    assert row["samples_s"] == list(timing.samples_s)


@pytest.mark.parametrize(
    ("switches", "steal", "noisy"),
    [(0.0, 0.0, False), (0.5, 0.0, True), (0.0, 0.02, True), (0.3, 0.009, False)],
)
def test_contention_is_noticed(switches: float, steal: float, noisy: bool) -> None:
    assert Timing((1e-5,) * 9, 1e-5, 1e-3, 1.0, switches, (), steal).noisy == noisy


def test_a_long_call_may_meet_the_scheduler() -> None:
    assert not Timing((0.05,) * 9, 0.05, 1e-3, 1.0, 1.0, (), 0.0).noisy


def test_a_machine_is_read_from_its_files(tmp_path: Path) -> None:
    proc, system = tmp_path / "proc", tmp_path / "sys"
    proc.mkdir()
    (proc / "cpuinfo").write_text(
        "model name\t: Intel(R) Xeon(R) CPU @ 2.20GHz\nflags\t: fpu avx2 avx512f hypervisor\n"
    )
    (proc / "meminfo").write_text("MemTotal:       1024 kB\n")
    (proc / "stat").write_text("cpu  10 0 10 60 0 0 0 20 0 0\n")
    for index, (level, kind, size) in enumerate(
        [(1, "Instruction", "16K"), (1, "Data", "32K"), (2, "Unified", "1M")]
    ):
        folder = system / f"devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        for name, value in (("level", str(level)), ("type", kind), ("size", size)):
            (folder / name).write_text(value + "\n")
    cpu = read_cpu(proc, system)
    assert cpu.name == "Intel(R) Xeon(R) CPU @ 2.20GHz"
    assert cpu.slug == f"intel-xeon-{cpu.cores}c"
    assert (cpu.l1d_bytes, cpu.l2_bytes, cpu.llc_bytes) == (32 * 2**10, 2**20, 2**20)
    assert cpu.memory_bytes == 2**20
    assert cpu.flags == ("avx2", "avx512f")
    assert cpu.virtual
    # 20 of 100 ticks were stolen
    assert steal_ticks(proc) == (20, 100)
    # of two threads; the kernel writes nanoseconds on a core, nanoseconds without one, and time slices
    for thread, text in (("7", "5000000 3000000 4\n"), ("8", "0 1500000000 2\n"), ("9", "")):
        (proc / "self/task" / thread).mkdir(parents=True)
        (proc / "self/task" / thread / "schedstat").write_text(text)
    assert waits_s(proc) == {"7": 0.003, "8": 1.5}
    assert waits_s(tmp_path) == {}


def test_cpus_of_one_name_are_told_apart_by_what_is_known_of_both() -> None:
    cpu = {
        "name": "AMD EPYC",
        "cores": 2,
        "l1d_bytes": 32768,
        "llc_bytes": None,
        "memory_bytes": 1,
        "flags": ["avx2", "fma"],
    }
    assert unlike(cpu, {**cpu, "memory_bytes": 2, "llc_bytes": 2**25}) == []
    assert unlike({}, cpu) == []
    assert unlike(cpu, {**cpu, "flags": ["avx2"]}, by_flags=False) == []  # a newer kernel shows more of them
    assert unlike(cpu, {**cpu, "name": "Intel", "cores": 4, "flags": ["avx2", "avx_vnni"]}) == [
        "name AMD EPYC there, Intel here",
        "cores 2 there, 4 here",
        "fma only there",
        "avx_vnni only here",
    ]


def test_a_worker_gets_its_threads_and_no_binding_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_CPU_AFFINITY", "0-3")
    environment = worker_environment(3)
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "3"
    assert "GOMP_CPU_AFFINITY" not in environment


def test_what_a_byte_of_fresh_memory_costs_is_its_first_write_beyond_the_second_and_giving_it_back() -> None:
    # a block of a page: the first write takes 4 us, the second 1 us, giving back 1.096 us
    steps = itertools.cycle((0, 4000, 1000, 0, 1096))
    now = itertools.accumulate(steps)
    seconds = reached.fresh_s_per_byte(lambda: mmap.mmap(-1, 4096), lambda: next(now))
    assert seconds == pytest.approx(1e-9)  # 4,096 ns for 4,096 bytes


def test_rates_are_of_a_copys_reads_and_writes_and_of_a_products_flops() -> None:
    now = itertools.count(step=1000)  # each call takes 1 us
    # a copy of 4 times 1,000 bytes of cache reads and writes 4,000 bytes in 1 us
    assert reached.copied_bytes_per_s(1000, lambda: next(now)) == pytest.approx(4e9)
    # 2 * 10^3 FLOP in 1 us are 2 GFLOP/s; whole numbers of 8 bits have no such product
    rates = reached.product_flops_per_s(("float32",), side=10, clock_ns=lambda: next(now))
    assert rates == {"float32": pytest.approx(2e9)}
    assert reached.product_flops_per_s(("float32",), side=4, clock_ns=lambda: next(now)) == {}  # 0.13 GFLOP/s


FAULTS = """
import resource, torch
from neuralpower.measure.cpu.reached import keep_heap, usual_heap

def faults(numbers):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(numbers)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

sizes = [(4 << 20) - 10_000 * i for i in range(4)]  # each fits where the one before was
if keep_heap():
    hole, above = torch.zeros(sizes[0]), torch.zeros(1000)
    del hole
    kept = max(map(faults, sizes[1:]))
    with usual_heap(4 << 20):
        print(kept, min(map(faults, sizes[1:])))
"""


def test_a_heap_is_kept_or_gives_back_what_is_free() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    if not done.stdout:
        pytest.skip("the C library is not glibc")
    kept, usual = map(int, done.stdout.split())
    # 16 MiB are 4,096 pages, or eight of 2 MiB where the system joins them; the hole is filled
    assert kept == 0 < 8 <= usual
