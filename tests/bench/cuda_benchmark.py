"""CUDA kernels against torch's attention on one GPU: python cuda_benchmark.py libtrimtab_kernels_cuda_shared.so

Random data, median of `--runs` timings by CUDA events, both sides in the same process. Prints one line a figure.
"""
import argparse
import ctypes
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

I64, I32, F32, PTR = ctypes.c_int64, ctypes.c_int32, ctypes.c_float, ctypes.c_void_p
BF16, STABILIZED = 1, 2


class Tensor(ctypes.Structure):
    _fields_ = [("data", PTR), ("stride", I64 * 4)]


class Mask(ctypes.Structure):
    _fields_ = [("bottom_right", I32), ("left", I32), ("right", I32), ("cu_q", PTR), ("cu_k", PTR)]


class Attention(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("dtype", I32)]
    _fields_ += [(n, I64) for n in ("batch", "heads", "kv_heads", "queries", "keys", "head_dim")]
    _fields_ += [(n, F32) for n in ("scale", "softcap", "beta", "empty_lse")] + [("kind", PTR), ("mask", Mask)]
    _fields_ += [(n, Tensor) for n in ("q", "k", "v", "out", "out_low", "lse")]


class Probe(ctypes.Structure):
    _fields_ = [("attention", Attention), ("out", Tensor), ("grad_out", Tensor)]
    _fields_ += [(n, I64) for n in ("row_begin", "row_step", "batch_begin", "batch_step")]
    _fields_ += [("stats", PTR), ("step", PTR), ("period", ctypes.c_uint64), ("workspace", PTR)]


class Delta(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("dtype", I32)]
    _fields_ += [(n, I64) for n in ("batch", "heads", "rows", "columns")]
    _fields_ += [(n, Tensor) for n in ("out", "out_low", "grad_out", "result")] + [("max_entries", I32)]


class Spectral(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("dtype", I32), ("data", PTR)]
    _fields_ += [(n, I64) for n in ("rows", "columns", "row_stride", "slices")]
    _fields_ += [(n, PTR) for n in ("vector", "sigma", "residual", "workspace")]


def view(t):
    strides = list(t.stride()) + [1] * (4 - t.dim())
    return Tensor(t.data_ptr(), (I64 * 4)(*strides))


class Kernels:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.trimtab_kernel_error.restype = ctypes.c_char_p
        for name in ("probe_workspace", "spectral_workspace"):
            getattr(self.lib, "trimtab_cuda_" + name).restype = ctypes.c_size_t

    def call(self, name, arguments):
        stream = PTR(torch.cuda.current_stream().cuda_stream)
        if getattr(self.lib, "trimtab_cuda_" + name)(ctypes.byref(arguments), stream) != 0:
            raise RuntimeError(self.lib.trimtab_kernel_error().decode())

    def attention(self, q, k, v, causal):
        a = Attention(struct_size=ctypes.sizeof(Attention), dtype=BF16)
        a.batch, a.heads, a.queries, a.head_dim = q.shape
        a.kv_heads, a.keys = k.shape[1], k.shape[2]
        a.mask = Mask(0, -1, 0 if causal else -1, None, None)
        a.q, a.k, a.v = view(q), view(k), view(v)
        return a

    def forward(self, q, k, v, causal, kind=None):
        out, low = torch.empty_like(q), torch.empty_like(q)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        a = self.attention(q, k, v, causal)
        a.out, a.out_low, a.lse = view(out), view(low), view(lse)
        a.kind = None if kind is None else kind.data_ptr()
        a.keep = (q, k, v, out, low, lse, kind)  # the structure holds addresses only
        return (lambda: self.call("attention_forward", a)), out, low, lse

    def delta_step(self, out, low, grad):
        result = torch.empty_like(out)
        d = Delta(struct_size=ctypes.sizeof(Delta), dtype=BF16)
        d.batch, d.heads, d.rows, d.columns = out.shape
        d.out, d.out_low, d.grad_out, d.result = view(out), view(low), view(grad), view(result)
        d.keep = (out, low, grad, result)
        return (lambda: self.call("delta_preserving_step", d)), result


