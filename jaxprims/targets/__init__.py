"""What compiles and runs kernels: a registry of targets, what all of them share, a folder for each.

Importing the package registers those that there are.
"""

from .cpu import target as _cpu_target
from .cuda import target as _cuda_target

del _cpu_target, _cuda_target
