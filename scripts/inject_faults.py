"""Make faults happen to real commands, count how often the commands hold, and write docs/reliability.md.

python scripts/inject_faults.py                              # all rows; three quarters of an hour on two cores
python scripts/inject_faults.py --rows flips-best,sigterm    # some rows; --list names them
python scripts/inject_faults.py --tries-scale 0.1            # a tenth of the tries, and no page

The seed, which is printed, determines all random choices. A JSON file stores the finished rows, so ``--resume`` can
continue a run that was stopped. A failure is shown with its command and the output. The exit code is 1 if a try did not
hold.
"""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    ROOT = Path(__file__).parents[1]
    # Set before the first import: commands that run at the same time share the cores, and test the code of this clone.
    os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    sys.path.insert(1, str(ROOT))
    from faults.command_line import main

    main(__doc__ or "")
