"""`trimtab run` around real jobs, unmodified: what their rings hold, and that their losses do not change by a bit."""

import csv
import sys

import pytest
from jobs import EXAMPLES

STEPS = 200
GPT = EXAMPLES / "train_gpt.py"


def losses(path):
    with open(path, newline="") as file:
        return [row["loss"] for row in csv.DictReader(file)]


def torchrun(ranks, *command):
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        ranks,
        "--master-port",
        29600 + ranks,
        *command,
    ]


COMMANDS = {
    "eager": lambda log: [sys.executable, GPT, "--steps", STEPS, "--log", log],
    "compiled": lambda log: [sys.executable, GPT, "--steps", STEPS, "--log", log, "--compile"],
    "checkpointed": lambda log: [sys.executable, GPT, "--steps", STEPS, "--log", log, "--checkpoint-activations"],
    "two ranks": lambda log: torchrun(2, GPT, "--steps", STEPS, "--csv", log),
    "two ranks compiled": lambda log: torchrun(2, GPT, "--steps", STEPS, "--csv", log, "--compile"),
}


@pytest.fixture(scope="module")
def watched(shim, tmp_path_factory, read_rings):
    """watched(name) -> (losses without trimtab, losses with it, rings, output), each job run once."""
    import subprocess

    from jobs import job_environment

    done = {}

    def run(name):
        if name not in done:
            folder = tmp_path_factory.mktemp(name.replace(" ", "_"))
            plain = subprocess.run(
                [str(word) for word in COMMANDS[name](folder / "plain.csv")],
                env=job_environment(),
                capture_output=True,
                text=True,
                cwd=folder,
                timeout=900,
            )
            assert plain.returncode == 0, plain.stderr
            command = [
                sys.executable,
                "-m",
                "trimtab",
                "run",
                "--no-courier",
                "--ring-dir",
                str(folder / "rings"),
                "--run",
                name,
                "--sample-every",
                "3",
                "--",
                *[str(word) for word in COMMANDS[name](folder / "watched.csv")],
            ]
            result = subprocess.run(
                command, env=job_environment(), capture_output=True, text=True, cwd=folder, timeout=900
            )
            assert result.returncode == 0, result.stderr
            done[name] = (
                losses(folder / "plain.csv"),
                losses(folder / "watched.csv"),
                read_rings(folder / "rings"),
                result.stderr,
            )
        return done[name]

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_losses_are_bitwise_those_without_trimtab(watched, name):
    plain, observed, _, _ = watched(name)
    assert len(plain) == STEPS
    assert observed == plain


@pytest.mark.parametrize("name", COMMANDS)
def test_every_rank_has_its_ring_with_every_step(watched, name):
    _, observed, rings, output = watched(name)
    ranks = 2 if name.startswith("two") else 1
    assert [(ring.identity["rank"], ring.identity["world_size"]) for ring in rings] == [
        (r, ranks) for r in range(ranks)
    ]
    for ring in rings:
        assert ring.identity["run"] == name
        assert ring.identity["closed"] is True
        assert [record["step"] for record in ring.steps] == list(
            range(ring.steps[0]["step"], ring.steps[0]["step"] + STEPS)
        )
        assert len(ring.values("grad_norm")) == STEPS
        assert ring.values("learning_rate")[-1] == pytest.approx(7e-3)
        assert len(ring.values("max_attention_logit")[-1]) == 2
        assert len(ring.values("max_attention_logit")) >= 10
        assert len(ring.values("spectral_norm_q")[-1]) == 2
        assert ring.coverage.get("errors", []) == []
    assert rings[0].values("loss") == pytest.approx([float(loss) for loss in observed], rel=1e-6)
    assert "switched itself off" not in output


@pytest.mark.parametrize("name", ["eager", "checkpointed", "two ranks"])
def test_eager_layers_have_names_and_activations(watched, name):
    _, _, rings, _ = watched(name)
    for ring in rings:
        assert ring.layer_names == ["h.0.attn", "h.1.attn"]
        assert len(ring.values("activation_abs_max")) >= 5
        assert all(value > 0 for value in ring.values("activation_abs_max")[-1])


@pytest.mark.parametrize("name", ["compiled", "two ranks compiled"])
def test_compiled_layers_come_by_order_and_the_report_says_so(watched, name):
    _, _, rings, _ = watched(name)
    for ring in rings:
        assert len(ring.layer_names) == 2
        assert any("compiled code" in note for note in ring.coverage["notes"])


def test_checkpointed_layers_are_not_counted_twice(watched):
    _, _, eager, _ = watched("eager")
    _, _, checkpointed, _ = watched("checkpointed")
    assert int(checkpointed[0].coverage["calls_recomputed"]) >= STEPS
    assert checkpointed[0].values("attention_calls")[-1] == eager[0].values("attention_calls")[-1]


def test_module_form_of_a_job(trimtab_run, tmp_path, read_rings):
    job = tmp_path / "package" / "job.py"
    job.parent.mkdir()
    job.write_text(f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}); import train_gpt; train_gpt.main()\n")
    result = trimtab_run([sys.executable, "-m", "package.job", "--steps", "5"])
    assert result.returncode == 0, result.stderr
    assert len(read_rings(tmp_path / "rings")[0].values("loss")) == 5


