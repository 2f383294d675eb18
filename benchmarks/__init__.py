"""Programs that measure, in rooms by subject.

`python -m benchmarks.NAME` finds a program in its room; code imports it from there.
"""

from pathlib import Path

ROOMS = ("ahead", "conformance", "generation", "ops", "reliability", "restoration", "steps")
__path__ += [str(Path(__file__).parent / room) for room in ROOMS]
