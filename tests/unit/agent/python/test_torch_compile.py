"""torch.compile and the hooks: nothing of ours is traced, breaks a graph or causes a recompilation."""

import pytest
import torch
import torch._dynamo
import trimtab
from hook_models import Model, tokens, train
from torch._dynamo.utils import counters


@pytest.fixture
def counted():
    """Fresh Dynamo state; counted() -> (unique graphs, graph breaks, recompilations by reason)."""
    torch._dynamo.reset()
    counters.clear()
    yield lambda: (
        counters["stats"]["unique_graphs"],
        dict(counters["graph_break"]),
        dict(counters["recompile_reasons"]),
    )
    torch._dynamo.reset()


@pytest.fixture
def attach(shim, tmp_path):
    def run(**options):
        assert trimtab.attach(
            run="compile", ring_dir=str(tmp_path / "rings"), sample_every=1, overhead_budget=1.0, **options
        )

    yield run
    trimtab.detach()


def compiled_training(steps=6, seed=7):
    torch.manual_seed(seed)
    model = Model()
    losses, _ = train(model, steps, forward=torch.compile(model, backend="aot_eager"))
    return losses


def test_graphs_breaks_and_recompilations_are_those_without_trimtab(counted, attach):
    losses = compiled_training()
    plain = counted()
    torch._dynamo.reset()
    counters.clear()
    attach()
    assert compiled_training() == losses
    assert counted() == plain
    assert plain[0] == 1 and plain[1] == {}


def test_a_model_watched_in_eager_first_compiles_without_breaks(counted, attach):
    """Module hooks are in place when Dynamo comes: they leave nothing in the graph."""
    attach()
    torch.manual_seed(8)
    model = Model()
    train(model, 3)
    assert any(module._forward_pre_hooks for module in model.modules())
    train(model, 4, forward=torch.compile(model, backend="aot_eager", fullgraph=True))
    assert counted()[0] == 1 and counted()[1] == {}


def test_a_compiled_model_survives_attach_and_detach_without_recompiling(counted, attach):
    torch.manual_seed(9)
    model = Model()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, 3, optimizer, forward=compiled)
    graphs = counted()[0]
    attach()
    train(model, 3, optimizer, forward=compiled)
    trimtab.detach()
    train(model, 3, optimizer, forward=compiled)
    assert counted()[0] == graphs


def test_compiled_layers_get_names_and_projections_from_the_definition(counted, attach, tmp_path, read_rings):
    attach()
    compiled_training()
    trimtab.detach()
    (ring,) = read_rings(tmp_path / "rings")
    assert ring.layer_names == ["blocks.0.attention", "blocks.1.attention"]
    assert len(ring.values("spectral_norm_q")[-1]) == 2
    assert any("order of definition" in note for note in ring.coverage["notes"])
    assert ring.values("activation_abs_max") == []


def test_a_compiled_optimizer_step_still_ends_the_step(counted, attach, tmp_path, read_rings):
    attach()
    torch.manual_seed(10)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="aot_eager")
    losses = []
    for index in range(5):
        loss = model(tokens(index))
        loss.backward()
        step()
        optimizer.zero_grad()
        losses.append(loss.item())
    trimtab.detach()
    (ring,) = read_rings(tmp_path / "rings")
    assert ring.values("loss") == pytest.approx(losses, rel=1e-6)
