"""Where pytest looks for no examples in docstrings: modules whose packages are not installed."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["nestree/treecrf/triton_kernels/*"]
