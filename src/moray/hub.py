"""The Hugging Face Hub: commits of repositories, and refusals as errors to fix."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moray.errors import UserError

_UNAUTHORIZED, _FORBIDDEN = 401, 403
_LOG_IN = "run `hf auth login`, or set HF_TOKEN"


@contextmanager
def explain_refusals(path: str, repo_id: str) -> Iterator[None]:
    """Say what is wrong with the token, if the body fails because of it.

    Raises:
        UserError: naming the key. No token is part of it.
    """
    try:
        yield
    except Exception as error:
        if fault := _fault(error, repo_id):
            raise UserError(path, *fault) from error
        raise


def newest_commit(repo_id: str, kind: str) -> str | None:
    """The hash of the newest commit of a model or dataset; None if the Hub doesn't tell it."""
    # Takes a while to import.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        # No file has this name. Unlike an inquiry, this has one kind of error for all networks.
        folder = snapshot_download(repo_id, repo_type=kind, allow_patterns="/")
    except (HFValidationError, OSError):
        return None
    return Path(folder).name


def has_token() -> bool:
    """Whether there is a token, from `hf auth login` or HF_TOKEN; it may be a wrong one."""
    # Takes a while to import.
    from huggingface_hub import get_token

    return get_token() is not None


def missing_token_error(run: str) -> UserError:
    """A run can't be uploaded without a token."""
    return UserError(f"runs.{run}.push", "pushing to the Hub needs a token", _LOG_IN)


def _fault(error: BaseException, repo_id: str) -> tuple[str, str] | None:
    # Takes a while to import.
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    for cause in _causes(error):
        if isinstance(cause, GatedRepoError):
            accept = "accept its terms on its page of the Hub"
            if not has_token():
                return f"{repo_id} is gated, and there is no token", f"{accept}; then {_LOG_IN}"
            return f"{repo_id} is gated, and the token's account has no access to it", accept
        # The Hub gives the same answer for a private repository and for one that doesn't exist.
        if not isinstance(cause, HfHubHTTPError) or isinstance(cause, RepositoryNotFoundError):
            continue
        if cause.response.status_code == _UNAUTHORIZED:
            if not has_token():
                return "the Hub asks for a token, and there is none", _LOG_IN
            return "the Hub doesn't accept the token", f"{_LOG_IN} to a valid one"
        if cause.response.status_code == _FORBIDDEN:
            return f"the token doesn't permit this with {repo_id}", f"{_LOG_IN} to one that does"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error:
        yield error
        error = error.__cause__ or error.__context__
