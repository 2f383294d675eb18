"""The draft model of a command: loaded, and compared with the model's tokenizer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxsr.errors import InputError
from jaxsr.models.llama.tokenizer import load_tokenizer


def load_draft(load: Callable[..., Any], path: Path, tokenizer: Any, **options: Any) -> Any:
    """The network of a draft model.

    Args:
      load: `load_language_model`, or `load_shapes`.
      path: folder or GGUF file.
      tokenizer: the model's; None where there are no texts.
      options: of `load`.

    Raises:
      InputError: its tokens are others, or it cannot be loaded.
    """
    if tokenizer is not None:
        check_same_tokens(tokenizer, load_tokenizer(path), path)
    return load(path, **options).network


def check_same_tokens(tokenizer: Any, of_draft: Any, path: Path) -> None:
    """Refuses a draft model whose ids stand for other tokens.

    Raises:
      InputError: it names a token, and its ids.
    """
    ids, draft_ids = (
        each.inner.get_vocab(with_added_tokens=True) for each in (tokenizer, of_draft)
    )
    if ids == draft_ids:
        return
    different = {token for token, _ in ids.items() ^ draft_ids.items()}
    token = min(different, key=lambda token: (ids.get(token, draft_ids.get(token)), token))
    of_model, of_draft_model = (table.get(token, "no token") for table in (ids, draft_ids))
    raise InputError(
        f"{path} has other tokens than the model: {token!r} is {of_draft_model} there and "
        f"{of_model} in the model; give a draft model with the same tokenizer"
    )
