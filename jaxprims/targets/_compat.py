"""Temporary: names of an extension that was built before."""

from .. import _cpu, _cuda

for _m, _pairs in (
    (
        _cpu,
        {
            "histogram_handler": "hist_handler",
            "add_histogram": "add_hist",
            "add_histogram_variant": "add_hist_variant",
            "has_histogram_variant": "has_hist_variant",
            "add_ordered": "add_scan",
            "add_ordered_variant": "add_scan_variant",
            "has_ordered_variant": "has_scan_variant",
        },
    ),
    (_cuda, {"histogram_handler": "hist_handler", "histogram_workspace": "hist_workspace", "explain_histogram": "explain_hist"}),
):
    for _new, _old in _pairs.items():
        if not hasattr(_m, _new):
            setattr(_m, _new, getattr(_m, _old))
for _n in ("scan", "reduce", "segments"):
    if not hasattr(_cpu, f"{_n}_workspace_bytes"):
        setattr(_cpu, f"{_n}_workspace_bytes", lambda *a: 0)
