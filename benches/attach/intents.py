"""How long a running daemon takes to record and answer an intent: `intents.py RUN_DIR [COUNT]`.

Needs `PYTHONPATH=bin/client`. More than 100 in a row measure the daemon's pace and not its speed.
"""

import statistics
import sys
import time

from kernelzero_attach import attach

count = int(sys.argv[2]) if len(sys.argv) > 2 else 80
actor = attach(sys.argv[1], name="bench", what="benches/attach/intents.py", events=[])
times = []
for number in range(count):
    start = time.perf_counter()
    actor.note(f"note {number}")
    times.append(1e3 * (time.perf_counter() - start))
actor.close()
times.sort()
print(f"{count} intents: median {statistics.median(times):.1f} ms, "
      f"98 % within {times[int(0.98 * count)]:.1f} ms, longest {times[-1]:.1f} ms")
