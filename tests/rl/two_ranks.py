"""Run by torchrun in test_ppo.py: trains with a process group and writes a checkpoint and the reported numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from mechrl.rl.train import leave_ranks
from tests.rl.test_ppo import LOOKS_AGAIN, timeless, trainer

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run = trainer(group=dist.group.WORLD, reward=LOOKS_AGAIN)
    if (folder / "start.safetensors").exists():
        run.load(folder / "start.safetensors")
    rows = [timeless(row) for row in run.run()]
    run.save(folder / "end.safetensors")
    (folder / f"rows{run.rank}.json").write_text(json.dumps([rows, run.env.n, dist.get_world_size()]))
    leave_ranks(dist.group.WORLD)