def test_hugging_face_trainer(trimtab_run, tmp_path, read_rings):
    result = trimtab_run(
        [sys.executable, EXAMPLES / "hf_trainer.py", "--steps", 12, "--log", "hf.csv"], "--sample-every", "1"
    )
    assert result.returncode == 0, result.stderr
    with open(tmp_path / "hf.csv", newline="") as file:
        logged = list(csv.DictReader(file))
    (ring,) = read_rings(tmp_path / "rings")
    assert ring.layer_names == ["transformer.h.0.attn", "transformer.h.1.attn"]
    assert ring.values("loss") == pytest.approx([float(row["loss"]) for row in logged], rel=1e-4)
    assert ring.values("grad_norm") == pytest.approx([float(row["grad_norm"]) for row in logged], rel=1e-4)
    assert ring.values("learning_rate") == pytest.approx([float(row["learning_rate"]) for row in logged], rel=1e-4)
    assert len(ring.values("spectral_norm_q")[-1]) == 2
    assert ring.coverage.get("errors", []) == []


def test_hugging_face_trainer_with_everything_on(trimtab_run, tmp_path, read_rings):
    """Accumulation, checkpointing and data loader processes: one ring, steps not micro-batches."""
    result = trimtab_run(
        [
            sys.executable,
            EXAMPLES / "hf_trainer.py",
            "--steps",
            6,
            "--accumulate",
            2,
            "--workers",
            2,
            "--gradient-checkpointing",
        ]
    )
    assert result.returncode == 0, result.stderr
    (ring,) = read_rings(tmp_path / "rings")
    assert len(ring.values("loss")) == 6
    assert len(ring.layer_names) == 2


def test_lightning(trimtab_run, tmp_path, read_rings):
    result = trimtab_run(
        [sys.executable, EXAMPLES / "lightning_gpt.py", "--steps", 45, "--log", "lit.csv"], "--sample-every", "1"
    )
    assert result.returncode == 0, result.stderr
    (ring,) = read_rings(tmp_path / "rings")
    assert ring.layer_names == ["model.h.0.attn", "model.h.1.attn"]
    assert ring.values("loss") == pytest.approx([float(loss) for loss in losses(tmp_path / "lit.csv")], rel=1e-6)
    assert len(ring.values("grad_norm")) == 45
    assert len(ring.values("spectral_norm_q")[-1]) == 2
    assert ring.coverage.get("errors", []) == []


def test_processes_beside_the_training_have_no_ring(trimtab_run, tmp_path, read_rings):
    """Forked and spawned data loaders, a forked child that trains, a subprocess that only imports torch."""
    job = tmp_path / "job.py"
    job.write_text(JOB_WITH_HELPERS.format(examples=str(EXAMPLES)))
    result = trimtab_run([sys.executable, job])
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["child", "0", "done"]
    (ring,) = read_rings(tmp_path / "rings")
    assert len(ring.values("loss")) == 6
    assert ring.identity["closed"] is True


JOB_WITH_HELPERS = """
import os, subprocess, sys
sys.path.insert(0, {examples!r})
import torch
from torch.utils.data import DataLoader, TensorDataset
from train_gpt import GPT

def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT(2, 32, 4, 16)
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randint(256, (12, 17)))
    def step(window):
        model(window[:, :-1], window[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    for method in ("fork", "spawn"):
        for (window,) in DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=method):
            step(window)
    child = os.fork()
    if child == 0:
        step(torch.randint(256, (4, 17)))
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print("child", status, flush=True)
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    print("done")

if __name__ == "__main__":
    main()
"""


def test_a_job_that_raises_keeps_its_status_and_leaves_its_ring_open(trimtab_run, tmp_path, read_rings):
    job = tmp_path / "job.py"
    job.write_text(
        f"import sys; sys.path.insert(0, {str(EXAMPLES)!r})\n"
        "import torch, train_gpt\n"
        "model = train_gpt.GPT(2, 32, 4, 16)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for step in range(4):\n"
        "    window = torch.randint(256, (2, 17))\n"
        "    model(window[:, :-1], window[:, 1:]).backward()\n"
        "    optimizer.step()\n"
        "raise RuntimeError('of the job')\n"
    )
    result = trimtab_run([sys.executable, job])
    assert result.returncode == 1
    assert result.stderr.rstrip().endswith("RuntimeError: of the job")
    (ring,) = read_rings(tmp_path / "rings")
    assert len(ring.values("loss")) == 4
    assert ring.identity["closed"] is False and ring.identity["alive"] is False


def test_attach_in_code_equals_run(trimtab_run, tmp_path, read_rings, shim):
    """attach() before the model, and again by `trimtab run` around it: one ring."""
    job = tmp_path / "job.py"
    job.write_text(
        f"import sys; sys.path.insert(0, {str(EXAMPLES)!r})\n"
        "import trimtab\n"
        "assert trimtab.attach(server='127.0.0.1:1', run='in code')\n"
        "import train_gpt\n"
        "sys.argv = ['train_gpt.py', '--steps', '5']\n"
        "train_gpt.main()\n"
    )
    result = trimtab_run([sys.executable, job])
    assert result.returncode == 0, result.stderr
    (ring,) = read_rings(tmp_path / "rings")
    assert ring.identity["run"] == "test" and len(ring.values("loss")) == 5
