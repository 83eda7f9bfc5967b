#!/usr/bin/env python3
"""Executes a notebook: the code cells in order, in one interpreter, without Jupyter.

    run.py NOTEBOOK                 fails at the first cell that raises, or whose output is another one than the stored one
    run.py --write NOTEBOOK         stores the outputs

Outputs are compared loosely: numbers and addresses may differ, and so may white space. A cell whose tags have `raises-exception` has
to raise. Cells that use IPython (`%magic`, `!command`) do not work here.
"""

import ast
import contextlib
import io
import json
import pathlib
import re
import sys
import traceback


def loosely(text):
    """Without what differs from run to run."""
    text = re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?(e[+-]?\d+)?", "#", text)
    return " ".join(text.split())


def execute(source, namespace, name):
    """Runs a cell; what it prints, and the value of its last expression."""
    tree = ast.parse(source, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), namespace)
        value = eval(compile(last, name, "eval"), namespace) if last else None
    return printed.getvalue(), value


def outputs_of(cell, namespace, name, count):
    """The cell's outputs as a notebook stores them."""
    must_raise = "raises-exception" in cell["metadata"].get("tags", [])
    outputs = []
    try:
        printed, value = execute("".join(cell["source"]), namespace, name)
    except Exception as error:
        if not must_raise:
            raise
        printed, value = "", None
        text = "".join(traceback.format_exception_only(type(error), error)).splitlines()
        outputs.append(
            {"output_type": "error", "ename": type(error).__name__, "evalue": str(error), "traceback": text}
        )
    else:
        if must_raise:
            raise AssertionError("this cell has to raise an exception")
    if printed:
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.splitlines(True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(True)}
        outputs.append({"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": count})
    return outputs


def text_of(outputs):
    """What a reader sees."""
    texts = []
    for output in outputs:
        lines = output.get("text") or output.get("data", {}).get("text/plain") or output.get("evalue", "")
        texts.append("".join(lines))
    return "\n".join(texts)


def run(path, write):
    notebook = json.loads(path.read_text())
    namespace = {"__name__": "__main__"}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        try:
            outputs = outputs_of(cell, namespace, f"{path.name}, cell {count}", count)
        except Exception:
            sys.exit(f"{traceback.format_exc()}\n{path}: cell {count} failed:\n{''.join(cell['source'])}")
        if write:
            cell["outputs"], cell["execution_count"] = outputs, count
            continue
        stored, found = text_of(cell["outputs"]), text_of(outputs)
        if loosely(stored) != loosely(found):
            sys.exit(f"{path}: cell {count} says\n{found}\nand not\n{stored}\n(run.py --write stores it)")
    if write:
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    print(f"{path.name}: {count} cells are right")


def main():
    arguments = sys.argv[1:]
    write = "--write" in arguments
    paths = [pathlib.Path(name) for name in arguments if name != "--write"]
    if len(paths) != 1:
        sys.exit(__doc__)
    run(paths[0], write)


if __name__ == "__main__":
    main()
