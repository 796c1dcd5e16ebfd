"""Run the Metal text that MLX generates on a Linux CPU, with every access checked.

`Emulator(...).metal_kernel` has the call shape of `mx.fast.metal_kernel`. One fiber per lane; a
checked run reports races, wrong barriers, bounds, uninitialised reads and unwritten outputs. It
cannot show what only Apple's compiler, driver and hardware know.
"""

from .build import why_missing
from .launch import EmulatedKernel, Emulator, EmulatorError, Launch
from .source import lint

__all__ = ["EmulatedKernel", "Emulator", "EmulatorError", "Launch", "lint", "why_missing"]
