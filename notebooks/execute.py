"""Run notebooks from top to bottom and keep their outputs; `make notebooks` runs this.

python notebooks/execute.py notebooks/3_ner.ipynb
"""

import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient


def execute(path: Path, check: str = "") -> Any:
    """The notebook with its outputs, after a run in a kernel of its own.

    Args:
        path: The notebook; its folder is where it runs.
        check: Code to run after the last cell, on what the notebook has computed.

    Raises:
        nbclient.exceptions.CellExecutionError: What a cell raised.
    """
    notebook = nbformat.read(path, as_version=4)
    if check:
        notebook.cells.append(nbformat.v4.new_code_cell(check))
    folder = {"metadata": {"path": path.parent}}
    # Times would be different in each run.
    NotebookClient(notebook, timeout=900, resources=folder, record_timing=False, coalesce_streams=True).execute()
    return notebook


def tidy(notebook: Any) -> None:
    """Leave out what says nothing about the notebook: the logs of libraries, and the version of Python."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        start = time.perf_counter()
        notebook = execute(path)
        tidy(notebook)
        nbformat.write(notebook, path)
        print(f"{path}: {time.perf_counter() - start:.0f} s, {path.stat().st_size // 1000} KB")


if __name__ == "__main__":
    main()
