"""Errors that a user can cause and fix, in one line each."""


class UserError(Exception):
    """`path: problem; remedy`: where it is, what is wrong, what to do."""

    def __init__(self, path: str, problem: str, remedy: str) -> None:
        super().__init__(path, problem, remedy)
        self.path = path
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return " ".join(f"{self.path}: {self.problem}; {self.remedy}".split())


class StoppedError(UserError):
    """Somebody asked for the end of what isn't finished, so it is no fault."""


class LockedError(UserError):
    """Another process has it for itself."""


class UnreachableError(UserError):
    """A server doesn't answer, or not with what was asked for; a later try may go on from here."""


class ConfigError(Exception):
    """Every fault of a config, one line each."""

    def __init__(self, problems: list[UserError]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, with the next one if it only announces that; the name of
    the error's type if it has no text.
    """
    first, _, rest = str(error).strip().partition("\n")
    if first.endswith(":"):
        second, _, _ = rest.strip().partition("\n")
        first = f"{first} {second}".strip()
    return first or type(error).__name__
