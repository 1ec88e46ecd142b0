"""Where pytest looks for no examples in docstrings: modules whose packages are not installed."""

import importlib.util

PACKAGES = {
    "triton": "nestree/treecrf/triton_kernels/*",
    "spacy": "nestree/integrations/spacy.py",
    "fastapi": "nestree/serve/*",
    "ray": "nestree/integrations/ray.py",
}
collect_ignore_glob = [modules for name, modules in PACKAGES.items() if not importlib.util.find_spec(name)]
