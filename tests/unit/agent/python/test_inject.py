"""What the injected sitecustomize does to Python processes, and what it leaves alone."""

import subprocess
import sys

from jobs import job_environment
from trimtab import _paths, _torch_import


def python(code, *arguments, path=(), **environment):
    full = job_environment(**{"TRIMTAB_ATTACH": "1", "TRIMTAB_SHIM": "/etc/passwd", **environment})
    full["PYTHONPATH"] = ":".join([str(_paths.INJECT), *map(str, path)])
    return subprocess.run(
        [sys.executable, *arguments, "-c", code], capture_output=True, text=True, env=full, timeout=120
    )


def test_a_process_without_torch_only_gets_a_finder():
    code = (
        "import sys; heavy = [m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'subprocess')]; "
        "print(heavy, type(sys.meta_path[0]).__module__)"
    )
    result = python(code)
    assert result.stdout == "[] trimtab._torch_import\n"
    assert result.stderr == ""


def test_a_hidden_sitecustomize_still_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.from_the_owner = __file__\n")
    result = python("import sys, sitecustomize; print(from_the_owner == sitecustomize.__file__)", path=[tmp_path])
    assert result.stdout == "True\n"


def test_an_error_in_the_hidden_sitecustomize_is_its_own(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('of the owner')\n")
    result = python("print('goes on')", path=[tmp_path])
    assert result.stdout == "goes on\n"
    assert "of the owner" in result.stderr and "trimtab:" not in result.stderr


def test_not_armed_without_the_variable():
    result = python("import sys; print('trimtab' in sys.modules)", TRIMTAB_ATTACH="0")
    assert result.stdout == "False\n"


def test_disable_wins():
    result = python("import sys; print('trimtab' in sys.modules)", TRIMTAB_DISABLE="1")
    assert result.stdout == "False\n"


def test_sys_path_is_not_extended():
    result = python("import sys; print(any(p.endswith('agent/python') for p in sys.path))")
    assert result.stdout == "False\n"


def test_a_library_that_does_not_load_leaves_torch_working():
    result = python(
        "import torch; print(int(torch.ones(3).sum()), torch.__spec__.loader.exec_module.__func__.__name__)"
    )
    assert result.stdout == "3 exec_module\n"
    assert "trimtab: not attached, the job goes on without" in result.stderr


def test_bad_settings_in_the_environment_leave_torch_working():
    result = python("import torch; print(int(torch.ones(3).sum()))", TRIMTAB_SAMPLE_EVERY="often")
    assert result.stdout == "3\n"
    assert "TRIMTAB_SAMPLE_EVERY" in result.stderr


def test_a_failed_import_of_torch_is_the_jobs_own_error(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('broken torch')\n")
    result = python("import torch", path=[tmp_path])
    assert result.returncode == 1
    assert "ImportError: broken torch" in result.stderr and "trimtab:" not in result.stderr


def test_launchers_and_compile_workers_are_told_by_their_command_line(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert _torch_import._is_helper(["python", "/env/bin/torchrun", "--nproc-per-node", "2", "x.py"])
    assert _torch_import._is_helper(["python", "-m", "torch.distributed.run", "x.py"])
    assert _torch_import._is_helper(["python", "/env/torch/_inductor/compile_worker/__main__.py", "--workers=2"])
    assert not _torch_import._is_helper(["python", "train.py"])
    assert not _torch_import._is_helper(["python", "-m", "pkg.train"])
    monkeypatch.setenv("RANK", "0")
    assert not _torch_import._is_helper(["python", "-m", "torch.distributed.run", "x.py"])
