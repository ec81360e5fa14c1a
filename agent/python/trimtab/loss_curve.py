"""When a loss curve exploded, by one definition for tests, examples and documents.

Explosion: the mean loss of 20 steps stays more than 0.5 above its own running minimum for 100 steps in a row. Its step
is the first of those 100. A mean that is not finite counts as above.

    python -m trimtab.loss_curve loss.csv      # {"steps": …, "explosion_step": …, "best_loss": …, "final_loss": …}
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import deque

MEAN_STEPS = 20
RISE = 0.5
HOLD_STEPS = 100
FINAL_STEPS = 200


def explosion_step(
    losses, mean_steps: int = MEAN_STEPS, rise: float = RISE, hold_steps: int = HOLD_STEPS
) -> int | None:
    """First step, counted from 1, of the explosion in a sequence of losses of steps 1, 2, …; None: there is none."""
    minimum, began, held = math.inf, None, 0
    for step, mean in moving_means(losses, mean_steps):
        if math.isfinite(mean) and mean <= minimum + rise:
            minimum, held = min(minimum, mean), 0
            continue
        if not held:
            began = step
        held += 1
        if held >= hold_steps:
            return began
    return None


def moving_means(losses, window: int = MEAN_STEPS):
    """(step, mean of the last `window` losses) from the first full window on."""
    recent: deque = deque(maxlen=window)
    for step, loss in enumerate(losses, 1):
        recent.append(loss)
        if len(recent) == window:
            yield step, sum(recent) / window


def final_loss(losses, steps: int = FINAL_STEPS) -> float:
    """Mean of the last `steps` losses."""
    tail = losses[-steps:]
    return sum(tail) / len(tail) if tail else math.nan


def read_csv(path) -> list[float]:
    """Losses of a file with the columns step and loss, ascending from step 1. Raises ValueError with the line."""
    losses = []
    with open(path, newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                step, loss = int(row["step"]), float(row["loss"])
            except (KeyError, TypeError, ValueError):
                raise ValueError(f"{path}:{number}: not step,loss: {row}") from None
            if step != len(losses) + 1:
                raise ValueError(f"{path}:{number}: step {step} where {len(losses) + 1} is due")
            losses.append(loss)
    return losses


def summary(losses) -> dict:
    means = [mean for _, mean in moving_means(losses)]
    return {
        "steps": len(losses),
        "explosion_step": explosion_step(losses),
        "best_loss": min((mean for mean in means if math.isfinite(mean)), default=None),
        "final_loss": final_loss(losses),
    }


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m trimtab.loss_curve loss.csv", file=sys.stderr)
        return 2
    try:
        print(json.dumps(summary(read_csv(sys.argv[1]))))
    except (OSError, ValueError) as error:
        print(f"trimtab.loss_curve: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
