"""Which attention layer a call belongs to, in eager models.

The C++ hook asks `trimtab::discover_layer` during the first steps, from inside the attention call, on the training
thread. Here the Python frames of that call are walked: they hold the modules that lead to it. From then on a light
forward pre-hook on exactly those modules says which layer comes; a module that attends several times in a forward
(shared weights) is one layer. Nothing that torch.compile traces or guards on is
touched: compiled code is told apart by call order.
"""

from __future__ import annotations

import dataclasses
import sys
import weakref

from .hook import Hook
from .inert import InertWhenCopied

UNKNOWN = -1
STOP_ASKING = -2
STEPS_OF_DISCOVERY = 2
LAYERS_MAX = 1024  # TRIMTAB_MAX_LAYERS
FRAMES_MAX = 400

# Files that only compiled code runs through. Not torch/_dynamo: eager checkpointing passes its wrappers as well.
_COMPILED_PATHS = ("/torch/_inductor/", "/torch/_functorch/", "torchinductor_", "<eval_with_key>")
# Wrappers that give their inner module's names another prefix.
_NAME_PREFIXES = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")


@dataclasses.dataclass
class Layer:
    index: int
    name: str
    chain: list  # weak references to the modules from the one that calls attention out to the root

    def modules(self) -> list:
        """The modules still alive, innermost first; empty when any is gone."""
        alive = [reference() for reference in self.chain]
        return [] if any(module is None for module in alive) else alive


class LayerHook(Hook):
    name = "layers"

    def __init__(self, hooks):
        super().__init__(hooks)
        self.layers: dict[int, Layer] = {}  # by id of the module that calls attention
        self.compiled_root = None  # weak reference to a model that runs compiled, when one was met
        self.wrappers: set[str] = set()  # "fsdp" when such a wrapper encloses a layer
        self._steps = 0
        self._unknown = 0

    def install(self) -> None:
        import torch

        self._module_class = torch.nn.Module
        _register_operator(torch)
        _asked.append(self)
        self.undo(lambda: _asked.remove(self))

    def remove(self) -> None:
        super().remove()
        self.layers.clear()

    def after_boundary(self) -> None:
        """Called when a step has just been closed: from the first one on the shapes of its calls are known."""
        self._steps += 1
        if self._steps == 1:
            self.hooks.projections.find()

    def discover(self, call: int) -> int:
        """Layer of the attention call that is running, UNKNOWN or STOP_ASKING. Never raises."""
        if not self.enabled or self._steps >= STEPS_OF_DISCOVERY:
            return STOP_ASKING
        try:
            return self._layer_of_this_call(sys._getframe(1))
        except Exception as error:
            self.fail(error)
            return STOP_ASKING

    def _layer_of_this_call(self, frame) -> int:
        chain, compiled = self._calling_modules(frame)
        if compiled or not chain:
            self._unknown += 1
            if compiled:
                if chain:
                    self.compiled_root = weakref.ref(chain[-1])
                self.session.report.note(
                    "layers of compiled code are told apart by call order; activations: not measured there"
                )
            return UNKNOWN
        caller = chain[0]
        known = self.layers.get(id(caller))
        if known is not None:
            return known.index
        index = len(self.layers) + self._unknown
        if index >= LAYERS_MAX:
            self.session.report.note(f"layers beyond {LAYERS_MAX} are not told apart")
            return UNKNOWN
        layer = Layer(index, _path_of(caller, chain[-1]) or f"attention.{index}", [weakref.ref(m) for m in chain])
        self.layers[id(caller)] = layer
        self.wrappers |= {"fsdp" for module in chain if "FullyShardedDataParallel" in type(module).__name__}
        self._watch(layer, chain)
        self.session._send_info({"layers": [{"index": index, "name": layer.name}]})
        return index

    def _calling_modules(self, frame):
        """The distinct modules whose methods, or functions that take one first, are being run: innermost first. The
        second value tells that compiled code lies between the call and the first of them."""
        chain, compiled = [], False
        for _ in range(FRAMES_MAX):
            if frame is None:
                break
            code = frame.f_code
            if any(part in code.co_filename for part in _COMPILED_PATHS):
                compiled = compiled or not chain
            elif code.co_argcount:
                owner = frame.f_locals.get(code.co_varnames[0])
                if isinstance(owner, self._module_class) and not (chain and chain[-1] is owner):
                    chain.append(owner)
            frame = frame.f_back
        return chain, compiled

    def _watch(self, layer: Layer, chain: list) -> None:
        caller = chain[0]
        if type(caller).__module__.startswith("torch.nn.modules"):
            # PyTorch's own attention modules leave their fast path in evaluation when they carry hooks.
            self.session.report.note(
                f"{type(caller).__name__}: layers are told apart by call order; activations: not measured"
            )
            return
        self.undo(caller.register_forward_pre_hook(_EnterLayer(self, layer.index)).remove)
        self.undo(caller.register_forward_hook(_LeaveLayer(self)).remove)
        block = _block_of(chain)
        if block is None:
            self.session.report.note(f"activations: {layer.name} has no block around it; not measured")
        else:
            self.hooks.activations.watch(block, layer.index)


# The hook that answers, at most one. The operator itself stays for the life of the process: C++ keeps a handle of it.
_asked: list[LayerHook] = []
_library = None


def _register_operator(torch) -> None:
    global _library
    if _library is None:
        library = torch.library.Library("trimtab", "FRAGMENT")
        library.define("discover_layer(int call) -> int")
        library.impl(
            "discover_layer",
            lambda call: _asked[-1].discover(call) if _asked else STOP_ASKING,
            "CompositeExplicitAutograd",
        )
        _library = library


class _EnterLayer(InertWhenCopied):
    def __init__(self, hook: LayerHook, index: int):
        import torch

        self._hook, self._index = hook, index
        self._enter, self._is_compiling = torch.ops.trimtab.enter_layer.default, torch.compiler.is_compiling

    def __call__(self, module, args):
        if not self._is_compiling() and self._hook.enabled:
            try:
                self._enter(self._index)
            except Exception as error:
                self._hook.fail(error)


class _LeaveLayer(InertWhenCopied):
    def __init__(self, hook: LayerHook):
        import torch

        self._hook = hook
        self._enter, self._is_compiling = torch.ops.trimtab.enter_layer.default, torch.compiler.is_compiling

    def __call__(self, module, args, output):
        if not self._is_compiling() and self._hook.enabled:
            try:
                self._enter(UNKNOWN)
            except Exception as error:
                self._hook.fail(error)


def _path_of(module, root) -> str | None:
    for name, candidate in root.named_modules():
        if candidate is module:
            return ".".join(part for part in name.split(".") if part not in _NAME_PREFIXES)
    return None


def _block_of(chain: list):
    """The innermost module around the caller that is neither the root nor a bare wrapper of it. None: there is none."""
    for module in chain[1:-1]:
        children = sum(1 for _ in module.children())
        if children > 1 and not type(module).__module__.startswith("torch.nn.modules"):
            return module
    return None
