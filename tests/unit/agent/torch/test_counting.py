"""Which calls count, and which layer they belong to."""

import threading

import pytest
import torch

import models
from conftest import MODES


def rows(step):
    return (step["attention_rows"] + step["attention_trivial_rows"]).tolist()


@pytest.mark.parametrize("mode, storage", [("observe", ""), ("observe", "e5m2"), ("stabilized", "e5m2"), ("stabilized", "")])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_counts_once(shim, reentrant, mode, storage):
    options = dict(mode=mode, emulate_storage=storage, probe_rows=1024)
    shim.start(**options)
    plain = models.train(models.Model(), 3, shim=shim)
    expected = shim.steps()
    shim.stop()
    shim.ring().unlink()
    shim.start(**options)
    losses = models.train(models.Model(reentrant=reentrant), 3, shim=shim)
    steps = shim.steps()
    assert losses == plain
    assert shim.coverage()["calls_recomputed"] == 6 and shim.coverage()["calls_hooked"] == 6
    assert shim.passed() == {} and shim.coverage()["errors"] == [] and shim.coverage()["notes"] == (
        [f"fault injector: attention is computed with P, V and O stored as {storage}"] if storage else [])
    for want, got in zip(expected, steps, strict=True):
        assert got["attention_calls"] == 2
        for metric in ("max_attention_logit", "attention_rows", "attention_entropy", "delta_residual_rows"):
            assert torch.equal(want[metric], got[metric]), metric


def test_checkpointed_pair_of_layers_keeps_their_order(shim):
    # One checkpoint over two layers: the recomputation runs forward, the backward runs back.
    def run(checkpointed):
        model = models.Model(layers=4)
        if checkpointed:
            pairs = [torch.nn.Sequential(*model.blocks[:2]), torch.nn.Sequential(*model.blocks[2:])]
            model.forward = lambda x: [x := torch.utils.checkpoint.checkpoint(p, x, use_reentrant=False) for p in pairs][-1]
        shim.start(emulate_storage="fp32")
        shim.ops.set_modes([MODES["observe"]] * 4)
        models.train(model, 2, shim=shim)
        steps = shim.steps()
        shim.stop()
        shim.ring().unlink()
        return steps

    for want, got in zip(run(False), run(True), strict=True):
        assert torch.equal(want["max_attention_logit"], got["max_attention_logit"])
        assert len(set(want["max_attention_logit"].flatten().tolist())) == 16  # layers tell apart


def test_gradient_accumulation_adds_up(shim):
    shim.start(emulate_storage="fp32")
    losses = models.train(models.Model(), 2, micro_batches=3, shim=shim)
    first, second = shim.steps()
    for step, mean in ((first, sum(losses[:3]) / 3), (second, sum(losses[3:]) / 3)):
        assert step["attention_calls"] == 6
        assert rows(step) == [[3 * models.BATCH * models.LENGTH] * models.HEADS] * 2
        assert step["loss"] == pytest.approx(mean, rel=1e-6)


def test_evaluation_is_ignored(shim):
    model = models.Model()
    shim.start(emulate_storage="e5m2")

    def evaluate(_step):
        with torch.no_grad():
            model(models.batch(99))
        with torch.inference_mode():
            model(models.batch(98))
        model(models.batch(97))  # grad mode on, but nobody calls backward

    models.train(model, 4, shim=shim, before_step=evaluate)
    for step in shim.steps():
        assert step["attention_calls"] == 2 and step["max_attention_logit"].shape == (2, 4)
        assert rows(step) == [[models.BATCH * models.LENGTH] * models.HEADS] * 2
    passed = shim.passed()
    assert passed["grad mode off"] == 8 and passed["inference mode"] == 8
    assert passed["no backward came"] >= 4  # dropped a step later


def test_evaluation_runs_the_original_kernel(shim):
    model = models.Model()
    with torch.no_grad():
        plain = model(models.batch(5))
        shim.start(emulate_storage="e5m2")
        assert torch.equal(model(models.batch(5)), plain)
    assert not torch.equal(model(models.batch(5).requires_grad_()), plain)


def test_frozen_attention_is_passed_by(shim):
    model = models.Model().requires_grad_(False)
    head = torch.nn.Linear(models.WIDTH, models.WIDTH)
    shim.start()
    head(model(models.batch(1))).sum().backward()
    shim.ops.step_boundary("test")
    assert shim.passed() == {"no gradient needed": 2}


