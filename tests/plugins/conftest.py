"""The folder of these tests can be imported from: they share plugins that are wrong on purpose."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
