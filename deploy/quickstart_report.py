"""Progress, picture and result line of deploy/quickstart.sh. Needs the package trimtab on the path and nothing else."""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import subprocess
import sys
import time

from trimtab import loss_curve


def read_losses(path: str) -> list[tuple[int, float]]:
    """(step, loss) rows of a training log; a half-written last line is left out."""
    rows: list[tuple[int, float]] = []
    try:
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.reader(file):
                try:
                    rows.append((int(row[0]), float(row[1])))
                except (ValueError, IndexError):
                    continue
    except FileNotFoundError:
        pass
    return rows


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def watch(args: argparse.Namespace) -> int:
    names = [os.path.splitext(os.path.basename(path))[0] for path in args.log]
    tty = sys.stdout.isatty()
    shown = 0.0
    while True:
        running = any(alive(pid) for pid in args.pid)
        if not running or time.monotonic() - shown >= (1 if tty else 10):
            shown = time.monotonic()
            parts = []
            for name, path in zip(names, args.log):
                rows = read_losses(path)
                if rows:
                    recent = [loss for _, loss in rows[-20:]]
                    parts.append(f"{name}: step {rows[-1][0]}/{args.steps}, loss {sum(recent) / len(recent):.3f}")
                else:
                    parts.append(f"{name}: starting")
            line = "   ".join(parts)
            print(f"\r{line:<100}" if tty else line, end="" if tty else "\n", flush=True)
        if not running:
            if tty:
                print()
            return 0
        time.sleep(0.5)


def picture(curves: dict[str, list[tuple[int, float]]], marks: list[tuple[int, str]], width=72, height=14) -> str:
    """Both loss curves over the steps in plain characters; `marks` are drawn as columns."""
    smooth = {name: list(loss_curve.moving_means([loss for _, loss in rows])) for name, rows in curves.items()}
    finite = [loss for rows in smooth.values() for _, loss in rows if math.isfinite(loss)]
    if not finite:
        return "(no losses)"
    last = max(step for rows in smooth.values() for step, _ in rows)
    low, high = min(finite), min(max(finite), min(finite) + 2.0)
    grid = [[" "] * width for _ in range(height)]
    for step, symbol in marks:
        column = min(width - 1, step * width // (last + 1))
        for y in range(height):
            grid[y][column] = symbol
    for symbol, rows in zip("xo", smooth.values()):
        for step, loss in rows:
            if math.isfinite(loss):
                y = round((high - min(max(loss, low), high)) / (high - low or 1) * (height - 1))
                grid[y][min(width - 1, step * width // (last + 1))] = symbol
    lines = []
    for y, cells in enumerate(grid):
        value = high - (high - low) * y / (height - 1)
        lines.append(f"{value:7.2f} |{''.join(cells)}")
    lines.append(" " * 8 + "+" + "-" * width)
    lines.append(" " * 9 + f"0{'steps':^{width - 8}}{last:>7}")
    return "\n".join(lines)


def call(trimtab: str, server: str, *words: str):
    command = [trimtab, "--server", server, "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"quickstart: {' '.join(command)} failed: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]


def number(value) -> float:
    return float(value)  # proto3 JSON writes NaN and Infinity as strings


def max_logit(trimtab: str, server: str, run: str) -> float | None:
    values = []
    for document in call(trimtab, server, "series", run, "--metric", "max_attention_logit"):
        for point in document["points"]:
            values += [number(value) for value in point["block"].get("float32", [])]
    finite = [value for value in values if math.isfinite(value)]
    return max(finite) if finite else None


def in_words(result: dict, steps: int) -> str:
    exploded, alarm, switch = (result[name] for name in ("explosion_step_unprotected", "alarm_step", "switch_step"))
    if exploded is None:
        return f"No explosion within {steps} steps; with the default of 5000 steps there is one."
    text = f"Unprotected: the loss exploded at step {exploded}, ends at {result['final_loss_unprotected']:.3f}. "
    if alarm is not None:
        text += f"Alarm at step {alarm}, {exploded - alarm} steps before. "
    text += f"Protected: switched at step {switch}, " if switch is not None else "Protected: never switched, "
    after = result["explosion_step_protected"]
    text += "no explosion" if after is None else f"exploded at step {after}"
    return text + f", ends at {result['final_loss_protected']:.3f}."


def report(args: argparse.Namespace) -> int:
    runs = {name: f"{name}-seed{args.seed}" for name in ("unprotected", "protected")}
    curves = {name: read_losses(getattr(args, name)) for name in runs}
    losses = {name: [loss for _, loss in rows] for name, rows in curves.items()}
    # What only informs (a step that took longer than others, say) is no alarm.
    events = {
        name: [event for event in call(args.trimtab, args.server, "events", run)
               if not (event.get("kind") == "alert" and event.get("severity") == "SEVERITY_INFO")]
        for name, run in runs.items()
    }

    def first(name: str, kind: str) -> int | None:
        steps = [int(event.get("step", 0)) for event in events[name] if event.get("kind") == kind]
        return min(steps) if steps else None

    result = {
        "seed": args.seed,
        "explosion_step_unprotected": loss_curve.explosion_step(losses["unprotected"]),
        "explosion_step_protected": loss_curve.explosion_step(losses["protected"]),
        "alarm_step": first("unprotected", "alert"),
        "switch_step": first("protected", "switch_applied"),
        "final_loss_protected": loss_curve.final_loss(losses["protected"]),
        "final_loss_unprotected": loss_curve.final_loss(losses["unprotected"]),
        "max_logit_unprotected": max_logit(args.trimtab, args.server, runs["unprotected"]),
        "max_logit_protected": max_logit(args.trimtab, args.server, runs["protected"]),
    }
    marks = []
    if result["alarm_step"] is not None:
        marks.append((result["alarm_step"], "!"))
    if result["switch_step"] is not None:
        marks.append((result["switch_step"], "|"))
    print(picture(curves, marks))
    print("         x unprotected   o protected   ! alarm   | kernel switch\n")
    for name in runs:
        for event in events[name]:
            if event.get("kind") in ("alert", "switch_refused", "switch_applied"):
                print(f"  {name:<12} step {int(event.get('step', 0)):>5}  {event['kind']:<15} {event.get('message', '')}")
    print("\n" + in_words(result, len(losses["unprotected"])))
    with open(args.json, "w", encoding="utf-8") as file:
        file.write(json.dumps({key: round(value, 4) if isinstance(value, float) else value
                               for key, value in result.items()}) + "\n")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    watcher = commands.add_parser("watch", help="print progress until the processes end")
    watcher.add_argument("--steps", type=int, required=True)
    watcher.add_argument("--pid", type=int, action="append", required=True)
    watcher.add_argument("--log", action="append", required=True)
    watcher.set_defaults(run=watch)
    reporter = commands.add_parser("report", help="print the picture and write the result line")
    for flag in ("--trimtab", "--server", "--unprotected", "--protected", "--json"):
        reporter.add_argument(flag, required=True)
    reporter.add_argument("--seed", type=int, required=True)
    reporter.set_defaults(run=report)
    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
