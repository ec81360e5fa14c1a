"""Host cost of the hooks: nanoseconds a call added to the smallest attention call, and microseconds a step boundary.

    PYTHONPATH=agent/python python tests/unit/agent/torch/measure_hook_cost.py

Not a test: it prints, it does not judge. CPU time of the calling thread, medians of paired repetitions, so that a busy machine shifts both sides.
"""

import json
import statistics
import tempfile
import time

import torch

from trimtab import _build

CALLS, REPEATS = 2000, 25
SDPA = torch.nn.functional.scaled_dot_product_attention
FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def nanoseconds(body):
    begin = time.thread_time_ns()
    for _ in range(CALLS):
        body()
    return (time.thread_time_ns() - begin) / CALLS


def main():
    torch.set_num_threads(1)
    torch.ops.load_library(str(_build.library()))
    ops = torch.ops.trimtab
    q = torch.randn(1, 1, 4, 8, requires_grad=True)
    out, lse = (t.detach() for t in FORWARD(q, q, q))
    upstream = torch.ones_like(out)
    plain = q.detach()
    cases = {
        # Through the composite operator, as jobs call it: boxing and unboxing are part of the cost.
        "forward, no gradient": lambda: SDPA(plain, plain, plain),
        # A training forward: recorded, never finished.
        "forward, training": lambda: SDPA(q, q, q),
        "backward": lambda: BACKWARD(upstream, plain, plain, plain, out, lse, 0.0, False),
    }
    modes = {"native (idle)": dict(mode="native"), "observe, step not sampled": dict(mode="observe")}
    print(f"torch {torch.__version__}, {REPEATS} pairs of {CALLS} calls")
    for name, body in cases.items():
        for title, options in modes.items():
            added = []
            for _ in range(REPEATS):
                base = nanoseconds(body)
                with tempfile.TemporaryDirectory() as folder:
                    answer = json.loads(ops.start(json.dumps(
                        dict(run="cost", ring_dir=folder, sample_every_steps=1 << 20, **options))))
                    assert answer["ok"], answer
                    ops.observe_loss(torch.ones(()), 1.0)
                    ops.step_boundary("first")  # the first step is sampled, the next is not
                    added.append(nanoseconds(body) - base)
                    ops.stop()
            print(f"{name:22} {title:28} +{statistics.median(added):7.0f} ns a call")
    with tempfile.TemporaryDirectory() as folder:
        for layers, heads in ((2, 4), (12, 12), (48, 32)):
            assert json.loads(ops.start(json.dumps(dict(run="cost", ring_dir=folder))))["ok"]
            x = torch.randn(1, heads, 4, 8, requires_grad=True)
            times = []
            for _ in range(50):
                for layer in range(layers):
                    ops.enter_layer(layer)
                    FORWARD(x, x, x)[0].sum().backward()
                begin = time.thread_time_ns()
                ops.step_boundary("measure")
                times.append((time.thread_time_ns() - begin) / 1000)
            ops.stop()
            print(f"sampled step boundary, {layers} layers x {heads} heads: {statistics.median(times):.0f} us")


if __name__ == "__main__":
    main()