def median_ms(run, runs, graph=False):
    for _ in range(5):
        run()
    torch.cuda.synchronize()
    repeat = 1
    if graph:  # ten calls in a graph: launch overhead of the host is not the kernel's
        g, repeat = torch.cuda.CUDAGraph(), 10
        with torch.cuda.graph(g):
            for _ in range(repeat):
                run()
        run = g.replay
        run()
    times = []
    for _ in range(runs):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / repeat)
    return statistics.median(times)


def random(*shape, mean=0.0, sd=1.0):
    return (torch.randn(*shape, device="cuda") * sd + mean).to(torch.bfloat16)


def forwards(kernels, runs):
    shapes = [(2, 32, 8192, 128, True), (2, 32, 8192, 128, False), (16, 12, 1024, 64, True), (4, 32, 4096, 64, True),
              (4, 32, 4096, 64, False), (4, 32, 2048, 128, True), (1, 32, 16384, 128, True)]
    for b, h, s, d, causal in shapes:
        q, k, v = (random(b, h, s, d) for _ in range(3))
        flop = 4 * b * h * s * s * d * (0.5 if causal else 1)
        rate = {}
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            with sdpa_kernel(backend):
                rate[name] = flop / median_ms(
                    lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal), runs, True) / 1e9
        run, out, _, _ = kernels.forward(q, k, v, causal)
        rate["stabilized"] = flop / median_ms(run, runs, True) / 1e9
        kind = torch.zeros(1, dtype=torch.int32, device="cuda")
        rate["standard"] = flop / median_ms(kernels.forward(q, k, v, causal, kind)[0], runs, True) / 1e9
        error = (out - F.scaled_dot_product_attention(q, k, v, is_causal=causal)).abs().max().item()
        print(f"forward B{b} H{h} S{s} D{d} {'causal' if causal else 'full'}: TFLOP/s "
              + ", ".join(f"{n} {r:.0f}" for n, r in rate.items())
              + f"; stabilized/flash {rate['stabilized'] / rate['flash']:.2f}, /cuDNN "
              f"{rate['stabilized'] / rate['cudnn']:.2f}; largest difference {error:.2e}", flush=True)