@pytest.mark.parametrize("named", [False, True])
def test_two_models_keep_their_layers(shim, named):
    # The second model has another head count, so that call order alone tells them apart.
    first, second = models.Model(seed=1), models.Model(seed=2, heads=2)
    if named:
        for i, block in enumerate([*first.blocks, *second.blocks]):
            block.register_forward_pre_hook(lambda *_, i=i: shim.ops.enter_layer(i))
            block.register_forward_hook(lambda *_: shim.ops.enter_layer(-1))
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 1e-2)
    shim.start(emulate_storage="fp32")
    for step in range(3):
        x = models.batch(step).requires_grad_()
        # interleaved: both forwards, then one backward
        (first(x).square().mean() + second(x).square().mean()).backward()
        optimizer.step()
    for step in shim.steps():
        assert step["attention_calls"] == 4
        assert rows(step) == [[32] * 4] * 2 + [[32, 32, 0, 0]] * 2
    layers = shim.status()["layers"]
    assert [layer["heads"] for layer in layers] == [4, 4, 2, 2]
    assert shim.status()["layer_order_changes"] == 0


def test_one_step_of_two_optimizers(shim):
    model = models.Model()
    optimizers = [torch.optim.SGD(block.parameters(), 1e-2) for block in model.blocks]
    shim.start()
    for step in range(3):
        models.loss_of(model, models.batch(step)).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert [step["step"] for step in shim.steps()] == [1, 2, 3]


def test_backward_after_another_models_step(shim):
    # As in a GAN: the generator's forward is older than the step of the discriminator.
    generator, critic = models.Model(seed=1), models.Model(seed=2, heads=2)
    g_step, c_step = (torch.optim.SGD(m.parameters(), 1e-3) for m in (generator, critic))
    shim.start(emulate_storage="fp32")
    for step in range(3):
        fake = generator(models.batch(step).requires_grad_())
        critic(fake.detach().requires_grad_()).mean().backward()
        c_step.step()
        critic(fake).mean().backward()
        g_step.step()
    steps = shim.steps()
    assert [step["attention_calls"] for step in steps] == [2, 4] * 3
    assert shim.passed() == {}


def test_the_second_backward_over_a_graph_is_not_counted_again(shim):
    model = models.Model()
    shim.start(emulate_storage="fp32")
    loss = models.loss_of(model, models.batch(0))
    loss.backward(retain_graph=True)
    loss.backward()
    shim.ops.step_boundary("test")
    (step,) = shim.steps()
    assert step["attention_calls"] == 2 and rows(step) == [[32] * 4] * 2


def test_layers_beyond_the_limit_are_counted(shim):
    model = models.Model(layers=1)
    shim.start()
    shim.ops.enter_layer(5000)
    models.loss_of(model, models.batch(0)).backward()
    shim.ops.step_boundary("test")
    assert shim.passed() == {"more than 1024 layers": 1}


def test_varying_lengths_are_the_same_layers(shim):
    model = models.Model()
    shim.start()
    for length in (16, 9, 12):
        x = torch.randn(2, length, models.WIDTH, requires_grad=True)
        model(x).sum().backward()
        shim.ops.step_boundary("test")
    assert len(shim.status()["layers"]) == 2


def test_unsupported_dtype_passes_by(shim):
    x = torch.randn(2, 4, 8, 8, dtype=torch.float64, requires_grad=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    (plain,) = torch.autograd.grad(attend(x, x, x).sum(), x)
    shim.start(mode="stabilized")
    (hooked,) = torch.autograd.grad(attend(x, x, x).sum(), x)
    assert torch.equal(plain, hooked)
    assert shim.passed() == {"dtype other than float32, bfloat16, float16": 2}  # forward and backward
    assert shim.coverage()["errors"] == []


def test_errors_of_the_original_pass_through(shim):
    # The CPU kernel refuses dropout; that is the job's error, not ours.
    q = torch.randn(2, 4, 8, 8, requires_grad=True)
    shim.start(mode="stabilized")
    with pytest.raises(RuntimeError, match="dropout"):
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.5)
    assert shim.coverage()["errors"] == []
    torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
    assert shim.coverage()["calls_hooked"] == 0  # counted when the step closes
    shim.ops.step_boundary("test")
    assert shim.coverage()["calls_hooked"] == 1


def test_threads_that_train_at_once(shim):
    # Two models on two threads, each naming its layers: no call is lost, none goes to the other's layers.
    shim.start(emulate_storage="fp32")
    failures = []

    def work(first):
        try:
            model = models.Model(seed=first)
            for i, block in enumerate(model.blocks):
                block.register_forward_pre_hook(lambda *_, i=i: shim.ops.enter_layer(first + i))
                block.register_forward_hook(lambda *_: shim.ops.enter_layer(-1))
            for step in range(50):
                models.loss_of(model, models.batch(step)).backward()
        except BaseException as error:  # shown by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    shim.ops.step_boundary("test")
    (step,) = shim.steps()
    assert step["attention_calls"] == 2 * 2 * 50
    assert rows(step) == [[50 * models.BATCH * models.LENGTH] * models.HEADS] * 4
    assert shim.passed() == {} and shim.coverage()["errors"] == []
