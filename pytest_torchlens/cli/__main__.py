"""``python -m pytest_torchlens.cli``: the command where its script is not on the PATH."""

from __future__ import annotations

import sys

from pytest_torchlens.cli import main

sys.exit(main())
