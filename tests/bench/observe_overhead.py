"""Step time of a training job with and without `trimtab run`, paired.

    python tests/bench/observe_overhead.py [--pairs 5] [--shape example|large|both] [--json FILE]

Each pair runs the example job plain and under `trimtab run` in observe mode, with a courier and a trimtabd on the same
machine, in turns (plain first, then last), and compares the median time between two optimizer steps, warm-up left out.
Needs a built tree ($TRIMTAB_BUILD_DIR, default build/*) and a Python with torch. The machine must have nothing else to do.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jobs import EXAMPLES, binary, job_environment  # noqa: E402
from trimtabd import Server  # noqa: E402

SHAPES = {
    # name: (in words, flags of train_gpt.py, steps, steps of warm-up)
    "example": ("2 layers, width 32, 4 heads, context 64, batch 16, 1 thread", [], 1500, 500),
    "large": (
        "4 layers, width 256, 4 heads, context 256, batch 8, 2 threads",
        ["--layers", 4, "--width", 256, "--heads", 4, "--context", 256, "--batch", 8, "--threads", 2],
        120,
        30,
    ),
}

# Times between optimizer steps, taken by the job itself and written at its end.
TIMED = """
import json, sys, time
sys.path.insert(0, {examples!r})
import torch, train_gpt
times = []
step = torch.optim.AdamW.step
def timed(self, *args, **kwargs):
    times.append(time.perf_counter())
    return step(self, *args, **kwargs)
torch.optim.AdamW.step = timed
train_gpt.main()
json.dump(times, open({times!r}, "w"))
"""


def step_times(folder, flags, steps, prefix):
    file = folder / "times.json"
    job = [sys.executable, "-c", TIMED.format(examples=str(EXAMPLES), times=str(file)), "--steps", steps, *flags]
    done = subprocess.run(
        [str(word) for word in [*prefix, *job]],
        env=job_environment(TRIMTAB_COURIER=binary("trimtab-courier")),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    times = json.loads(file.read_text())
    return [later - earlier for earlier, later in zip(times, times[1:])]


def measure(name, pairs, folder, server):
    about, flags, steps, warm_up = SHAPES[name]
    plain, watched, ratios = [], [], []
    for pair in range(pairs):
        prefix = [sys.executable, "-m", "trimtab", "run", "--server", server.address, "--run", f"{name}-{pair}", "--"]
        order = (False, True) if pair % 2 == 0 else (True, False)
        median = {}
        for under_trimtab in order:
            times = step_times(folder, flags, steps, prefix if under_trimtab else [])[warm_up:]
            median[under_trimtab] = statistics.median(times)
            mean = statistics.fmean(times)
            (watched if under_trimtab else plain).append((median[under_trimtab], mean))
        ratios.append(median[True] / median[False])
        print(f"{name} pair {pair + 1}/{pairs}: {median[False] * 1e3:.2f} ms plain, ratio {ratios[-1]:.4f}", flush=True)
    return {
        "shape": about,
        "pairs": pairs,
        "plain_step_seconds": statistics.median(m for m, _ in plain),
        "ratio_of_medians": statistics.median(ratios),
        "ratio_of_medians_min": min(ratios),
        "ratio_of_medians_max": max(ratios),
        "ratio_of_means": statistics.median(w[1] / p[1] for w, p in zip(watched, plain)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--shape", choices=[*SHAPES, "both"], default="both")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        server = Server(folder / "server")
        try:
            names = SHAPES if args.shape == "both" else [args.shape]
            results = {name: measure(name, args.pairs, folder, server) for name in names}
        finally:
            server.stop()
    print(json.dumps(results, indent=2))
    if args.json:
        Path(args.json).write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
