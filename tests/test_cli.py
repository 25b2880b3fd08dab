"""The command line as a user meets it."""

from __future__ import annotations

import subprocess
import sys


def test_help_lists_the_verbs_without_importing_numpy() -> None:
    code = (
        "import sys; sys.argv = ['ratrain', '--help']\n"
        "from ratrain.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert 'numpy' not in sys.modules and 'rich' not in sys.modules, 'heavy import'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Train large language models" in done.stdout
