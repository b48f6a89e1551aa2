"""Whether generated functions pass their own doctests, as a metric of the `evaluate` library.

The functions run: in the sandbox of `moray.evaluate.sandbox`.
"""

import json
import secrets

import datasets
import evaluate

from moray.evaluate.sandbox import run_sandboxed

# The names of the module are those that the function and its examples find. A function could end
# the process or write to its output, but doesn't know the word that says that all examples passed.
_PROGRAM = """
import doctest, importlib, json, os, sys
job = json.loads(sys.stdin.read())
output = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
names = {}
if job["module"]:
    names = dict(vars(importlib.import_module(job["module"])))
exec(compile(job["source"], "<function>", "exec"), names)
found = doctest.DocTestFinder(recurse=False).find(
    names[job["name"]], job["name"], module=False, globs=names
)
runner = doctest.DocTestRunner(verbose=False)
for test in found:
    runner.run(test)
if runner.tries and not runner.failures:
    print(job["word"], file=output)
"""


def passes(source: str, name: str, module: str) -> bool:
    """Whether a function has doctests, and passes them.

    Args:
        source: the function.
        name: its name.
        module: of the standard library, whose names it can use; empty for none.
    """
    word = secrets.token_hex(8)
    job = {"source": source, "name": name, "module": module, "word": word}
    return run_sandboxed(_PROGRAM, json.dumps(job)).split() == [word]


class Doctests(evaluate.Metric):
    """Share of the functions that pass their doctests."""

    def _info(self) -> evaluate.MetricInfo:
        columns = dict.fromkeys(("predictions", "names", "modules"), datasets.Value("string"))
        return evaluate.MetricInfo(
            description="Share of the functions that pass their doctests, in a sandbox.",
            citation="",
            features=datasets.Features(columns),
        )

    def _compute(
        self, predictions: list[str], names: list[str], modules: list[str]
    ) -> dict[str, float | list[bool]]:
        scores = list(map(passes, predictions, names, modules))
        return {"doctests": sum(scores) / len(scores), "scores": scores}
