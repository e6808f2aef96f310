"""One rank of an exchange: `python -m neuralpower.measure.exchanges.ranks STORE RANK REQUEST`.

Ranks meet by a file. Each exchange is warmed, then timed in rounds: a barrier, some exchanges in a row, the
slowest rank's time over their number. Rank 0 prints a line of JSON for each: what it begins, then its row.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from neuralpower.files.json_files import json_text
from neuralpower.processes.tether import end_with_parent

ROUNDS, WARM = 7, 3
ROUND_S, MOST_IN_A_ROW = 2e-3, 200  # of one round


def main() -> None:
    """Measure until the list or the time ends."""
    end_with_parent()
    import datetime

    import torch
    import torch.distributed as dist

    store, rank, request = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    backend, ranks = request["backend"], request["ranks"]
    torch.set_num_threads(1)
    device = torch.device(f"cuda:{rank}" if backend == "nccl" else "cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    patience = datetime.timedelta(seconds=request["patience_s"])
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=patience
    )
    started = time.monotonic()
    for function, elements in request["order"]:
        late = torch.tensor([float(time.monotonic() - started > request["budget_s"])], device=device)
        dist.broadcast(late, 0)
        if late.item():
            break
        _say(rank, {"begun": [function, elements]})
        try:
            call = exchange(function, elements, ranks, rank, device)
            times = timed(call, device)
        except (RuntimeError, NotImplementedError) as error:
            if "support" not in str(error):  # a backend that lacks a function says so, on all ranks
                raise
            _say(rank, {"unsupported": function})
            continue
        _say(rank, {"function": function, "elements": elements, **times})
    dist.barrier()
    dist.destroy_process_group()


def exchange(function: str, elements: int, ranks: int, rank: int, device: Any) -> Callable[[], Any]:
    """One exchange of `elements` float32 numbers, as `Collective` counts them."""
    import torch
    import torch.distributed as dist

    whole, part = torch.ones(elements, device=device), torch.ones(elements // ranks, device=device)
    received = torch.empty_like(whole)

    def send_recv() -> None:
        if rank == 0:
            dist.send(whole, 1)
        else:
            dist.recv(whole, 0)

    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole, dist.ReduceOp.MAX),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_to_all": lambda: dist.all_to_all_single(received, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "send_recv": send_recv,
    }
    return calls[function]


def timed(call: Callable[[], Any], device: Any) -> dict[str, float]:
    """Median and quartiles of rounds, in seconds for one exchange."""
    import torch
    import torch.distributed as dist

    def round_s(times: int) -> float:
        dist.barrier()
        started = time.perf_counter()
        for _ in range(times):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        slowest = torch.tensor([time.perf_counter() - started], dtype=torch.float64, device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)  # a rank that only sends is done early
        return float(slowest.item()) / times

    once = min(round_s(1) for _ in range(WARM))
    times = int(min(max(ROUND_S / once, 1), MOST_IN_A_ROW))
    low, middle, high = statistics.quantiles([round_s(times) for _ in range(ROUNDS)], n=4)
    return {"runtime_s": middle, "runtime_q25_s": low, "runtime_q75_s": high}


def _say(rank: int, line: dict[str, Any]) -> None:
    """Print a line, from rank 0 alone."""
    if rank == 0:
        print(json_text(line), flush=True)


if __name__ == "__main__":
    main()
