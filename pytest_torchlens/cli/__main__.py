"""``python -m pytest_torchlens.cli``: the command without its script on the PATH."""

from __future__ import annotations

import sys

from pytest_torchlens.cli import main

sys.exit(main())
