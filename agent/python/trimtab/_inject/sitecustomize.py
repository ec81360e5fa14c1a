"""First thing that a Python process of a watched job runs. It must never disturb that process.

It stands in front of the PYTHONPATH that `trimtab run` gives to the job: it runs the sitecustomize that it hides, if
there is one, and arranges that trimtab attaches when the process imports torch. A process that never does is left
alone.
"""

import os
import sys


def _run_hidden_sitecustomize():
    """Executes the next sitecustomize on the path under its own name, as if this one did not exist."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None or spec.origin == __file__:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _load_trimtab():
    """Imports the trimtab package that this file belongs to without touching sys.path."""
    import importlib.util

    if "trimtab" in sys.modules:
        return sys.modules["trimtab"]
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location(
        "trimtab", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["trimtab"] = module
    spec.loader.exec_module(module)
    return module


def _arm():
    if os.environ.get("TRIMTAB_ATTACH") != "1" or os.environ.get("TRIMTAB_DISABLE", "").lower() in (
        "1",
        "true",
        "yes",
        "on",
    ):
        return
    try:
        _load_trimtab()
        from trimtab import _torch_import

        _torch_import.arm()
    except Exception as error:
        sys.stderr.write(f"trimtab: not attached: {type(error).__name__}: {error}\n")


_arm()
_run_hidden_sitecustomize()
