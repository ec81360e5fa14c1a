"""Finds the weights that make q, k, v and o of each attention layer, for spectral norms.

By name and shape. A weight is taken only when its shape agrees with the heads that the attention call had; a fused
weight only when its rows are known to be ordered q, k, v. Everything else is named in the coverage report.
"""

from __future__ import annotations

import dataclasses

from .hook import Hook
from .local import is_distributed

_SEPARATE = {
    "q": {"q", "q_proj", "query", "wq", "to_q", "q_lin", "q_linear", "query_proj", "linear_q", "w_q"},
    "k": {"k", "k_proj", "key", "wk", "to_k", "k_lin", "k_linear", "key_proj", "linear_k", "w_k"},
    "v": {"v", "v_proj", "value", "wv", "to_v", "v_lin", "v_linear", "value_proj", "linear_v", "w_v"},
    "o": {
        "o",
        "o_proj",
        "out_proj",
        "c_proj",
        "wo",
        "w_o",
        "proj",
        "dense",
        "out_lin",
        "to_out",
        "proj_out",
        "linear_proj",
        "output",
        "out",
    },
}
# Rows ordered q, k, v in whole blocks.
_FUSED = {"c_attn", "qkv", "wqkv", "in_proj", "qkv_proj", "to_qkv", "attn_qkv", "w_qkv", "in_proj_weight"}
# Rows interleaved by head or group, in ways that differ between models.
_FUSED_INTERLEAVED = {"query_key_value", "linear_qkv"}
_MODULES_SEARCHED_MAX = 64


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the attention call had."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def q_rows(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_rows(self) -> int:
        return self.kv_heads * self.head_dim


@dataclasses.dataclass(frozen=True)
class Projection:
    which: str  # q, k, v or o
    weight: object  # [rows of all, columns], a view when the module keeps it transposed
    row_begin: int
    rows: int
    heads: int


class ProjectionHook(Hook):
    name = "projections"

    def find(self) -> None:
        """Once, at the end of the first step, when the shapes of the attention calls are known. Never raises."""
        try:
            shapes = self._shapes()
            layers = self.hooks.layers
            for layer in layers.layers.values():
                modules = layer.modules()
                if modules:
                    self._set(layer.index, layer.name, modules, shapes.get(layer.index))
            root = layers.compiled_root() if layers.compiled_root else None
            if root is not None and not layers.layers:
                self._find_by_order(root, shapes)
        except Exception as error:
            self.fail(error)

    def _shapes(self) -> dict[int, Shape]:
        import json

        shapes = {}
        for layer in json.loads(self.session.ops.status()).get("layers", []):
            heads, size = int(layer.get("heads", 0)), int(layer.get("head_dim", 0))
            if heads and size:
                shapes[int(layer.get("index", 0))] = Shape(heads, int(layer.get("kv_heads", 0)) or heads, size)
        return shapes

    def _find_by_order(self, root, shapes: dict[int, Shape]) -> None:
        """Compiled models: modules that hold projections, in order of definition, if there are as many as layers."""
        report = self.session.report
        found = []
        for name, module in root.named_modules():
            shape = shapes.get(len(found))
            if shape and any(p.which == "q" for p in find_projections([module], shape, levels=1)[0]):
                found.append((name.replace("_orig_mod.", ""), module))
        if len(found) != len(shapes):
            report.note(
                f"projections: {len(shapes)} compiled layers, but {len(found)} attention modules found; not measured"
            )
            return
        report.note("layer names and projections of compiled code follow the order of definition")
        for index, (name, module) in enumerate(found):
            self.session._send_info({"layers": [{"index": index, "name": name}]})
            self._set(index, name, [module], shapes[index])

    def _set(self, index: int, name: str, modules: list, shape: Shape | None) -> None:
        if shape is None:
            return
        projections, notes = find_projections(modules, shape)
        for text in notes:
            self.session.report.note(f"projections of {name}: {text}")
        missing = [which for which in "qkvo" if which not in {p.which for p in projections}]
        if missing and not notes:
            self.session.report.note(f"projections of {name}: no weight found for {', '.join(missing)}")
        for p in projections:
            self.session.ops.set_projection(index, p.which, p.weight, p.row_begin, p.rows, p.heads)


