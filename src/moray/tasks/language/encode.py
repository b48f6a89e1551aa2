"""From documents to pieces: at most `block_size` tokens, with a mask of the trained ones."""

import copy
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from transformers import PreTrainedTokenizerFast

from moray.config.tasks import FORMATS
from moray.corpus.dataset import Document, RowError, content, plain_text
from moray.errors import UserError
from moray.tasks.language.alterations import Alterations
from moray.tasks.language.chat import ChatTemplate, RenderedChat, missing_template_error
from moray.tasks.language.pieces import ROLES, EncodedDocument, Piece
from moray.tasks.language.tokenizer import joins, load_tokenizer, opening, stop_token_ids

_TEXT, _PROMPT, _COMPLETION = map(ROLES.index, ("text", "prompt", "completion"))

Item = TypeVar("Item")

# A tokenizer's output takes about 50 times the memory of the text, 100 times with offsets.
_CHARACTERS_AT_ONCE = 2**19


class RefusedRowError(UserError):
    """A row that the chat template can't render, `number` of its split, counted from 1."""

    def __init__(self, number: int, problem: str, remedy: str) -> None:
        super().__init__(f"row {number}", problem, remedy)
        self.number = number

    def __reduce__(self) -> tuple[type["RefusedRowError"], tuple[int, str, str]]:
        # Another process may meet it.
        return RefusedRowError, (self.number, self.problem, self.remedy)


