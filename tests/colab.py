"""Run Colab's notebook as Colab does: python -S tests/colab.py PACKAGES

PACKAGES is the folder of this Python's packages. With -S there is no virtual environment, and this
project is not installed. The notebook's first cell gets this folder instead of a clone, and `pip`
does what an editable install does: processes that start later find the project, this one does not.
"""

import json
import os
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "notebooks" / "13_colab.ipynb"


def install(line):
    os.environ["PYTHONPATH"] = str(Path(line.split()[-1]).resolve())


if __name__ == "__main__":
    sys.path[:1] = [str(Path(sys.argv[1]).resolve())]  # not this folder
    from IPython.core.interactiveshell import InteractiveShell

    os.chdir(tempfile.mkdtemp())
    shell = InteractiveShell.instance()
    shell.register_magic_function(install, "line", "pip")
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            link = f"!ln -s {ROOT} kernel-ladder"
            shell.run_cell(re.sub(r"!git clone .*", link, source)).raise_error()