def find_projections(modules: list, shape: Shape, levels: int = 2) -> tuple[list[Projection], list[str]]:
    """Projections of one layer, at most one each of q, k, v, o, and notes on weights that had to be left out.

    modules: from the one that calls attention outwards. The first that holds q or a fused weight is taken; o may lie
    one module further out. levels: how deep below a module its weights may lie.
    """
    notes: list[str] = []
    for position, module in enumerate(modules[:3]):
        found: dict[str, Projection] = {}
        for name, weight, problem in _matrices(module, levels):
            leaf = name.rsplit(".", 1)[-1].lower()
            if leaf.isdigit() and "." in name:  # to_out.0
                leaf = name.rsplit(".", 2)[-2].lower()
            known = leaf in _FUSED or leaf in _FUSED_INTERLEAVED or any(leaf in names for names in _SEPARATE.values())
            if not known:
                continue
            if problem:
                _add(notes, f"{name}: {problem}")
            elif leaf in _FUSED_INTERLEAVED:
                _add(notes, f"{name}: order of rows in the fused weight not known")
            else:
                _take(found, notes, name, leaf, weight, shape)
        if "q" in found:
            if "o" not in found:
                _take_output(found, modules[position + 1 : position + 2], shape)
            return list(found.values()), notes
        if notes:
            break
    return [], notes


def _take(found: dict, notes: list, name: str, leaf: str, weight, shape: Shape) -> None:
    rows, columns = weight.shape
    if leaf in _FUSED:
        if rows != shape.q_rows + 2 * shape.kv_rows:
            _add(notes, f"{name}: {rows} rows, {shape.q_rows} + 2 x {shape.kv_rows} expected")
            return
        found["q"] = Projection("q", weight, 0, shape.q_rows, shape.heads)
        found["k"] = Projection("k", weight, shape.q_rows, shape.kv_rows, shape.kv_heads)
        found["v"] = Projection("v", weight, shape.q_rows + shape.kv_rows, shape.kv_rows, shape.kv_heads)
        return
    for which, heads, expected in (
        ("q", shape.heads, shape.q_rows),
        ("k", shape.kv_heads, shape.kv_rows),
        ("v", shape.kv_heads, shape.kv_rows),
    ):
        if leaf in _SEPARATE[which] and which not in found:
            if rows == expected:
                found[which] = Projection(which, weight, 0, rows, heads)
            else:
                _add(notes, f"{name}: {rows} rows, {expected} expected")
            return
    if leaf in _SEPARATE["o"] and "o" not in found and columns == shape.q_rows:
        found["o"] = Projection("o", weight, 0, rows, shape.heads)


def _take_output(found: dict, outer: list, shape: Shape) -> None:
    for module in outer:
        for name, weight, problem in _matrices(module, 2):
            parts = name.lower().split(".")
            if (
                not problem
                and parts[-1] in _SEPARATE["o"]
                and weight.shape[1] == shape.q_rows
                and not ({"mlp", "ffn", "feed_forward", "intermediate"} & set(parts))
                and (len(parts) == 1 or "output" in parts or "out" in parts)
            ):
                found["o"] = Projection("o", weight, 0, weight.shape[0], shape.heads)
                return


def _matrices(module, levels: int):
    """(name, weight as [out, in], problem) of the linear maps at most `levels` below; problem is "" for usable ones."""
    fused = module._parameters.get("in_proj_weight")
    if fused is not None:
        yield "in_proj_weight", *_usable(fused, False)
    searched = 0
    for name, child in module.named_modules():
        if not name or name.count(".") >= levels:
            continue
        searched += 1
        if searched > _MODULES_SEARCHED_MAX:
            return
        weight = child._parameters.get("weight")
        if weight is None:
            if "parametrizations" in child._modules:
                yield name, None, "parametrized weight"
            continue
        distributed_or_matrix = weight.dim() == 2 or weight.numel() == 0 or is_distributed(weight)
        if distributed_or_matrix and "norm" not in type(child).__name__.lower():
            yield name, *_usable(weight, type(child).__name__ == "Conv1D")


def _usable(weight, transposed: bool):
    if is_distributed(weight):
        return None, "sharded weight (DTensor)"
    if hasattr(weight, "ds_id") or hasattr(weight, "_is_flat_param") or weight.numel() == 0 or weight.dim() != 2:
        return None, "sharded weight"
    if not weight.is_floating_point():
        return None, f"weight of type {weight.dtype}"
    weight = weight.detach()
    return (weight.t() if transposed else weight), ""


def _add(notes: list, text: str) -> None:
    if text not in notes and len(notes) < 8:
        notes.append(text)
