"""The on-demand build: what is found, what is said when something is missing, and that processes share one build."""

import io
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from trimtab import _build, _paths

UNIT = "agent/torch/{}.cc"


@pytest.fixture
def small_tree(tmp_path, monkeypatch):
    """A source tree of three small units, and an empty cache: the real build in a second instead of a minute."""
    root = tmp_path / "src"
    for name in ("agent/core/a", "agent/torch/b", "kernels/cpu/c"):
        (root / name).parent.mkdir(parents=True)
        (root / f"{name}.cc").write_text(f'extern "C" int trimtab_small_{name[-1]}() {{ return 1; }}\n')
    (root / "agent/core/h.h").write_text("// a header\n")
    monkeypatch.setenv("TRIMTAB_SHIM_SRC", str(root))
    monkeypatch.setenv("TRIMTAB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    return root


def test_sources_of_the_installation_whose_courier_is_on_the_path(tmp_path, monkeypatch):
    courier = tmp_path / "bin" / "trimtab-courier"
    sources = tmp_path / "share" / "trimtab" / "shim-src"
    for folder in (courier.parent, sources / "agent" / "torch", sources / "kernels"):
        folder.mkdir(parents=True)
    courier.touch(mode=0o755)
    package = tmp_path / "site-packages" / "trimtab"
    monkeypatch.setattr(_paths, "PACKAGE", package)
    monkeypatch.setattr(_paths, "PACKAGE_PARENT", package.parent)
    monkeypatch.delenv("TRIMTAB_SHIM_SRC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert _paths.shim_source_root() is None
    monkeypatch.setenv("PATH", str(courier.parent))
    assert _paths.shim_source_root() == sources.resolve()


def test_torch_is_found_without_importing_it():
    code = (
        "import sys; from trimtab import _build; t = _build.find_torch(); assert 'torch' not in sys.modules; "
        "import torch; print(t.version == torch.__version__, t.cxx11_abi == torch._C._GLIBCXX_USE_CXX11_ABI, "
        "t == _build.find_torch())"
    )
    output = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(_paths.PACKAGE_PARENT)},
    ).stdout
    assert output.split() == ["True", "True", "True"]


def test_builds_once_and_says_so(small_tree):
    stream = io.StringIO()
    library = _build.library(progress=stream)
    assert library.is_file()
    assert "building the hook library for torch" in stream.getvalue()
    assert "0/4" in stream.getvalue()
    again = io.StringIO()
    assert _build.library(progress=again) == library
    assert again.getvalue() == ""


def test_a_changed_header_is_another_library(small_tree):
    first = _build.library(progress=io.StringIO())
    (small_tree / "agent/core/h.h").write_text("// another header\n")
    second = _build.library(progress=io.StringIO())
    assert first != second and first.is_file() and second.is_file()


def test_a_terminal_gets_one_line_that_counts(small_tree):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    _build.library(progress=stream)
    assert "4/4" in stream.getvalue()
    assert stream.getvalue().count("\n") == 2


def test_two_processes_build_once(small_tree):
    code = "from trimtab import _build; print(_build.library())"
    environment = {**os.environ, "PYTHONPATH": str(_paths.PACKAGE_PARENT)}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    outputs = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len({out for out, _ in outputs}) == 1
    assert sum("building the hook library" in err for _, err in outputs) == 1


def test_a_dead_builder_leaves_nothing_in_the_way(small_tree):
    library = _build.library(progress=io.StringIO())
    library.unlink()
    (library.parent / "build-left").mkdir()
    (library.parent / "lock").write_text("")
    assert _build.library(progress=io.StringIO()) == library and library.is_file()


def test_without_a_compiler_the_package_is_named(small_tree, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(_build.BuildError, match="apt-get install g\\+\\+"):
        _build.library()


def test_a_wrong_cxx_is_named(small_tree, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(_build.BuildError, match="CXX=no-such-compiler"):
        _build.library()


def test_a_failing_compile_keeps_its_command_and_output(small_tree):
    (small_tree / "agent/torch/b.cc").write_text("int broken( {\n")
    with pytest.raises(_build.BuildError) as failure:
        _build.library(progress=io.StringIO())
    message = str(failure.value)
    assert "b.cc" in message and "error" in message and "\n" not in message
    log = Path(message.rsplit("output: ", 1)[1]).read_text()
    assert "-std=c++20" in log and "exit status 1" in log
    assert not list((small_tree.parent / "cache").rglob("build-*"))


def test_read_only_cache_falls_back_to_a_private_folder(small_tree, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("TRIMTAB_CACHE_DIR", str(blocked / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    library = _build.library(progress=io.StringIO())
    folder = tmp_path / "temporary" / f"trimtab-cache-{os.getuid()}"
    assert folder in library.parents
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_fallback_that_others_may_write_is_refused(small_tree, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRIMTAB_CACHE_DIR", str(tmp_path / "file/cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"trimtab-cache-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(_build.BuildError, match="TRIMTAB_CACHE_DIR"):
        _build.library()


def test_a_ready_library_of_another_torch_is_not_taken(small_tree, tmp_path, monkeypatch):
    ready = tmp_path / "ready.so"
    ready.write_text("")
    monkeypatch.setenv("TRIMTAB_SHIM", str(ready))
    assert _build.library() == ready
    monkeypatch.setenv("TRIMTAB_SHIM_FOR", "1.2.3 /elsewhere/torch")
    assert _build.library(progress=io.StringIO()) != ready
    monkeypatch.setenv("TRIMTAB_SHIM_FOR", _build.identity(_build.find_torch()))
    assert _build.library() == ready


def test_an_old_torch_is_refused(small_tree):
    with pytest.raises(_build.BuildError, match="older than 2.9"):
        _build.library(_build.Torch("2.8.1", Path("/x"), 1))


def test_missing_sources_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIMTAB_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_paths, "shim_source_root", lambda: None)
    with pytest.raises(_build.BuildError, match="TRIMTAB_SHIM_SRC"):
        _build.library()


def test_the_cache_keeps_the_libraries_used_last(small_tree, monkeypatch):
    monkeypatch.setattr(_build, "LIBRARIES_KEPT", 2)
    built = []
    for index in range(4):
        (small_tree / "agent/core/h.h").write_text(f"// version {index}\n")
        built.append(_build.library(progress=io.StringIO()))
        os.utime(built[-1].parent, (index, index))
        if index == 2:
            (small_tree / "agent/core/h.h").write_text("// version 1\n")
            assert _build.library(progress=io.StringIO()) == built[1]  # used again
    assert [library.is_file() for library in built] == [False, True, False, True]
