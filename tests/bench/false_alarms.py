"""Alarms of runs that have nothing wrong with them: the example job in plain FP32, and stabilized from the start.

    python tests/bench/false_alarms.py [--seeds 5] [--steps 5000] [--json FILE]

Each run obeys commands (`--act`) and is watched by a trimtabd with the default policy; one run at a time. Needs a built
tree ($TRIMTAB_BUILD_DIR, default build/*) and a Python with torch. `step_time_slow` is true when other work takes the
cores, so the machine must have nothing else to do. Ends with 1 when anything was alarmed or switched.
"""

import argparse
import collections
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jobs import EXAMPLES  # noqa: E402
from trimtabd import Jobs, Server  # noqa: E402

KINDS = {
    "fp32": [],
    "stabilized": ["--mode", "stabilized", "--emulate-storage", "e5m2"],
}


def watch(server, jobs, folder, kind, seed, steps):
    name, log = f"{kind}-seed{seed}", folder / f"{kind}-seed{seed}.csv"
    job = jobs(
        name,
        [sys.executable, EXAMPLES / "train_gpt.py", "--seed", seed, "--steps", steps, "--log", log],
        "--act",
        *KINDS[kind],
    )
    if job.wait() != 0:
        raise SystemExit(jobs.output(name))
    (answer,) = server.cli("plans", name, "--json")
    alerts = collections.Counter(
        event.get("detector", "?") for event in server.cli("events", name, "--json") if event["kind"] == "alert"
    )
    logits = server.series(name, "max_attention_logit")
    return {
        "run": name,
        "steps": server.steps(name),
        "alerts": dict(alerts),
        "switches": len(answer.get("plans", [])),
        "max_attention_logit": max(value for values in logits.values() for value in values),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "server")
        jobs = Jobs(server, Path(folder))
        try:
            for seed in range(arguments.seeds):
                for kind in KINDS:
                    results.append(watch(server, jobs, Path(folder), kind, seed, arguments.steps))
                    print(json.dumps(results[-1]), flush=True)
        finally:
            jobs.stop()
            server.stop()
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    sys.exit(any(result["alerts"] or result["switches"] for result in results))


if __name__ == "__main__":
    main()
