"""Whether two runs of a module compute the same: a check against float64 torch, engines, machines.

Begin with `check_module.py` and `compare_engines.py`.
"""