class Encoder:
    """Tokenises documents.

    A text is placed between the tokenizer's BOS token, see `opening`, and its stop token; one that
    a template has rendered may have either of them itself, and gets no second one. A prompt
    and its completion are tokenised separately, so that the prompt's tokens are the same as when
    it is tokenised alone. If the tokenizer would put a space between them, they are tokenised as
    one text; then a token can have the end of the prompt and the start of the completion, which is
    counted. For a conversation, the chat template adds these tokens.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        block_size: int,
        long_documents: str = "split",
        chat: ChatTemplate | None = None,
        stop_token_ids: Sequence[int] = (),
        bos: str | bool = "auto",
    ) -> None:
        """Configure the encoder.

        Args:
            tokenizer: the tokenizer; encodes batches in its own threads.
            long_documents: whether to `split` longer documents into pieces, `truncate` them to one,
                or `drop` them.
            stop_token_ids: stop tokens, which cover no bytes of text.
            bos: whether texts begin with the BOS token; see `opening`.
        """
        self.block_size = block_size
        # Ids can have gaps, so the number of tokens says nothing.
        highest = max(tokenizer.get_vocab().values())
        self.dtype = np.dtype("<u2" if highest < 2**16 else "<u4")
        self.tokenizer = tokenizer
        # Post-processors can leave spaces out of the offsets; `opening` needs the tokenizer's own.
        self._backend = copy.deepcopy(tokenizer.backend_tokenizer)
        self._backend.post_processor = None
        self._opening = opening(tokenizer, bos)
        self._joins = joins(tokenizer)
        self._special = {
            number: token.content
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.special
        }
        # GPT-2's tokenizer knows all characters, and this is another special token too.
        unknown, others = tokenizer.unk_token_id, (tokenizer.eos_token_id, tokenizer.bos_token_id)
        self._unknown = unknown if unknown not in others else None
        self._is_special = np.zeros(1 + highest, np.bool_)
        self._is_special[[*self._special]] = True
        # Tokens that take white space beside them, which belongs to the text there.
        self._greedy = {
            number: (token.lstrip, token.rstrip)
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.lstrip or token.rstrip
        }
        self._stop: int = tokenizer.eos_token_id
        self.stops = [self._stop, *(stop for stop in stop_token_ids if stop != self._stop)]
        self._chat = chat
        self._long_documents = long_documents

    def encode(
        self, documents: list[Document], first_document: int, count_bytes: bool
    ) -> tuple[list[Piece], int, int]:
        """Tokenise documents and cut them into pieces.

        Documents longer than a block are cut into pieces that overlap by one token, so that each
        token after a document's first is trained in exactly one piece. Pieces without trained
        tokens are left out.

        Args:
            documents: rows of a dataset, all of one format.
            first_document: number of the first one in its split.
            count_bytes: whether to count the bytes of each piece, which takes a third more time.

        Returns:
            The pieces, the number of documents that were dropped as too long or without a trained
            token left, and the number that were cut.

        Raises:
            RefusedRowError: if the chat template can't render one.
        """
        pieces: list[Piece] = []
        dropped = cut = 0
        for document in self.encode_documents(documents, first_document, count_bytes):
            document_pieces = self._pieces(document)
            is_long = len(document.tokens) > self.block_size
            dropped += is_long and not document_pieces
            cut += is_long and bool(document_pieces)
            pieces += document_pieces
        return pieces, dropped, cut

    def encode_documents(
        self, documents: list[Document], first_document: int, count_bytes: bool
    ) -> Iterator[EncodedDocument]:
        """Tokenise documents without cutting them; see `encode`.

        A conversation can have several renderings.
        """
        for batch in _batches(documents, lambda document: len(content(document))):
            if "messages" in batch[0]:
                yield from self._conversations(batch, first_document, count_bytes)
            else:
                yield from self._texts(batch, first_document, count_bytes)
            first_document += len(batch)

    def prompt_tokens(self, prompt: str) -> list[int]:
        """A prompt as in training: after the BOS token, if the tokenizer has one."""
        ids = self.tokens_of(prompt)
        return [*self._missing_opening(ids), *ids]

    def tokens_of(self, text: str) -> list[int]:
        """The tokens of a text, without special tokens around it."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def special_in_text(
        self, pieces: Iterable[Piece], documents: Sequence[Document], first_document: int
    ) -> Counter[str]:
        """Special tokens that the documents' own text has, and the number of documents of each."""
        occurrences = {
            (piece.document, token)
            for piece in pieces
            for token in np.unique(piece.tokens[self._is_special[piece.tokens]]).tolist()
            if self._special[token] in content(documents[piece.document - first_document])
        }
        return Counter(self._special[token] for _, token in occurrences)

    def num_unknown(self, pieces: Iterable[Piece]) -> tuple[int, int]:
        """Number of tokens of unknown characters, and of the documents that have some."""
        if self._unknown is None:
            return 0, 0
        numbers = Counter[int]()
        for piece in pieces:
            # Pieces of one document overlap by a token.
            own = piece.tokens[piece.document in numbers :]
            numbers[piece.document] += int((own == self._unknown).sum())
        counts = +numbers
        return counts.total(), len(counts)

    def template(self) -> ChatTemplate:
        """The chat template that renders conversations.

        Raises:
            UserError: if there is none.
        """
        if self._chat is None:
            raise missing_template_error()
        return self._chat

    def _texts(
        self, documents: list[Document], first_document: int, count_bytes: bool
    ) -> Iterator[EncodedDocument]:
        prompts = [document.get("prompt", "") for document in documents]
        texts = [document.get("text", document.get("completion", "")) for document in documents]
        apart = self._joins or "prompt" not in documents[0]
        if not apart:
            texts = [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
        # Tokenizers are a third faster without offsets.
        slow = count_bytes or not apart
        encode = self._backend.encode_batch if slow else self._backend.encode_batch_fast
        apart_from = prompts if apart else [""] * len(prompts)
        contexts = self._backend.encode_batch_fast(apart_from, add_special_tokens=False)
        encodings = encode(texts, add_special_tokens=False)
        for number, (prompt, context, text, encoding) in enumerate(
            zip(prompts, contexts, texts, encodings, strict=True), first_document
        ):
            ends = [end for _, end in encoding.offsets] if slow else []
            # A token of both is trained: it has text of the completion.
            own = self._own_spans(encoding, text)[1] if not apart and prompt else ends
            inside = 0 if apart or not prompt else bisect_right(own, len(prompt))
            ids = [*context.ids, *encoding.ids]
            opening = self._missing_opening(ids)
            stop = [] if len(ids) > 1 and ids[-1] == self._stop else [self._stop]
            before = [*opening, *context.ids]
            tokens = np.array([*opening, *ids, *stop], self.dtype)
            mask = np.ones(len(tokens), np.bool_)
            mask[: len(before) + inside] = False
            alterations = Alterations()
            if not apart and prompt and inside < len(own):
                spans = encoding.offsets[inside][0] < len(prompt)
                alterations.update({("prompts", ""): 1, ("spanning", ""): int(spans)})
            sizes = None
            if count_bytes:
                sizes = np.zeros(len(tokens), np.int64)
                # Text that the tokenizer leaves out at the end counts for the last token.
                ends[-1:] = [len(text)] if ends else []
                begins = 0 if apart else len(prompt)
                behind = _bytes_behind(text[begins:], [end - begins for end in ends[inside:]])
                sizes[len(before) + inside : len(tokens) - len(stop)] = behind
                sizes[-1] = 0
            roles = np.full(len(tokens), _TEXT if "text" in documents[0] else _COMPLETION, np.uint8)
            if "prompt" in documents[0]:
                roles[: len(before) + inside] = _PROMPT
            yield EncodedDocument(number, tokens, mask, sizes, roles, +alterations)

    def _missing_opening(self, ids: list[int]) -> list[int]:
        return [] if ids[:1] == self._opening else self._opening

    def _conversations(
        self, documents: list[Document], first_document: int, count_bytes: bool
    ) -> Iterator[EncodedDocument]:
        chat, rendered = self.template(), list[tuple[int, RenderedChat]]()
        for number, document in enumerate(documents, first_document):
            try:
                rendered += [(number, rendering) for rendering in chat.renderings(document)]
            except RowError as error:
                begins = plain_text(document)[:40]
                problem = f"{error.problem}, in the conversation that begins {begins!r}"
                raise RefusedRowError(number + 1, problem, error.remedy) from error
        # Renderings of one conversation repeat its text.
        for batch in _batches(rendered, lambda one: len(one[1].text)):
            yield from self._renderings(batch, count_bytes)

    def _renderings(
        self, rendered: list[tuple[int, RenderedChat]], count_bytes: bool
    ) -> Iterator[EncodedDocument]:
        """Tokenise conversations with the numbers of their documents."""
        encodings = self._backend.encode_batch(
            [conversation.text for _, conversation in rendered], add_special_tokens=False
        )
        for (number, conversation), encoding in zip(rendered, encodings, strict=True):
            tokens = np.array(encoding.ids, self.dtype)
            starts, ends = self._own_spans(encoding, conversation.text)
            mask, roles = np.zeros(len(tokens), np.bool_), np.zeros(len(tokens), np.uint8)
            for start, end in conversation.spans:
                mask |= (ends > start) & (starts < end)
            for role, start, end in conversation.messages:
                roles[(ends > start) & (starts < end)] = ROLES.index(role)
            sizes = None
            if count_bytes:
                sizes = np.zeros(len(tokens), np.int64)
                # If a token is in both, only its bytes in the turn count.
                for start, end in conversation.spans:
                    reached = ends.clip(start, end) - start
                    sizes += _bytes_behind(conversation.text[start:end], reached)
                sizes[np.isin(tokens, self.stops)] = 0
            alterations = conversation.alterations + self._shared_tokens(
                encoding, ends, conversation
            )
            yield EncodedDocument(number, tokens, mask, sizes, roles, alterations)

    def _own_spans(self, encoding: Encoding, text: str) -> tuple[NDArray[np.int64], ...]:
        """Starts and ends of tokens in a text, in characters, without white space beside them.

        Special tokens can take it in, and so reach into what is beside them.
        """
        starts, ends = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
        if self._greedy:
            starts, ends = starts.copy(), ends.copy()
            for place, token in enumerate(encoding.ids):
                if (greedy := self._greedy.get(token)) is None:
                    continue
                token_text = text[starts[place] : ends[place]]
                if greedy[0]:
                    starts[place] += len(token_text) - len(token_text.lstrip())
                if greedy[1]:
                    ends[place] -= len(token_text) - len(token_text.rstrip())
        return starts, ends

    def _shared_tokens(
        self, encoding: Encoding, own_ends: NDArray[np.int64], conversation: RenderedChat
    ) -> Alterations:
        """The answers that begin in a token of the text in front of them.

        If it is a special one, it takes their white space; otherwise, it begins an answer that
        generation can't begin in this way.
        """
        starts, ends = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
        alterations = Alterations()
        for begin, _ in conversation.spans:
            over = (starts < begin) & (begin < ends)
            alterations["white_space", ""] += int((over & (own_ends <= begin)).any())
            if begin in conversation.prompt_ends:
                alterations["shared", ""] += int((over & (own_ends > begin)).any())
        return +alterations

    def _pieces(self, document: EncodedDocument) -> list[Piece]:
        length = len(document.tokens)
        if length > self.block_size and self._long_documents != "split":
            length = self.block_size if self._long_documents == "truncate" else 0
        starts = range(0, max(length - 1, min(length, 1)), self.block_size - 1)
        parts = (slice(start, min(start + self.block_size, length)) for start in starts)
        pieces = [document.piece(part) for part in parts]
        trained_pieces = [piece for piece in pieces if piece.mask.any()]
        if not trained_pieces:
            return []
        first, *others = trained_pieces
        if first is not pieces[0]:
            prompt_cut = Alterations({("cut_prompts", ""): 1})
            first = replace(first, alterations=first.alterations + prompt_cut)
        return [first, *(replace(piece, alterations=Counter()) for piece in others)]


def make_encoder(folder: Path, cfg: Mapping[str, Any]) -> Encoder:
    """Make the encoder for documents of a format, with the keys of `data` that tokens depend on."""
    tokenizer = load_tokenizer(folder)
    stops = stop_token_ids(tokenizer, folder)
    chat = None
    format = FORMATS[cfg["format"]]
    # Pairs can be text, which needs no template.
    optional = format.answered and not tokenizer.chat_template
    if format.chat and (cfg["chat_template"] or not optional):
        words = tokenizer.convert_ids_to_tokens(stops)
        # Keys of later versions are only there if they are set.
        added = ("turns", "train_template_text")
        chat = ChatTemplate(
            tokenizer,
            cfg["chat_template"],
            words,
            cfg["mask_history"],
            variables=cfg.get("template_variables"),
            **{key: cfg[key] for key in added if key in cfg},
        )
    return Encoder(
        tokenizer,
        cfg["block_size"],
        cfg["long_documents"],
        chat,
        stop_token_ids=stops,
        bos=cfg.get("bos", "auto"),
    )


def _batches(items: Iterable[Item], size_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Items in batches of about `_CHARACTERS_AT_ONCE`."""
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= _CHARACTERS_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _bytes_behind(text: str, ends: Any) -> NDArray[np.int64]:
    """UTF-8 bytes of text that each token covers, from the end of the token before it.

    Ends are in characters, shape (tokens,); the tokens of one character may share an end.
    """
    # A character that is split into several tokens counts for the first of them.
    reached = np.maximum.accumulate(np.array(ends, np.int64))
    if not text.isascii():
        sizes = np.frombuffer(text.encode("utf-32-le"), "<u4")
        width = 1 + (sizes > 0x7F) + (sizes > 0x7FF) + (sizes > 0xFFFF)
        reached = np.concatenate(([0], np.cumsum(width)))[reached]
    return np.diff(reached, prepend=0)