def delta_steps(kernels, runs):
    source = torch.empty(1 << 29, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    copy_rate = 2 * source.numel() / median_ms(lambda: target.copy_(source), runs)
    print(f"copy: {copy_rate / 1e9:.2f} TB/s")
    for b, h, s, d in ((2, 32, 8192, 128), (16, 12, 4096, 64)):
        q, k, v = random(b, h, s, d), random(b, h, s, d), random(b, h, s, d, mean=-2, sd=0.2)
        run, out, low, _ = kernels.forward(q, k, v, True)
        run()
        step, _ = kernels.delta_step(out, low, random(b, h, s, d, mean=-1, sd=0.3))
        ms = median_ms(step, runs)
        ideal = 4 * out.numel() * 2 / copy_rate
        print(f"delta step B{b} H{h} S{s} D{d}: {ms * 1e3:.1f} us, {ms / ideal:.2f} x its bytes", flush=True)


def probe(kernels, runs):
    b, h, s, d = 16, 12, 1024, 64
    q, k, v = (random(b, h, s, d) for _ in range(3))
    forward = median_ms(kernels.forward(q, k, v, True)[0], runs, True)
    stats = torch.zeros(h * 136, dtype=torch.uint8, device="cuda")
    for name, step, batch_step, output in (("64 rows a head, one sequence", 16, b, False),
                                           ("64 rows a head, one sequence, with O and dO", 16, b, True),
                                           ("64 rows a head and sequence", 16, 1, False)):
        p = Probe(attention=kernels.attention(q, k, v, True))
        p.row_begin, p.row_step, p.batch_begin, p.batch_step = step - 1, step, 0, batch_step
        if output:
            p.out = p.grad_out = view(v)
        workspace = torch.zeros(kernels.lib.trimtab_cuda_probe_workspace(ctypes.byref(p)), dtype=torch.uint8, device="cuda")
        p.stats, p.workspace = stats.data_ptr(), workspace.data_ptr()
        ms = median_ms(lambda: kernels.call("attention_probe", p), runs, True)
        print(f"probe B16 H12 S1024 D64, {name}: {ms * 1e3:.1f} us, {100 * ms / forward:.1f} % of the stabilized forward "
              f"({forward * 1e3:.0f} us)", flush=True)


def spectral(kernels, runs):
    n = 4096
    w = random(n, n)
    s = Spectral(struct_size=ctypes.sizeof(Spectral), dtype=BF16, data=w.data_ptr(), rows=n, columns=n, row_stride=n, slices=1)
    size = kernels.lib.trimtab_cuda_spectral_workspace(I64(n), I64(n), I64(1))
    vector, sigma = torch.zeros(n, device="cuda"), torch.zeros(1, device="cuda")
    workspace = torch.zeros(size, dtype=torch.uint8, device="cuda")
    s.vector, s.sigma, s.workspace = vector.data_ptr(), sigma.data_ptr(), workspace.data_ptr()
    sink = torch.zeros(n * n // 2, device="cuda")
    rate = 2 * sink.numel() * 4 / median_ms(lambda: sink.add_(1), runs) / 1e9
    ms = median_ms(lambda: kernels.call("spectral_norm", s), runs, True)
    ideal = 2 * w.numel() * 2 / rate / 1e9
    print(f"power iteration 4096x4096 bf16: {ms * 1e3:.1f} us, {ms / ideal:.2f} x two reads at {rate:.2f} TB/s; sigma "
          f"{sigma.item():.2f} (2 sqrt n = {2 * n ** 0.5:.1f})", flush=True)


def gradients(kernels):
    b, h, s, d = 2, 8, 512, 64
    for name, make_v, make_g in (("biased", dict(mean=-2, sd=0.2), dict(mean=-1, sd=0.3)), ("random", {}, {})):
        q, k, v, g = random(b, h, s, d), random(b, h, s, d), random(b, h, s, d, **make_v), random(b, h, s, d, **make_g)
        wide = [x.double().requires_grad_() for x in (q, k, v)]
        exact = torch.softmax((wide[0] @ wide[1].transpose(-1, -2) / d ** 0.5).masked_fill(
            torch.ones(s, s, device="cuda").triu(1).bool(), -torch.inf), -1) @ wide[2]
        exact.backward(g.double())
        run, out, low, lse = kernels.forward(q, k, v, True)
        run()
        step, kept = kernels.delta_step(out, low, g)
        step()

        def errors(grads):
            return [((x.double() - w.grad).norm() / w.grad.norm()).item() for x, w in zip(grads, wide)]

        aten = torch.ops.aten
        f = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False)
        c = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True, False)

        def flash(o, l):
            return aten._scaled_dot_product_flash_attention_backward(
                g, q, k, v, o, l, f[2], f[3], f[4], f[5], 0.0, True, f[6], f[7])

        def cudnn(o, l):
            return aten._scaled_dot_product_cudnn_attention_backward(
                g, q, k, v, o, l, c[6], c[7], None, c[2], c[3], c[4], c[5], 0.0, True)

        for backend, run, native in (("flash", flash, f), ("cuDNN", cudnn, c)):
            e, n = errors(run(kept, lse.view_as(native[1]))), errors(run(native[0], native[1]))
            print(f"gradients, {name}, {backend} backward: dQ {n[0]:.2e} -> {e[0]:.2e} (1/{n[0] / e[0]:.1f}), "
                  f"dK {n[1]:.2e} -> {e[1]:.2e} (1/{n[1] / e[1]:.1f}), dV {n[2]:.2e} -> {e[2]:.2e}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--runs", type=int, default=30)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, median of {arguments.runs}")
    kernels = Kernels(arguments.library)
    for part in (forwards, delta_steps, probe, spectral):
        part(kernels, arguments.runs)
    gradients(kernels)


if __name__ == "__main__":
    main()
