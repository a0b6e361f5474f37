# SPDX-License-Identifier: Apache-2.0
"""Run the demo in an empty folder, and put what it prints into docs/demo.md: `make docs-demo`."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "demo.md"
_PART = re.compile(r"(<!-- demo-output -->\n```\n).*?(\n```\n)", re.DOTALL)


def main() -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / ".demo"
        command = [str(Path(sys.executable).with_name("airflow-mv")), "demo", "--home", str(home)]
        ran = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
    if ran.returncode:
        sys.exit(f"the demo failed with exit code {ran.returncode}: {PAGE} is as it was")
    printed = "\n".join(line.rstrip() for line in ran.stdout.replace(str(home), ".../.demo").strip().splitlines())
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_PART.sub(lambda part: part[1] + printed + part[2], page), encoding="utf-8")


if __name__ == "__main__":
    main()
